"""HTTP mistakes by the hundred, made by a grammar, and held against h11, which is strict.

Owns: proof that no bytes are taken for more requests than a strict parser sees in them.
May not know: how our parser works. Read next: `test_guard_http.py`, mistakes chosen by hand.
"""

from __future__ import annotations

import itertools
import random
from collections.abc import Iterator
from concurrent.futures import ThreadPoolExecutor

import h11
import pytest

from tests.server.guarded import AUTH, CHAT, Guarded, guarded, statuses

NEXT = b"GET /v1/models HTTP/1.1\r\nHost: a\r\n" + AUTH.encode() + b"Connection: close\r\n\r\n"
NEXT_SEEN = b'"object":"list"'
CHUNKS = b"%x\r\n%b\r\n0\r\n\r\n" % (len(CHAT), CHAT)
SIZE = b"%d" % len(CHAT)

LENGTHS = [
    None, SIZE, b"0", b"+" + SIZE, b"-1", b" " + SIZE, SIZE + b" ", b"0" + SIZE, b"0x4c", b"1e2",
    SIZE + b"," + SIZE, SIZE + b", 0", b"", b"\xd9\xa5", SIZE + b"\x00", b"9" * 30, b"4 5", b"\t5",
]  # fmt: skip
CODINGS = [
    None, b"chunked", b"Chunked", b" chunked ", b"chunked,", b",chunked", b"chunked, chunked",
    b"chunked, identity", b"identity", b"gzip, chunked", b"xchunked", b"chunke", b"\x0bchunked",
    b"chunked;q=1", b'"chunked"', b"chunked\x00", b"",
]  # fmt: skip
SIZES = [
    b"%x", b"%X", b"0%x", b"+%x", b"-%x", b"0x%x", b" %x", b"%x ", b"%x\t", b"%x;a=b", b"%x;",
    b"%x;a=\r", b"%x\x00", b"%xg", b"_%x", b"00000000000000000%x", b"%x;a\nb", b"1_%x",
]  # fmt: skip
ENDS = [b"\r\n", b"\n", b"\r", b"\r\r\n", b"\n\n", b" \r\n", b"\x0b\r\n", b"", b"XX"]
# Not here: an empty line before, and more than one space. RFC 9112 (2.2 and 3) lets us take both.
LINES = [
    b"POST %b HTTP/1.1", b"post %b HTTP/1.1", b"POST %bHTTP/1.1", b"POST %b\tHTTP/1.1",
    b"POST %b HTTP/1.1 ", b" POST %b HTTP/1.1", b"POST %b HTTP/1.10", b"POST %b HTTP/01.1",
    b"POST %b http/1.1", b"POST %b HTTP/1,1", b"POST %b HTTP/1.1\x00", b"POST\x0b%b HTTP/1.1",
    b"POST %b", b"POST %b HTTP/", b"POST %b\r HTTP/1.1", b"POST %b#x HTTP/1.1",
    b"POST %b x HTTP/1.1", b"\xffPOST %b HTTP/1.1", b"P\x00ST %b HTTP/1.1",
    b"POST http://a%b HTTP/1.1", b"POST %b HTTP/2.0",
]  # fmt: skip
NAMES = [
    b"X", b"X ", b" X", b"X\t", b"X\x00", b"", b"X\x7f", b"X(", b"\xc3\xa9", b"X:", b"X Y", b'"X"',
    b"X\r\n", b"\nX", b"Content-Length ", b"Transfer-Encoding\x00", b"Content\x0bLength",
]  # fmt: skip
VALUES = [
    b"a",
    b"a\x00b",
    b"a\rb",
    b"a\nb",
    b"a\r\n b",
    b"a\r\n\tb",
    b"\xff",
    b"a\x0bb",
    b"\r",
    b"",
]


def request(
    *fields: bytes,
    line: bytes = LINES[0],
    body: bytes = b"",
    end: bytes = b"\r\n",
) -> bytes:
    head = [
        line.replace(b"%b", b"/v1/chat/completions"),
        b"Host: a",
        AUTH.encode().strip(),
        b"Content-Type: application/json",
        *fields,
    ]
    return end.join(head) + end + end + body


def framings() -> Iterator[bytes]:
    """Every length with every coding, in both orders; the body fits the coding, or the length."""
    for length, coding in itertools.product(LENGTHS, CODINGS):
        fields = [] if length is None else [b"Content-Length: " + length]
        if coding is not None:
            fields.append(b"Transfer-Encoding: " + coding)
        body = CHAT if coding is None else CHUNKS
        yield request(*fields, body=body)
        if len(fields) == 2:
            yield request(*reversed(fields), body=CHAT)


