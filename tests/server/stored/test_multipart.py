"""The form of an upload: the same in whatever pieces it comes, and refused for what it is not.

Owns: proof of `stored/multipart.py`. Read next: `test_files.py`.
"""

from __future__ import annotations

import asyncio
from collections.abc import Iterable, Iterator
from itertools import pairwise
from typing import Any

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from firsthand.server.guard.refusal import Refused
from firsthand.server.stored.multipart import Form, Head, Piece, boundary_of, head_of, read_form

TYPE = "multipart/form-data; boundary=xyz"


def part(head: bytes, content: bytes) -> bytes:
    return b"--xyz\r\nContent-Disposition: form-data; " + head + b"\r\n\r\n" + content + b"\r\n"


def read(pieces: Iterable[bytes]) -> list[tuple[Head, bytes]]:
    form = Form(b"xyz")
    found: list[tuple[Head, bytes]] = []
    for piece in pieces:
        for one in form.feed(piece):
            if isinstance(one, Head):
                found.append((one, b""))
            else:
                found[-1] = (found[-1][0], found[-1][1] + one.content)
    assert form.ended
    return found


def cut(content: bytes, places: Iterable[int]) -> Iterator[bytes]:
    at = [0, *sorted(place % (len(content) + 1) for place in places), len(content)]
    return (content[a:b] for a, b in pairwise(at))


@settings(deadline=None, max_examples=60)
@given(st.binary(max_size=200), st.lists(st.integers(0, 1000), max_size=40))
def test_any_content_in_any_pieces(content: bytes, places: list[int]) -> None:
    """Also bytes that look like the beginning of a boundary."""
    content = content.replace(b"--xyz", b"") + b"\r\n--xy\r\n-"
    body = part(b'name="purpose"', b"batch") + part(b'name="file"; filename="a.jsonl"', content)
    wanted = [(Head("purpose", None), b"batch"), (Head("file", "a.jsonl"), content)]
    assert read(cut(body + b"--xyz--\r\n", places)) == wanted


def test_each_byte_by_itself() -> None:
    body = part(b'name="file"; filename="a"', b"\r\n\r\n--xy") + b"--xyz--"
    assert read(body[at : at + 1] for at in range(len(body)))[0][1] == b"\r\n\r\n--xy"


@pytest.mark.parametrize(
    ("head", "found"),
    [
        (b"name=file; filename=plain", Head("file", "plain")),
        ('name="file"; filename="数据.jsonl"'.encode(), Head("file", "数据.jsonl")),
        (b'name="file"; filename="a%22b;c.jsonl"', Head("file", 'a"b;c.jsonl')),
        (rb'name="file"; filename="a\"b.jsonl"', Head("file", 'a"b.jsonl')),
        (b"name=\"file\"; filename*=UTF-8''%E6%95%B0.jsonl", Head("file", "数.jsonl")),
    ],
)
def test_names(head: bytes, found: Head) -> None:
    assert head_of(b"content-disposition: form-data; " + head) == found


@pytest.mark.parametrize(
    "body",
    [
        b"",
        b"--xyz",
        b"x--xyz--",
        b"--xyz--trailing",
        b"--abc\r\n",
        b"--xyzz\r\n",
        part(b'name="file"', b"never ended"),
        part(b'nome="file"', b"") + b"--xyz--",
        part(b'name="\xff"', b"") + b"--xyz--",
        part(b'name="a"\r\nContent-Transfer-Encoding: base64', b"") + b"--xyz--",
        part(b'name="a"\r\nContent-Disposition: form-data; name="b"', b"") + b"--xyz--",
        b"--xyz\r\nContent-Type: text/plain\r\n\r\n\r\n--xyz--",
        b"--xyz\r\nX: " + b"a" * 5000 + b"\r\n\r\n",
        part(b'name="a"', b"") * 17 + b"--xyz--",
    ],
)
def test_what_is_no_form(body: bytes) -> None:
    with pytest.raises(Refused) as refused:
        received(TYPE, [body])
    assert (refused.value.status, refused.value.code) == (400, "invalid_value")


@pytest.mark.parametrize(
    ("kind", "status"),
    [
        ("application/json", 415),
        ("multipart/mixed; boundary=a", 415),
        ("", 415),
        ("multipart/form-data", 400),
        ("multipart/form-data; boundary=", 400),
        ("multipart/form-data; boundary=" + "a" * 71, 400),
        ('multipart/form-data; boundary="a "', 400),
    ],
)
def test_types_that_are_not_taken(kind: str, status: int) -> None:
    with pytest.raises(Refused) as refused:
        boundary_of(kind)
    assert refused.value.status == status


def test_types_that_are() -> None:
    for kind in (TYPE, 'Multipart/Form-Data;charset=utf-8; boundary="xyz"', TYPE + "; charset=a"):
        assert boundary_of(kind) == b"xyz"


def test_a_form_that_comes_too_slowly_and_a_client_that_goes() -> None:
    with pytest.raises(Refused) as slow:
        received(TYPE, [b"--xyz\r\n", None], patience_s=0.05)
    assert slow.value.status == 408 and slow.value.close
    with pytest.raises(Refused, match="gone"):
        received(TYPE, [b"--xyz\r\n"], ends=False)


def received(
    kind: str, pieces: list[bytes | None], *, patience_s: float = 5.0, ends: bool = True
) -> list[Head | Piece]:
    """None is a piece that never comes."""
    waiting = list(pieces)

    async def receive() -> dict[str, Any]:
        if not waiting:
            return {"type": "http.disconnect"}
        piece = waiting.pop(0)
        if piece is None:
            await asyncio.Event().wait()
        more = bool(waiting) or not ends
        return {"type": "http.request", "body": piece, "more_body": more}

    async def every() -> list[Head | Piece]:
        return [one async for one in read_form(receive, kind, patience_s)]

    return asyncio.run(every())
