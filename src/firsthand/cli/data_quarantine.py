"""What a run has refused: data quarantine ls, show, fix, replay.

Owns: their options and how what they find is shown.
May not know: how a ledger keeps it.
Read next: `../data/quarantine.py`.
"""

from __future__ import annotations

import sys
from contextlib import closing
from pathlib import Path
from typing import Annotated, Any

import typer

from firsthand.cli import options
from firsthand.cli.data_run import (
    JobPath,
    books_dict,
    engine_of,
    print_books,
    tell_progress,
)
from firsthand.cli.output import print_json, print_table, reported, say
from firsthand.cli.remote import ApiKey
from firsthand.errors import InvalidRequest

MAX_FIX_BYTES = 1024 * 1024
Where = Annotated[Path, typer.Argument(metavar="JOB", help="A job's file, or a run's ledger.")]
Number = Annotated[int, typer.Argument(metavar="NUMBER", help="Of the record, as ls shows it.")]


def ls(
    job: Where,
    every: Annotated[
        bool, typer.Option("--all", help="Also what has left the quarantine.")
    ] = False,
    as_json: options.AsJson = False,
) -> None:
    """List what a run has refused, and why."""
    with reported(as_json):
        from firsthand.data.ledger import read_ledger
        from firsthand.data.quarantine import shown

        with closing(read_ledger(_ledger_of(job))) as ledger:
            found = list(shown(ledger.all_held(**({"state": None} if every else {}))))
        if as_json:
            print_json({"quarantine": found})
            return
        heads = ("NUMBER", "RECORD", "LINE", "STAGE", "REASON", "FIELD", "STATE", "DETAIL")
        print_table(
            heads,
            [
                (
                    *(str(one["number"]), str(one["record"]), str(one["line"]), one["stage"]),
                    *(one["reason"], one["field"] or "-", _state(one), one["detail"]),
                )
                for one in found
            ],
        )


def show(job: Where, number: Number, as_json: options.AsJson = False) -> None:
    """Show one refused record: where it stood, why it was refused, its bytes."""
    with reported(as_json):
        from firsthand.data.ledger import read_ledger
        from firsthand.data.quarantine import shown

        with closing(read_ledger(_ledger_of(job))) as ledger:
            found = next(shown([ledger.held(number)]))
        if as_json:
            print_json(found)
            return
        for name, value in found.items():
            if value is not None and name not in ("raw", "fixed"):
                print(f"{name}: {value}")
        print(found["raw"])
        if found["fixed"] is not None:
            print(f"mended: {found['fixed']}")


def fix(
    job: Where,
    number: Number,
    record: Annotated[
        str, typer.Argument(metavar="JSON", help="The record as a JSON object; -: standard input.")
    ],
    as_json: options.AsJson = False,
) -> None:
    """Say what a refused record should have been; `replay` sends it."""
    with reported(as_json):
        from firsthand.data import quarantine
        from firsthand.data.ledger import read_ledger

        if record == "-":
            content = sys.stdin.buffer.read(MAX_FIX_BYTES + 1)
        else:
            content = record.encode("utf-8", "surrogateescape")
        if len(content) > MAX_FIX_BYTES:
            raise InvalidRequest("record", f"is over {MAX_FIX_BYTES} bytes")
        with closing(read_ledger(_ledger_of(job), writes=True)) as ledger:
            quarantine.fix(ledger, number, content.strip())
        if as_json:
            print_json({"number": number, "fixed": True})


def replay(
    job: JobPath,
    numbers: Annotated[
        list[int] | None,
        typer.Argument(metavar="[NUMBER]...", help="Default: those that were mended."),
    ] = None,
    api_key: ApiKey = None,
    as_json: options.AsJson = False,
) -> None:
    """Send refused records through the job again; each has one outcome, however often it is run."""
    with reported(as_json):
        from firsthand.data.job import read_job
        from firsthand.data.quarantine import replay as again

        found = read_job(job)
        engine = engine_of(found, api_key)
        now, books = again(found, engine, numbers or None, tell_progress())
        if as_json:
            print_json({"replayed": books_dict(now), "books": books_dict(books)})
            return
        say(f"{now.accepted} accepted, {now.quarantined} refused again, {now.duplicates} double")
        print_books(books)


def _ledger_of(path: Path) -> Path:
    """A job's file says where its ledger is."""
    from firsthand.data.job import read_job

    return read_job(path).ledger if path.suffix == ".toml" else path


def _state(one: dict[str, Any]) -> str:
    return "mended" if one["state"] == "held" and one["fixed"] is not None else str(one["state"])
