"""A job: what is read, what is asked, where the answers go, as a file of TOML says it.

Owns: the form of the file, its defaults, and what of it may not change before the run has ended.
May not know: files and servers: it names them, and opens none.
Read next: `running.py`, which does it.

    contract = "mine.py:Ticket"

    [source]
    path = "tickets.csv"

    [[transform]]
    use = "template"
    text = "Summarise: {text}"

    [engine]
    model = "smollm2-135m"
    prompt = "prompt"
    options = { max_tokens = 64, temperature = 0 }

    [sink]
    path = "answers.jsonl"
"""

from __future__ import annotations

import os
from copy import copy
from pathlib import Path
from typing import Any, ClassVar, Literal, get_args

from pydantic import BaseModel, ConfigDict, Field, ValidationError, model_validator

from firsthand.data.contract import Contract, contract_hash, find_contract
from firsthand.data.transforms import Transform, make_transform
from firsthand.errors import InvalidRequest, SourceRefused
from firsthand.files import strict_toml

MAX_JOB_BYTES = 1024 * 1024
PATHS = {"completions": "/v1/completions", "chat": "/v1/chat/completions"}
FileKind = Literal["csv", "jsonl", "json", "parquet"]
QueueKind = Literal["queue", "redis", "rabbitmq", "nats", "kafka"]
QUEUES: tuple[str, ...] = get_args(QueueKind)


class Part(BaseModel):
    """A table of the file: what it does not know it refuses."""

    model_config = ConfigDict(strict=True, extra="forbid", frozen=True)


class Place(Part):
    """Where records come from or go to: a file, a table, or a queue.

    `kind` of a file follows from its name. A table has a `url` (sqlite:FILE, postgresql://…), a
    queue has one too, and a `name`."""

    file_kinds: ClassVar[tuple[str, ...]] = get_args(FileKind)
    kind: FileKind | Literal["sql"] | QueueKind | None = None
    path: str | None = None
    url: str | None = None
    name: str | None = None

    @model_validator(mode="after")
    def _one_place(self) -> Place:
        if (self.path is None) == (self.url is None):
            raise ValueError("takes path, of a file, or url, of a database or queue")
        if self.kind in QUEUES and self.name is None:
            raise ValueError("a queue has a name")
        if self.path is not None and self.kind not in (None, *self.file_kinds):
            kinds = ", ".join(self.file_kinds)
            raise ValueError(f"kind {self.kind} has no path; a file is one of {kinds}")
        if self.url is not None and self.kind not in ("sql", *QUEUES):
            raise ValueError(f"kind, of a url, is one of sql, {', '.join(QUEUES)}")
        return self


class SourcePart(Place):
    """`query` of SQL is read in the order of its column `key`, whose values are unique. A queue has
    ended when nothing came for `idle_s`, or, with `follow`, never."""

    encoding: str | None = None
    delimiter: str | None = None
    query: str | None = None
    key: str | None = None
    group: str = "firsthand"
    idle_s: float = Field(default=2.0, gt=0, le=3600)
    follow: bool = False

    @model_validator(mode="after")
    def _a_query(self) -> SourcePart:
        if self.kind == "sql" and not (self.query and self.key):
            raise ValueError("sql takes a query, and the key by which it is read")
        return self


class EnginePart(Part):
    """`model` is loaded in this process; `url` is that of a server, and `name` its model. `fields`
    are fields of the body that a field of the record gives. `width` requests are sent at once;
    `batch` of them run at once in a model that is loaded here."""

    model: str | None = None
    url: str | None = None
    name: str | None = None
    route: Literal["chat", "completions"] = "chat"
    prompt: str = "text"
    system: str | None = None
    options: dict[str, Any] = Field(default_factory=dict)
    fields: dict[str, str] = Field(default_factory=dict)
    width: int | None = Field(default=None, ge=1, le=1024)
    batch: int | None = Field(default=None, ge=1, le=1024)
    patience_s: float = Field(default=120.0, ge=0)

    @model_validator(mode="after")
    def _one_engine(self) -> EnginePart:
        if (self.model is None) == (self.url is None):
            raise ValueError("takes model or url")
        return self


