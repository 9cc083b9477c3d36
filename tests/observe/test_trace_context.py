"""The W3C header, read without a tracer: what is wrong is as good as none."""

from __future__ import annotations

import pytest

from firsthand.observe.trace_context import MAX_HEADER_CHARS, given_trace, trace_headers

TRACE, SPAN = "0af7651916cd43dd8448eb211c80319c", "b7ad6b7169203331"


def test_a_header_names_the_trace() -> None:
    found = given_trace([(b"traceparent", f"00-{TRACE}-{SPAN}-01".encode())])
    assert found is not None and (found.trace_id, found.span_id) == (TRACE, SPAN)
    later = given_trace([(b"Traceparent", f"cc-{TRACE}-{SPAN}-01-more".encode())])
    assert later is not None and later.trace_id == TRACE


@pytest.mark.parametrize(
    "wrong",
    [
        "",
        "00-short-b7ad6b7169203331-01",
        f"00-{'0' * 32}-{SPAN}-01",
        f"00-{TRACE}-{'0' * 16}-01",
        f"ff-{TRACE}-{SPAN}-01",
        f"00-{TRACE}-{SPAN}-01-more",
        f"00-{TRACE.upper()}-{SPAN}-01",
        f"00-{TRACE}-{SPAN}",
    ],
)
def test_a_wrong_header_is_none(wrong: str) -> None:
    assert given_trace([(b"traceparent", wrong.encode())]) is None


def test_a_repeated_header_is_none_and_lists_are_joined_and_bounded() -> None:
    twice = [(b"traceparent", f"00-{TRACE}-{SPAN}-01".encode())] * 2
    assert given_trace(twice) is None and given_trace([]) is None
    found = trace_headers([(b"tracestate", b"a=1"), (b"tracestate", b"b=2"), (b"other", b"x")])
    assert found == {"tracestate": "a=1,b=2"}
    assert len(trace_headers([(b"baggage", b"x" * 99_999)])["baggage"]) == MAX_HEADER_CHARS
