"""Which trace a request belongs to: the W3C headers, as far as anybody needs them without a tracer.

Owns: `TraceContext`, and how one is read from `traceparent`.
May not know: spans, exporters.
Read next: `tracing.py`, which begins spans.

A header that is wrong is as good as none: it is never an error of the request.
"""

from __future__ import annotations

import re
from collections.abc import Iterable
from typing import Any

from firsthand.values import dataclass

TRACE_HEADERS = ("traceparent", "tracestate", "baggage")
MAX_HEADER_CHARS = 8192
_PARENT = re.compile(r"([0-9a-f]{2})-([0-9a-f]{32})-([0-9a-f]{16})-([0-9a-f]{2})(-.*)?", re.ASCII)

Headers = Iterable[tuple[bytes, bytes]]


@dataclass(frozen=True, slots=True)
class TraceContext:
    """`span_id` is that of our own span; without a tracer, that of the caller's. `headers` go out
    with the answer; `span` is what the tracer that began it needs to end it."""

    trace_id: str
    span_id: str
    headers: tuple[tuple[str, str], ...] = ()
    span: Any = None


def trace_headers(headers: Headers) -> dict[str, str]:
    """Those of a trace, each once; a repeated one is none, but for the lists."""
    found: dict[str, str] = {}
    for raw_name, raw_value in headers:
        name = raw_name.decode("latin-1").lower()
        if name in TRACE_HEADERS:
            value = raw_value.decode("latin-1")
            known = found.get(name)
            if known is not None:
                value = "" if name == "traceparent" else f"{known},{value}"
            found[name] = value[:MAX_HEADER_CHARS]
    return found


def given_trace(headers: Headers, arrived_s: float = 0.0) -> TraceContext | None:
    """The caller's; None: it has none."""
    match = _PARENT.fullmatch(trace_headers(headers).get("traceparent", ""))
    if match is None:
        return None
    version, trace_id, span_id, _, more = match.groups()
    known = version != "ff" and (version != "00" or more is None)
    if not known or not int(trace_id, 16) or not int(span_id, 16):
        return None
    return TraceContext(trace_id, span_id)
