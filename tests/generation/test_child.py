"""The engine's process alone, driven by frames over its socket."""

from __future__ import annotations

import os
import select
import signal
import socket
import subprocess
import sys
import time
from collections.abc import Iterator
from pathlib import Path

import pytest

from firsthand.errors import InvalidRequest, ModelNotFound
from firsthand.generation.frames import (
    Abort,
    Declined,
    Failed,
    FromChild,
    LoadModel,
    Ping,
    Pong,
    Ready,
    Stepped,
    Submit,
    ToChild,
    encode,
    from_fault,
    parent_reader,
)
from firsthand.generation.load_options import LoadOptions
from firsthand.request import FinishReason, Request, SamplingParams, StopRules

pytestmark = pytest.mark.native

WAIT_S = 90.0
MODULE = "firsthand.generation.child_start"
OPTIONS = LoadOptions(max_context=512, threads=1)


class Child:
    """The process, and our end of its connection."""

    def __init__(self) -> None:
        self.socket, theirs = socket.socketpair()
        self.socket.settimeout(WAIT_S)
        with theirs:
            self.process = subprocess.Popen(
                [sys.executable, "-m", MODULE, str(theirs.fileno()), str(os.getpid())],
                pass_fds=[theirs.fileno()],
                stdin=subprocess.DEVNULL,
                stdout=subprocess.DEVNULL,
                stderr=subprocess.DEVNULL,
            )
        self._reader = parent_reader()
        self._messages: list[FromChild] = []

    def send(self, *messages: ToChild) -> None:
        self.socket.sendall(b"".join(encode(message) for message in messages))

    def get(self) -> FromChild:
        while not self._messages:
            data = self.socket.recv(1 << 20)
            assert data, "the child closed the connection"
            self._messages += self._reader.feed(data)
        return self._messages.pop(0)

    def until(self, kind: type[FromChild]) -> list[FromChild]:
        """The messages up to the first of a kind, that included."""
        found = [self.get()]
        while not isinstance(found[-1], kind):
            found.append(self.get())
        return found

    def load(self, folder: Path) -> Child:
        self.send(LoadModel(str(folder), OPTIONS))
        assert isinstance(self.until(Ready)[-1], Ready)
        return self

    def ended(self) -> int:
        return self.process.wait(WAIT_S)

    def close(self) -> None:
        self.socket.close()
        self.process.kill()
        self.process.wait()


@pytest.fixture
def child() -> Iterator[Child]:
    one = Child()
    yield one
    one.close()


def request(
    request_id: str, max_tokens: int, *, n: int = 1, logprobs: int | None = None
) -> Request:
    sampling = SamplingParams(temperature=0.0 if n == 1 else 1.0, logprobs=logprobs)
    stop = StopRules(max_tokens, ignore_end=True)
    return Request(request_id, (1, 2, 3), sampling, stop, seed=1, n=n)


def test_steps_go_out_and_the_end_of_the_connection_is_the_end(
    child: Child, micro_folder: Path
) -> None:
    child.load(micro_folder)
    child.send(Submit(request("a", 3)), Submit(request("b", 2)))
    steps = [child.get() for _ in range(3)]
    events = [event for step in steps if isinstance(step, Stepped) for event in step.events]
    assert [event.request_id for event in events] == ["a", "b", "a", "b", "a"]
    assert [event.finish is not None for event in events] == [False, False, False, True, True]
    child.send(Ping(7))
    pong = child.get()
    assert isinstance(pong, Pong) and pong.number == 7 and pong.peak_rss_bytes > 1 << 20
    child.socket.close()
    assert child.ended() == 0


def test_the_end_of_the_connection_is_seen_within_a_step(child: Child, micro_folder: Path) -> None:
    child.load(micro_folder)
    child.send(Submit(request("a", 500)))
    child.get()
    child.socket.close()
    started_s = time.monotonic()
    assert child.ended() == 0
    assert time.monotonic() - started_s < 2.0


