"""The JSON that Perfetto and chrome://tracing open.

Owns: the form of a track, of a span and of the document. Times are microseconds there.
May not know: what is shown.
Read next: `measure/profile.py` (operators), `observe/record_trace.py` (requests).
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from typing import Any

Event = dict[str, Any]


def tracks(process: str, names: Sequence[str]) -> list[Event]:
    """A process and its tracks, which are numbered from 1."""
    head = {"name": "process_name", "ph": "M", "pid": 1, "tid": 1, "args": {"name": process}}
    return [head] + [
        {"name": "thread_name", "ph": "M", "pid": 1, "tid": number, "args": {"name": name}}
        for number, name in enumerate(names, 1)
    ]


def span(
    name: str, kind: str, track: int, start_ms: float, ms: float, args: Mapping[str, Any]
) -> Event:
    """Something that lasted."""
    return {
        "name": name,
        "cat": kind,
        "ph": "X",
        "ts": start_ms * 1e3,
        "dur": ms * 1e3,
        "pid": 1,
        "tid": track,
        "args": dict(args),
    }


def instant(name: str, kind: str, track: int, at_ms: float, args: Mapping[str, Any]) -> Event:
    """Something that happened at a time."""
    return span(name, kind, track, at_ms, 0.0, args) | {"ph": "i", "s": "t"}


def document(events: Sequence[Event], about: Mapping[str, Any]) -> dict[str, Any]:
    return {"displayTimeUnit": "ms", "otherData": dict(about), "traceEvents": list(events)}
