"""The command that reads a file and writes nothing: data check.

Owns: their options, and how books and refused records are shown.
May not know: how a file is read, or what a contract asks.
Read next: `data/check.py`.
"""

from __future__ import annotations

import time
from pathlib import Path
from typing import Annotated, Any

import typer

from firsthand.checks import check_integer
from firsthand.cli import options
from firsthand.cli.output import CHECK_FAILED, print_json, print_table, reported, say

SHOWN = 10


def check(
    file: Annotated[
        Path, typer.Argument(metavar="FILE", help="CSV, TSV, JSON lines, a JSON array, or Parquet.")
    ],
    contract: Annotated[
        str | None,
        typer.Option(
            metavar="MODULE:CLASS",
            help="What a record must be, module:Class or file.py:Class; "
            "default: request_id, text not blank, max_length 1 to 2048.",
        ),
    ] = None,
    encoding: Annotated[
        str | None, typer.Option(help="As the file's maker declares it; default: found out.")
    ] = None,
    delimiter: Annotated[
        str | None, typer.Option(help="Of CSV; default: what the header is parted by.")
    ] = None,
    kind: Annotated[
        str | None, typer.Option(help="csv, jsonl, json or parquet; default: by the file's name.")
    ] = None,
    show: Annotated[int, typer.Option(help="Show so many refused records.")] = SHOWN,
    strict: Annotated[
        bool, typer.Option("--strict", help="Exit with 3 where a record was refused.")
    ] = False,
    as_json: options.AsJson = False,
) -> None:
    """Read a file against a contract, and say what is accepted, and why the rest is not."""
    with reported(as_json):
        from firsthand.data.check import Report, check_file
        from firsthand.data.contract import find_contract
        from firsthand.data.record import Duplicate, Rejected
        from firsthand.data.sources.files import Reading

        check_integer("show", show, 0)
        reading = Reading(kind=kind, encoding=encoding, delimiter=delimiter)
        begun_s, shown = time.perf_counter(), 0
        report: Report | None = None
        for item in check_file(file, find_contract(contract), reading):
            if isinstance(item, Report):
                report = item
            elif isinstance(item, Rejected | Duplicate) and shown < show:
                shown += 1
                where = f"record {item.position.record}, line {item.position.line}"
                if isinstance(item, Duplicate):
                    say(f"{where}: duplicate: {item.key[:80]!r} was there before")
                    continue
                field = f" {item.field}" if item.field is not None else ""
                say(f"{where}: {item.reason}{field}: {item.detail}")
        assert report is not None
        _show(report, time.perf_counter() - begun_s, as_json)
        if strict and report.books.quarantined:
            raise typer.Exit(CHECK_FAILED)


def _show(report: Any, took_s: float, as_json: bool) -> None:
    books, source, encoding = report.books, report.source, report.source.encoding
    if encoding is not None and encoding.ambiguous:
        say(f"warning: encoding {encoding.name}: {encoding.note}")
    if as_json:
        print_json(
            {
                "read": books.read,
                "accepted": books.accepted,
                "quarantined": books.quarantined,
                "duplicates": books.duplicates,
                "encoding": None if encoding is None else encoding.name,
                "encoding_decision": None if encoding is None else encoding.to_dict(),
                "kind": source.kind,
                "delimiter": source.delimiter,
                "contract": report.contract,
                "contract_sha256": report.contract_hash,
                "reasons": dict(books.reasons),
                "seconds": round(took_s, 3),
            }
        )
        return
    rate = f"{books.read / took_s:,.0f} records/s" if took_s else ""
    how = "-"
    if encoding is not None:
        how = f"{encoding.name} ({encoding.how}, {encoding.confidence})"
    print_table(
        ("read", "accepted", "quarantined", "duplicates", "encoding", "contract", ""),
        [
            (
                str(books.read),
                str(books.accepted),
                str(books.quarantined),
                str(books.duplicates),
                how,
                report.contract,
                rate,
            )
        ],
    )
    for reason, count in books.reasons.most_common():
        print(f"  {count}  {reason}")
