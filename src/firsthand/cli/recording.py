"""The command that keeps what a server's engines do, to be looked at again: record.

Owns: its options, and when it ends.
May not know: the form of the file.
Read next: `../observe/recording.py`; `top.py`, which plays it.
"""

from __future__ import annotations

from collections.abc import Generator, Iterator
from contextlib import closing
from pathlib import Path
from typing import Annotated, Any

import typer

from firsthand.cli.options import AsJson
from firsthand.cli.output import print_json, reported, say
from firsthand.cli.remote import DEFAULT_URL, ApiKey, Url, first_key
from firsthand.errors import InvalidRequest

MIB = 1 << 20


def record(
    file: Annotated[Path, typer.Argument(metavar="FILE", help="A new file.")],
    seconds: Annotated[
        float | None, typer.Option(min=0.1, help="For so long; default: until Ctrl-C.")
    ] = None,
    max_mib: Annotated[int, typer.Option(min=1, max=1 << 20, help="The file at most.")] = 1024,
    url: Url = DEFAULT_URL,
    api_key: ApiKey = None,
    as_json: AsJson = False,
) -> None:
    """Record what a server's engines do; `top --recording FILE` plays it, also on the page."""
    with reported(as_json):
        from firsthand.cli.client import client_of
        from firsthand.observe.recording import write

        news = client_of(url, first_key(api_key)).engine_news()
        with closing(news):
            first = next(news, None)  # a wrong address is told before there is a file
            if first is None:
                raise InvalidRequest("url", f"{url}: tells nothing")
            say(f"recording into {file}; Ctrl-C ends it")
            try:
                number = write(_bounded(first, news, seconds), file, max_mib * MIB)
            except FileExistsError:
                raise InvalidRequest("FILE", f"{file}: is there already") from None
        if as_json:
            print_json({"file": str(file), "messages": number})
        else:
            say(f"{number} messages")


def _bounded(
    first: dict[str, Any], news: Generator[dict[str, Any]], seconds: float | None
) -> Iterator[dict[str, Any]]:
    """Until Ctrl-C, which is the way out, or the time is over: looked at with each message."""
    import time

    began_s = time.monotonic()
    try:
        yield first
        for one in news:
            yield one
            if seconds is not None and time.monotonic() - began_s >= seconds:
                return
    except KeyboardInterrupt:
        return
