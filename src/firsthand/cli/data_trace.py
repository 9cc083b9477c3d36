"""Where an answer came from: data trace, data lineage.

Owns: their options and how what they find is shown.
May not know: how a ledger keeps it.
Read next: `../data/trace.py`, `../data/open_lineage.py`.
"""

from __future__ import annotations

import json
from contextlib import closing
from pathlib import Path
from typing import Annotated, Any

import typer

from firsthand.cli import options
from firsthand.cli.data_run import JobPath
from firsthand.cli.output import print_json, reported
from firsthand.errors import InvalidRequest


def trace(
    job: JobPath,
    wanted: Annotated[
        str | None,
        typer.Argument(
            metavar="[ID]", help="Of an output or a record: id, key, or hash of the input."
        ),
    ] = None,
    samples: Annotated[
        bool, typer.Option("--samples", help="The records that were chosen as samples.")
    ] = False,
    as_json: options.AsJson = False,
) -> None:
    """Walk from an answer to its record, and back, and compare both with their hashes."""
    with reported(as_json):
        from firsthand.data import trace as tracing
        from firsthand.data.ledger import read_ledger

        if (wanted is None) != samples:
            raise InvalidRequest("id", "takes an ID, or --samples")
        found = _job_of(job)
        with closing(read_ledger(found.ledger)) as ledger:
            if wanted is None:
                rows = [tracing.walked(found, ledger, one) for one in ledger.samples()]
            else:
                rows = list(tracing.trace(found, ledger, wanted.removeprefix("rec-")))
        if not rows and wanted is not None:
            raise InvalidRequest("id", f"{wanted[:80]!r} is not in {found.ledger}")
        if as_json:
            print_json({"found": rows})
            return
        for row in rows:
            _print_tree(row)


def lineage(job: JobPath, as_json: options.AsJson = False) -> None:
    """Print a run as events of OpenLineage, one per line."""
    with reported(as_json):
        from firsthand.data.ledger import read_ledger
        from firsthand.data.open_lineage import events

        found = _job_of(job)
        with closing(read_ledger(found.ledger)) as ledger:
            told = list(events(found, ledger))
        if as_json:
            print_json({"events": told})
            return
        for event in told:
            print(json.dumps(event, ensure_ascii=False))


def _job_of(path: Path) -> Any:
    """A batch has no file but its ledger."""
    from firsthand.data.batch import job_of_ledger
    from firsthand.data.job import read_job

    return read_job(path) if path.suffix == ".toml" else job_of_ledger(path)


def _print_tree(value: dict[str, Any], indent: str = "") -> None:
    for name, one in value.items():
        if isinstance(one, dict):
            print(f"{indent}{name}:")
            _print_tree(one, indent + "  ")
        elif one is not None:
            print(f"{indent}{name}: {one}")
