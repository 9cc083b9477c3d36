"""The commands for models as OCI artefacts: oci export, oci import.

Owns: their options, and how what was done is shown.
May not know: the form of a layout.
Read next: `weights/oci.py`, `weights/oci_import.py`.
"""

from __future__ import annotations

from dataclasses import asdict
from pathlib import Path
from typing import Annotated

import typer

from firsthand.cli.options import AsJson, Model
from firsthand.cli.output import in_bytes, print_json, reported, say

Target = Annotated[Path, typer.Argument(metavar="DST", help="A folder to write.")]


def export_model(
    model: Model,
    target: Target,
    tag: Annotated[str, typer.Option(help="The name of the manifest in the layout.")] = "latest",
    as_json: AsJson = False,
) -> None:
    """Write a model as an OCI image layout (ModelPack), one layer for each file.

    Tools of registries copy it from there: `skopeo copy oci:DST:latest docker://…`.
    """
    with reported(as_json):
        from firsthand.config import read_environment
        from firsthand.weights.catalogue import resolve
        from firsthand.weights.oci import export_layout

        done = export_layout(resolve(model, read_environment()).path, target, tag)
        if as_json:
            print_json(asdict(done))
        else:
            print(f"{done.digest}: {len(done.files)} files, {in_bytes(done.num_bytes)}")


def import_model(
    source: Annotated[Path, typer.Argument(metavar="SRC", help="An OCI image layout.")],
    target: Target,
    tag: Annotated[
        str | None, typer.Option(help="Which manifest; needed where there are several.")
    ] = None,
    as_json: AsJson = False,
) -> None:
    """Write the model of an OCI image layout (ModelPack) as a folder; every blob is checked."""
    with reported(as_json):
        from firsthand.weights.oci_import import import_layout

        done = import_layout(source, target, tag)
        if as_json:
            print_json(asdict(done))
            return
        if done.skipped:
            say(f"not written: {', '.join(done.skipped)}")
        print(f"{done.destination}: {len(done.files)} files, {in_bytes(done.num_bytes)}")
