"""The command that puts a fault into a running server: chaos.

Owns: its options.
May not know: what a fault does.
Read next: `chaos_clients.py` (faults of clients); `../server/chaos.py` (the others); docs/handbook.
"""

from __future__ import annotations

from collections.abc import Mapping
from pathlib import Path
from typing import Annotated, Any

import typer

from firsthand.cli import options
from firsthand.cli.output import print_json, reported, say
from firsthand.cli.remote import DEFAULT_URL, ApiKey, Url, first_key
from firsthand.errors import InvalidRequest

UNITS = ("ms", "share", "mib", "num")
NAMES = (
    "slow, fail, stall, memory, cache, corrupt, upstream, kill, hang, disk, client or flood; see "
    "docs/cli.md."
)


Socket = Annotated[
    Path | None,
    typer.Option(
        "--admin-socket",
        envvar="FIRSTHAND_ADMIN_SOCKET",
        metavar="PATH",
        help="Of a server that was started with --chaos.",
    ),
]


def chaos(
    fault: Annotated[str, typer.Argument(metavar="FAULT", help=NAMES)],
    admin_socket: Socket = None,
    seconds: Annotated[
        float | None, typer.Option(help="How long; default: the fault's own.")
    ] = None,
    ms: Annotated[float | None, typer.Option(help="Of slow, upstream: milliseconds.")] = None,
    share: Annotated[float | None, typer.Option(help="Of fail, cache: 0 … 1.")] = None,
    mib: Annotated[float | None, typer.Option(help="Of memory: mebibytes.")] = None,
    num: Annotated[float | None, typer.Option(help="Of client, flood: how many.")] = None,
    model: Annotated[str | None, typer.Option(help="Which model; default: all.")] = None,
    url: Url = DEFAULT_URL,
    api_key: ApiKey = None,
    as_json: options.AsJson = False,
) -> None:
    """Put a fault into a running server, for a time, to see what it looks like."""
    with reported(as_json):
        from firsthand.cli.admin import ask_admin

        if admin_socket is None:
            raise InvalidRequest("admin-socket", "is missing: that of serve --chaos")
        given = dict(zip(UNITS, (ms, share, mib, num), strict=True))
        amounts = {unit: amount for unit, amount in given.items() if amount is not None}
        if len(amounts) > 1:
            raise InvalidRequest(next(iter(amounts)), "a fault has one amount")
        query: dict[str, object] = {"fault": fault, "seconds": seconds, "model": model}
        for unit, amount in amounts.items():
            query |= {"unit": unit, "amount": amount}
        found = ask_admin(admin_socket, "chaos", query)
        say(_told(fault, found))
        if fault in ("client", "flood"):
            from firsthand.cli.chaos_clients import flood, read_nothing

            act = flood if fault == "flood" else read_nothing
            found |= act(url, first_key(api_key), int(found["num"]), float(found["seconds"]))
        if as_json:
            print_json(found)
        elif "answers" in found:
            print(", ".join(f"{status}: {count}" for status, count in found["answers"].items()))


def _told(fault: str, found: Mapping[str, Any]) -> str:
    if found["seconds"]:
        return f"{fault}: {found['about']}, for {found['seconds']:g} s; it ends by itself"
    return "kill: the engine was killed, once" if fault == "kill" else f"{fault}: ended"
