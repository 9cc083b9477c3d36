"""The command that asks a log: logs errors.

Owns: where lines come from, what is printed of their counts.
May not know: how lines are counted.
Read next: `../observe/log_query.py`.
"""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import asdict
from pathlib import Path
from typing import Annotated

import typer

from firsthand.cli.options import AsJson
from firsthand.cli.output import print_json, print_table, reported, say
from firsthand.errors import FirsthandError, InvalidRequest

_UNITS = {"s": 1, "m": 60, "h": 3600, "d": 86400}
MAX_MESSAGE_CHARS = 60


def errors(
    files: Annotated[
        list[Path] | None,
        typer.Argument(
            metavar="[FILE]...", help="Logs of servers, or a folder of them; default: the input."
        ),
    ] = None,
    since: Annotated[
        str, typer.Option(metavar="TIME", help="How far to look back: 90s, 5m, 2h, 7d.")
    ] = "5m",
    by: Annotated[
        str, typer.Option(metavar="FIELD", help="module, event, endpoint, model, error, …")
    ] = "module",
    over: Annotated[
        float, typer.Option(min=0, max=100, help="Only where more percent of the lines are errors.")
    ] = 0.0,
    as_json: AsJson = False,
) -> None:
    """Count the errors of a log, and say where they come from."""
    with reported(as_json):
        import time

        from firsthand.observe.log_query import GROUPS, count_errors

        if by not in GROUPS:
            raise InvalidRequest("by", f"is one of {', '.join(GROUPS)}")
        counted = count_errors(_lines(files or []), time.time() - _seconds(since), by)
        loud = [x for x in counted.groups if x.num_errors and x.share * 100 > over]
        if counted.num_unread:
            say(f"{counted.num_unread} lines are no JSON and were passed over")
        if as_json:
            groups = [{**asdict(one), "share": one.share} for one in loud]
            totals = {"lines": counted.num_lines, "unread": counted.num_unread}
            print_json({"since": since, "by": by, **totals, "groups": groups})
            return
        heads = (by.upper(), "ERRORS", "LINES", "SHARE", "LAST", "REQUEST", "MESSAGE")
        print_table(
            heads,
            [
                (
                    *(one.name, str(one.num_errors), str(one.num_lines), f"{one.share:.1%}"),
                    *(one.last_at or "-", one.last_request_id or "-"),
                    (one.last_message or "")[:MAX_MESSAGE_CHARS],
                )
                for one in loud
            ],
        )
        print(f"{counted.num_lines} lines in {since}")


def _seconds(given: str) -> float:
    unit = _UNITS.get(given[-1:])
    number = given[:-1] if unit else given
    if not number.isascii() or not number.isdigit() or not 1 <= len(number) <= 9:
        raise InvalidRequest("since", "is a number with s, m, h or d behind it: 5m")
    return int(number) * (unit or 1)


def _lines(files: list[Path]) -> Iterator[str]:
    """Of all files, or of the input. What is no UTF-8 is no reason to stop."""
    import sys

    from firsthand.observe.log_lines import lines_of

    if not files and sys.stdin.isatty():
        message = "name a log, or pipe one in: journalctl -o cat -u firsthand | …"
        raise InvalidRequest("FILE", message)
    if not files:
        yield from lines_of(sys.stdin)
    for path in (one for file in files for one in _in(file)):
        try:
            with path.open(encoding="utf-8", errors="replace") as stream:
                yield from lines_of(stream)
        except OSError as error:
            raise FirsthandError(f"{path}: {error.strerror}") from None


def _in(path: Path) -> list[Path]:
    """Of a folder the logs in it."""
    return sorted(path.glob("*.log*")) if path.is_dir() else [path]