class SinkPart(Place):
    """`keep`: which values of the record stand in its output; None: all."""

    file_kinds: ClassVar[tuple[str, ...]] = ("jsonl", "parquet")

    @model_validator(mode="after")
    def _a_form(self) -> SinkPart:
        ending = Path(self.path or "").suffix
        if self.kind is None and ending in (".csv", ".tsv", ".json", ".db", ".sqlite"):
            raise ValueError(f"path: {ending} is no form of output; kind is jsonl or parquet")
        return self

    keep: list[str] | None = None


class JobFile(Part):
    """The whole file. `ledger`: beside the output, where nothing else is said."""

    source: SourcePart
    sink: SinkPart
    contract: str | None = None
    transform: list[dict[str, Any]] = Field(default_factory=list)
    engine: EnginePart | None = None
    ledger: str | None = None
    checkpoint_records: int = Field(default=1000, ge=1, le=100_000)
    checkpoint_s: float = Field(default=1.0, ge=0, le=3600)
    sample: int = Field(default=1000, ge=0)


class Job:
    """A file of TOML with what it names. Paths in it begin at its folder."""

    def __init__(self, file: JobFile, folder: Path) -> None:
        self.file = file
        self.folder = folder
        self.contract: type[Contract] = find_contract(self._module(file.contract))
        self.transforms: list[Transform] = [make_transform(one, folder) for one in file.transform]

    @property
    def ledger(self) -> Path:
        file = self.file
        if file.ledger is not None:
            return self.folder / file.ledger
        place = file.sink.path or f"{file.sink.name or 'output'}.sink"
        return self.folder / f"{place}.ledger"

    @property
    def source_name(self) -> str:
        """As the file calls it, so that a folder may be moved."""
        return place_name(self.file.source)

    def elsewhere(self, sink: Path, ledger: Path) -> Job:
        """The same job, but its outputs are lines of another file, and its ledger is another."""
        other = copy(self)
        places = [os.path.relpath(path, self.folder) for path in (sink, ledger)]
        part = SinkPart(kind="jsonl", path=places[0], keep=self.file.sink.keep)
        other.file = self.file.model_copy(update={"sink": part, "ledger": places[1]})
        return other

    def facts(self) -> dict[str, Any]:
        """What may not change between two runs that write one output."""
        file = self.file
        engine = None if file.engine is None else file.engine.model_dump(exclude=WITHOUT_EFFECT)
        return {
            "source_part": file.source.model_dump(exclude={"url", "idle_s", "follow"}),
            "source_name": self.source_name,
            "contract": self.contract.called(),
            "contract_sha256": contract_hash(self.contract),
            "transforms": [one.sha256 for one in self.transforms],
            "engine_part": engine,
            "sink_part": file.sink.model_dump(exclude={"url"}),
            "sink_name": place_name(file.sink),
        }

    def _module(self, name: str | None) -> str | None:
        is_file = name is not None and name.rpartition(":")[0].endswith(".py")
        return str(self.folder / str(name)) if is_file else name


WITHOUT_EFFECT = {"url", "width", "batch", "patience_s"}  # of an engine, on what it answers


def place_name(place: Place) -> str:
    """`url` without what is in it to get in."""
    if place.path is not None:
        return place.path
    scheme, _, rest = str(place.url).partition("://")
    where = f"{scheme}://{rest.rpartition('@')[2]}" if rest else scheme
    return f"{where}#{place.name}" if place.name else where


def read_job(path: Path) -> Job:
    """Raises SourceRefused: no such file; InvalidRequest: what is wrong in it, by its name."""
    try:
        with path.open("rb") as stream:
            content = stream.read(MAX_JOB_BYTES + 1)
    except OSError as error:
        raise SourceRefused(str(path), f"cannot be read: {error.strerror}") from error
    if len(content) > MAX_JOB_BYTES:
        raise SourceRefused(str(path), f"is over {MAX_JOB_BYTES} bytes")
    try:
        table = strict_toml(content.decode("utf-8"))
    except ValueError as error:
        raise InvalidRequest(path.name, f"is no TOML: {error}") from error
    return job_of(table, path.absolute().parent)


def job_of(table: dict[str, Any], folder: Path) -> Job:
    """Raises InvalidRequest."""
    try:
        file = JobFile.model_validate(table)
    except ValidationError as error:
        first = error.errors(include_url=False, include_input=False)[0]
        field = ".".join(map(str, first["loc"])) or "job"
        message = str(first["msg"]).removeprefix("Value error, ")
        raise InvalidRequest(field, message) from None
    return Job(file, folder)
