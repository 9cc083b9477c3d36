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
    tag: Annotated[
        str | None,
        typer.Option(help="Its name in the layout; default: the manifest's version, else latest."),
    ] = None,
    as_json: AsJson = False,
) -> None:
    """Write a model as an OCI image layout (ModelPack), one layer for each file.

    A manifest goes along with its signature, and every file is compared with it. Tools of
    registries copy it from there: `skopeo copy oci:DST:TAG docker://…`.
    """
    with reported(as_json):
        from firsthand.config import read_environment
        from firsthand.weights.catalogue import resolve
        from firsthand.weights.manifest import read_manifest
        from firsthand.weights.oci import export_layout

        path = resolve(model, read_environment()).path
        done = export_layout(path, target, tag, read_manifest(path))
        if as_json:
            print_json(asdict(done))
        else:
            files = f"{len(done.files)} files, {in_bytes(done.num_bytes)}"
            print(f"{done.digest}, {done.tag}: {files}")


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