def test_an_abort_frees_the_blocks_before_the_next_step(child: Child, micro_folder: Path) -> None:
    child.load(micro_folder)
    child.send(Submit(request("a", 400)), Submit(request("b", 400)))
    steps = [child.get()]
    child.send(Abort("a"))
    while not isinstance(steps[-1], Stepped) or steps[-1].facts is not None:
        steps.append(child.get())
    [event] = steps[-1].events
    assert event.finish is not None and event.finish.reason is FinishReason.CANCELLED
    after = child.get()
    assert isinstance(after, Stepped) and after.facts is not None
    assert after.facts.request_ids == ("b",)
    num_stored = 3 + len(steps) - 1  # the last drawn token is not stored yet
    assert after.facts.num_used_blocks == -(-num_stored // 16)


def until_asleep(pid: int) -> None:
    """Until it has waited for something for a while: on a busy machine a process that has work may
    not get to it for seconds, but then it does not wait."""
    num_seen, until_s = 0, time.monotonic() + 3 * WAIT_S
    while num_seen < 30:
        assert time.monotonic() < until_s, "it never waits"
        time.sleep(0.02)
        stat = Path(f"/proc/{pid}/stat").read_text(encoding="utf-8")
        num_seen = num_seen + 1 if stat.rpartition(")")[2].split()[0] == "S" else 0


@pytest.mark.skipif(sys.platform != "linux", reason="looks into /proc")
def test_r_a_reader_that_does_not_read_never_holds_the_steps_up(
    child: Child, micro_folder: Path
) -> None:
    """The socket takes a small part of it; the steps end long before the first byte is read."""
    child.load(micro_folder)
    child.send(Submit(request("a", 300, n=8, logprobs=20)))
    select.select([child.socket], [], [], WAIT_S)
    until_asleep(child.process.pid)
    read_s = time.perf_counter()
    steps: list[Stepped] = []
    num_open = 8
    while num_open:
        message = child.get()
        assert isinstance(message, Stepped)
        steps.append(message)
        num_open -= sum(event.finish is not None for event in message.events)
    assert max(event.at_s for step in steps for event in step.events) < read_s
    room = child.socket.getsockopt(socket.SOL_SOCKET, socket.SO_SNDBUF)
    assert sum(len(encode(step)) for step in steps) > 2 * room
    assert sum(len(step.events) for step in steps) == 8 * 300


def test_what_the_engine_refuses_is_told(child: Child, micro_folder: Path) -> None:
    child.load(micro_folder)
    child.send(Submit(Request("a", (999,), SamplingParams(), StopRules(1), seed=1)), Ping(1))
    refused = child.get()
    assert isinstance(refused, Declined) and refused.request_id == "a"
    error = from_fault(refused.fault)
    assert isinstance(error, InvalidRequest) and error.field == "prompt[0]"
    assert isinstance(child.get(), Pong)


def test_a_load_that_fails_is_told_with_its_class(child: Child, tmp_path: Path) -> None:
    child.send(LoadModel(str(tmp_path / "none"), OPTIONS))
    failed = child.until(Failed)[-1]
    assert isinstance(failed, Failed)
    assert isinstance(from_fault(failed.fault), ModelNotFound)
    assert child.ended() == 1


@pytest.mark.parametrize("data", [b"\xff" * 64, encode(Ping(1)), b"\0\0\0\1\xc1"])
def test_nonsense_ends_the_process_with_a_word(child: Child, data: bytes) -> None:
    child.socket.sendall(data)
    assert isinstance(child.get(), Failed)
    assert child.ended() == 1


def test_only_the_parent_ends_it(child: Child, micro_folder: Path) -> None:
    """A terminal or a service manager sends its signal to every process; the parent drains."""
    child.load(micro_folder)
    for sent in (signal.SIGINT, signal.SIGTERM, signal.SIGHUP):
        child.process.send_signal(sent)
    child.send(Ping(1))
    assert isinstance(child.get(), Pong)


PARENT = f"""MODULE = {MODULE!r}"""
PARENT += """
import os, socket, subprocess, sys, time
from firsthand.generation.frames import LoadModel, Ready, encode, parent_reader
from firsthand.generation.load_options import LoadOptions
ours, theirs = socket.socketpair()
child = subprocess.Popen(
    [sys.executable, "-m", MODULE, str(theirs.fileno()), str(os.getpid())],
    pass_fds=[theirs.fileno()],
)
theirs.close()
ours.sendall(encode(LoadModel(sys.argv[1], LoadOptions(threads=1))))
reader = parent_reader()
while not any(isinstance(message, Ready) for message in reader.feed(ours.recv(1 << 20))):
    pass
if sys.argv[2] == "leaked":  # the connection outlives the parent
    os.set_inheritable(ours.fileno(), True)
    subprocess.Popen(["sleep", "5"], close_fds=False)
print(child.pid, flush=True)
time.sleep(60)
"""


@pytest.mark.parametrize("connection", ["closed", "leaked"])
def test_it_never_outlives_its_parent(micro_folder: Path, connection: str) -> None:
    parent = subprocess.Popen(
        [sys.executable, "-c", PARENT, str(micro_folder), connection],
        stdout=subprocess.PIPE,
        stderr=subprocess.DEVNULL,
    )
    assert parent.stdout is not None
    with parent.stdout:
        pid = int(parent.stdout.readline())
        parent.kill()
        parent.wait()
    until_s = time.monotonic() + 2.0
    while _lives(pid):
        assert time.monotonic() < until_s
        time.sleep(0.01)


def _lives(pid: int) -> bool:
    """A process that has ended, but whose new parent has not asked, does not."""
    try:
        stat = Path(f"/proc/{pid}/stat").read_text()
    except FileNotFoundError:
        return False
    return stat.rpartition(")")[2].split()[0] not in ("Z", "X")