def chunkings() -> Iterator[bytes]:
    chunked = b"Transfer-Encoding: chunked"
    number = b"%x" % len(CHAT)
    for size, end in itertools.product(SIZES, ENDS):
        first = size.replace(b"%x", number).replace(b"%X", number.upper())
        yield request(chunked, body=first + end + CHAT + b"\r\n0\r\n\r\n")
        yield request(chunked, body=number + b"\r\n" + CHAT + end + size.replace(b"%x", b"0"))
    for trailer in (b"A: b\r\n", b"Content-Length: 5\r\n", b"A\r\n", b"A: b\n", b" A: b\r\n"):
        yield request(chunked, body=CHUNKS[:-2] + trailer + b"\r\n")


def heads() -> Iterator[bytes]:
    length = b"Content-Length: " + SIZE
    for line, end in itertools.product(LINES, ENDS[:4]):
        yield request(length, line=line, end=end, body=CHAT)
    for name, value in itertools.product(NAMES, VALUES):
        yield request(name + b": " + value, length, body=CHAT)


def num_requests(data: bytes) -> int:
    """As many as a strict parser sees, whole, before the first mistake."""
    judge = h11.Connection(h11.SERVER)
    judge.receive_data(data)
    judge.receive_data(b"")
    seen = 0
    try:
        while True:
            event = judge.next_event()
            if event is h11.NEED_DATA or isinstance(event, h11.ConnectionClosed):
                return seen
            if isinstance(event, h11.EndOfMessage):
                seen += 1
                judge.send(h11.Response(status_code=200, headers=[("content-length", "0")]))
                judge.send(h11.EndOfMessage())
                judge.start_next_cycle()
            if event is h11.PAUSED:
                return seen
    except (h11.RemoteProtocolError, h11.LocalProtocolError):
        return seen


@pytest.fixture(scope="module")
def server() -> Iterator[Guarded]:
    with guarded(max_body_size=4096, receive_timeout=0.5, max_num_queued_reqs=1000) as found:
        yield found


@pytest.mark.parametrize("make", [framings, chunkings, heads])
def test_s_32_g_28_nothing_is_taken_for_two(server: Guarded, make: type[Iterator[bytes]]) -> None:
    """As many answers as requests, or one more, the last, that refuses and closes. What follows a
    mistake is never seen. A body that never comes is waited for, and then refused."""
    made = list(dict.fromkeys(make()))
    assert len(made) >= 200
    with ThreadPoolExecutor(16) as pool:
        answers = list(pool.map(lambda one: server.exchange(one + NEXT, 5), made))
    num_whole = 0
    for one, answer in zip(made, answers, strict=True):
        seen, told = num_requests(one + NEXT), statuses(answer)
        assert all(status < 500 for status in told), (one, told)
        assert len(told) <= seen + 1, (one, told)
        assert NEXT_SEEN not in answer or seen >= 2, (one, told)
        if len(told) > seen:
            assert 400 <= told[-1] < 500, (one, told)
        num_whole += told == [200, 200]
    assert num_whole, "none was sound, so nothing was shown"
    assert server.get("/health")[0] == 200
    assert not server.running.gate.num_open


@pytest.mark.soak
@pytest.mark.slow
@pytest.mark.parametrize("seed", range(4))
def test_s_32_g_8_bytes_changed_at_random(server: Guarded, seed: int) -> None:
    """Each sound or nearly sound request with a few bytes changed, left out or doubled."""
    draw = random.Random(seed)
    made = [*framings(), *chunkings(), *heads()]

    def changed(_: int) -> bytes:
        data = bytearray(draw.choice(made) + NEXT)
        for _ in range(draw.randint(1, 4)):
            at = draw.randrange(len(data))
            what = draw.choice((b"", bytes([draw.randrange(256)]), bytes(data[at : at + 2]) * 2))
            data[at : at + draw.randint(0, 2)] = what
        return bytes(data)

    chosen = list(map(changed, range(2000)))
    with ThreadPoolExecutor(16) as pool:
        answers = list(pool.map(lambda one: server.exchange(one, 5), chosen))
    for one, answer in zip(chosen, answers, strict=True):
        assert all(status < 500 for status in statuses(answer)), one
        assert len(statuses(answer)) <= num_requests(one) + 1, one
