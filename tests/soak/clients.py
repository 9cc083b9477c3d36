"""Many clients in a process of their own: they ask, read, vanish or dawdle, and tell what they saw.

Owns: the load, open loop or closed; one line of JSON with an outcome per request at the end.
May not know: what is expected. It ends by itself, after `limit_s` at the latest.
Read next: `serving.py`, which starts it; `test_overload.py`.

    python -m tests.soak.clients '{"port": 8000, "num": 100, "per_s": 50}'
"""

from __future__ import annotations

import asyncio
import json
import random
import resource
import sys
import time
from dataclasses import asdict, dataclass, field

READ_BYTES = 65536
STATES = ("connected", "half a head", "asked", "first byte", "reading")


@dataclass(frozen=True)
class Load:
    """`per_s` requests a second, `num` in all, whether or not any is answered; or, with `workers`,
    each worker asks again when it was answered, for `lasts_s`.

    `vanish`: each client goes at a random moment. `read_per_s`, `send_per_s`: bytes that a client
    reads, or sends, in a second; 0: as fast as it can.
    """

    port: int
    num: int = 0
    per_s: float = 0.0  # 0: all at once
    workers: int = 0
    lasts_s: float = 0.0
    max_tokens: int = 8
    prompt: str = "abc"
    stream: bool = True
    vanish: bool = False
    read_per_s: int = 0
    send_per_s: float = 0.0
    headers: dict[str, str] = field(default_factory=dict)
    body: dict[str, object] = field(default_factory=dict)
    seed: int = 0
    limit_s: float = 300.0


@dataclass
class Outcome:
    """Times are seconds since the client began to connect; `at_s` since the load began. `ended`:
    done, refused, error (told in the stream), cut, or vanished on purpose."""

    at_s: float = 0.0
    status: int = 0
    code: str = ""
    retry_after: str = ""
    body_bytes: int = 0
    head_s: float = 0.0
    total_s: float = 0.0
    ended: str = "cut"
    state: str = ""


class Client:
    def __init__(self, load: Load, began_s: float) -> None:
        self._load = load
        self._began_s = began_s
        self._draw = random.Random(load.seed)

    async def ask(self) -> Outcome:
        started_s = time.perf_counter()
        outcome = Outcome(at_s=started_s - self._began_s)
        outcome.state = self._draw.choice(STATES) if self._load.vanish else ""
        writer = None
        try:
            reader, writer = await asyncio.open_connection("127.0.0.1", self._load.port)
            await self._talk(reader, writer, outcome, started_s)
        except (OSError, asyncio.IncompleteReadError):
            pass
        finally:
            if writer is not None:
                writer.transport.abort()
        outcome.total_s = time.perf_counter() - started_s
        return outcome

    async def _talk(
        self,
        reader: asyncio.StreamReader,
        writer: asyncio.StreamWriter,
        outcome: Outcome,
        started_s: float,
    ) -> None:
        request = self._request()
        if outcome.state in ("connected", "half a head"):
            writer.write(request[:40] if outcome.state == "half a head" else b"")
            await asyncio.sleep(self._draw.random() * 0.05)
            outcome.ended = "vanished"
            return
        if self._load.send_per_s:
            sending = asyncio.create_task(self._send_slowly(writer, request))
            sending.add_done_callback(lambda task: task.cancelled() or task.exception())
        else:
            writer.write(request)
        if outcome.state == "asked":
            await asyncio.sleep(self._draw.random() * 0.05)
            outcome.ended = "vanished"
            return
        head = await reader.readuntil(b"\r\n\r\n")
        outcome.head_s = time.perf_counter() - started_s
        outcome.status = int(head[9:12])
        for line in head.decode("latin-1").splitlines():
            if line.lower().startswith("retry-after:"):
                outcome.retry_after = line.partition(":")[2].strip()
        if outcome.state == "first byte":
            outcome.ended = "vanished"
            return
        await self._read(reader, outcome)

    async def _send_slowly(self, writer: asyncio.StreamWriter, request: bytes) -> None:
        """A byte at a time, while the server takes them."""
        for at in range(len(request)):
            if writer.transport.is_closing():
                return
            writer.write(request[at : at + 1])
            await asyncio.sleep(1.0 / self._load.send_per_s)

    async def _read(self, reader: asyncio.StreamReader, outcome: Outcome) -> None:
        text = bytearray()
        stop_after = self._draw.randint(1, 300) if outcome.state == "reading" else 0
        rate = self._load.read_per_s
        while part := await reader.read(rate // 10 or READ_BYTES):
            text += part
            if 0 < stop_after <= len(text):
                outcome.ended = "vanished"
                return
            if rate:
                await asyncio.sleep(0.1)
        outcome.body_bytes = len(text)
        if b'"error"' in text:
            outcome.ended = "refused" if outcome.status != 200 else "error"
            found = text.rpartition(b'"code":')[2].strip()
            outcome.code = found.partition(b"}")[0].strip(b'" ').decode()
        elif outcome.status == 200 and (not self._load.stream or b"data: [DONE]" in text):
            outcome.ended = "done"

    def _request(self) -> bytes:
        load = self._load
        body = json.dumps(
            {
                "prompt": load.prompt,
                "max_tokens": load.max_tokens,
                "ignore_eos": True,
                "stream": load.stream,
                "seed": 1,
            }
            | load.body
        )
        more = "".join(f"{name}: {value}\r\n" for name, value in load.headers.items())
        return (
            "POST /v1/completions HTTP/1.1\r\nHost: localhost\r\nConnection: close\r\n"
            f"Content-Type: application/json\r\nContent-Length: {len(body)}\r\n{more}\r\n{body}"
        ).encode()


async def play(load: Load) -> list[Outcome]:
    began_s = time.perf_counter()
    client = Client(load, began_s)
    outcomes: list[Outcome] = []

    async def work() -> None:
        while time.perf_counter() - began_s < load.lasts_s:
            outcomes.append(await client.ask())

    if load.workers:
        await asyncio.gather(*(work() for _ in range(load.workers)))
        return outcomes
    asking: list[asyncio.Task[Outcome]] = []
    for number in range(load.num):
        due_s = began_s + (number / load.per_s if load.per_s else 0.0)
        await asyncio.sleep(max(0.0, due_s - time.perf_counter()))
        asking.append(asyncio.create_task(client.ask()))
    return list(await asyncio.gather(*asking))


def main(arguments: list[str]) -> None:
    load = Load(**json.loads(arguments[0]))
    most = resource.getrlimit(resource.RLIMIT_NOFILE)[1]
    resource.setrlimit(resource.RLIMIT_NOFILE, (most, most))
    outcomes = asyncio.run(asyncio.wait_for(play(load), load.limit_s))
    print(json.dumps([asdict(one) for one in outcomes]))


if __name__ == "__main__":
    main(sys.argv[1:])
