"""The real scheduler, pools, prefix cache and engine, with a fake model, under a virtual clock.

Owns: `World`, which lets one workload happen and raises the first `Violation`.
May not know: how a workload came about.
Read next: `runner.py`, the fake; `invariants.py`, what is looked at.
"""

from __future__ import annotations

import hashlib
import logging
from collections import Counter
from collections.abc import Callable, Iterator, Sequence
from contextlib import contextmanager
from typing import TypeVar

from firsthand.engine.engine import Engine
from firsthand.engine.facts import StepFacts
from firsthand.errors import InvalidRequest
from firsthand.kvcache.blocks import BlockPool
from firsthand.kvcache.prefix import PrefixCache, block_digest
from firsthand.kvcache.regions import RegionPool
from firsthand.request import Request
from firsthand.scheduling.limits import max_stored_tokens
from firsthand.scheduling.scheduler import Scheduler
from firsthand.scheduling.waiting import StaticQueue
from tests.simulation.invariants import Watch
from tests.simulation.model import Shadow, Violation
from tests.simulation.runner import Clock, FakeRunner
from tests.simulation.workload import Abort, Ask, Setup, Workload

CHECK_EVERY = 16  # steps between two complete checks of the scheduler's tables

T = TypeVar("T")


def weak_digest(parent: bytes, token_ids: Sequence[int]) -> bytes:
    """One of eight, so that nearly all that differs collides."""
    return bytes([block_digest(parent, token_ids)[0] % 8])


class World:
    """`play` it once. `seen` counts what happened, so that a test can ask whether it did."""

    def __init__(self, workload: Workload, *, trace: bool = False) -> None:
        self.setup = setup = workload.setup
        self.seen: Counter[str] = Counter()
        self.watch = Watch(setup, self.seen)
        self.clock = Clock()
        self.prefix: PrefixCache | None = None
        self.regions: RegionPool | None = None
        self._asks = sorted(workload.asks, key=lambda ask: (ask.at_ms, ask.mark))
        self._aborts: list[tuple[float, int, Abort]] = []
        self._facts: list[StepFacts] = []
        self.scheduler = self._build(setup)
        self.runner = FakeRunner(setup, self.watch, self._shadow, self.clock)
        self.runner.facts = lambda: self.scheduler.last_plan
        self.runner.num_free = lambda: setup.num_blocks - self.scheduler.num_used_blocks
        self.runner.meanwhile = lambda: self._abort_due(during=True)
        self._trace = self.runner.trace = hashlib.sha256() if trace else None
        self.engine = Engine(self.scheduler, self.runner, self.clock, self._facts.append)

    @property
    def num_steps(self) -> int:
        """Steps in which something was computed, or ended."""
        return self.watch.num_steps

    @property
    def trace(self) -> str:
        """A digest of every plan and event."""
        return "" if self._trace is None else self._trace.hexdigest()

    def play(self) -> None:
        """To the end of the last request. Raises Violation."""
        with _untold_faults():
            self._play()

    def _play(self) -> None:
        asks, number, clock = self._asks, 0, self.clock
        while True:
            while number < len(asks) and asks[number].at_ms / 1e3 <= clock.now_s:
                self._add(asks[number])
                number += 1
            self._abort_due(during=False)
            if self.engine.has_work:
                self._step()
            elif number < len(asks):
                clock.now_s = asks[number].at_ms / 1e3
            else:
                break
        self._check()
        self.watch.ended(self.scheduler.num_used_blocks)
        if self.regions is not None:
            self.seen["moved"] += self.regions.facts().num_moved

    # ---- parts ---------------------------------------------------------------------------------

    def _build(self, setup: Setup) -> Scheduler:
        size = setup.block_size
        num_slots = setup.num_blocks * size
        memory: BlockPool | RegionPool
        if setup.kind == "regions":
            start_of: Callable[[int], int] = lambda region_id: memory.block_start(region_id)  # type: ignore[union-attr]  # noqa: E731
            self._shadow = Shadow(num_slots, None, start_of)
            memory = self.regions = RegionPool(
                setup.num_blocks, size, self._shadow, clock=self.clock
            )
        else:
            self._shadow = Shadow(num_slots, size, lambda block_id: block_id * size)
            memory = BlockPool(setup.num_blocks, size)
            if setup.kind in ("shared", "static-shared"):
                digest = weak_digest if setup.weak_digest else block_digest
                self.prefix = PrefixCache(memory, digest)
        self._poison_what_is_handed_out(memory)
        queue = StaticQueue(setup.max_sequences) if setup.kind.startswith("static") else None
        return Scheduler(setup.limits, memory, prefix=self.prefix, policy=setup.policy, queue=queue)

    def _poison_what_is_handed_out(self, memory: BlockPool | RegionPool) -> None:
        allocate: Callable[[int], tuple[int, ...] | None] = memory.allocate
        poison, size, grows = self._shadow.poison, memory.block_size, memory.grows

        def poisoned(count: int) -> tuple[int, ...] | None:
            taken = allocate(count)
            for block_id in taken or ():
                poison(block_id, size if grows else count * size)
            return taken

        vars(memory)["allocate"] = poisoned

    def _add(self, ask: Ask) -> None:
        request = ask.request()
        self._send(request, self._refusal(request))
        if request.request_id in self.watch.open:
            raise Violation("I3", f"{request.request_id} is in progress already")
        if self._refusal(request) is not None:
            return
        self.watch.accept(request, ask, self.clock.now_s)
        for abort in ask.aborts:
            self._aborts.append((self.clock.now_s + abort.after_ms / 1e3, ask.mark, abort))
        if ask.twin:
            self._send(request, InvalidRequest)
            self.seen["twins"] += 1

    def _refusal(self, request: Request) -> type[Exception] | None:
        """What must become of a request at the door."""
        limits, setup = self.setup.limits, self.setup
        if len(request.prompt_token_ids) >= limits.context_length:
            return InvalidRequest
        if max_stored_tokens(request, limits) > setup.num_blocks * setup.block_size:
            return InvalidRequest
        return None

    def _send(self, request: Request, expected: type[Exception] | None) -> None:
        refusal: Exception | None = None
        try:
            self.engine.add(request)
        except Exception as error:
            refusal = error
        if not isinstance(refusal, expected or type(None)):
            raise Violation("I3", f"{request}: {refusal!r} in place of {expected}") from refusal
        self.seen["refused"] += expected is not None

    def _abort_due(self, *, during: bool) -> None:
        if not self._aborts:
            return
        later: list[tuple[float, int, Abort]] = []
        for at_s, mark, abort in self._aborts:
            if at_s > self.clock.now_s or abort.during is not during:
                later.append((at_s, mark, abort))
                continue
            name, index = f"r{mark}", abort.index
            events = _sound(self.engine.abort, name, index)
            self.watch.aborted(name, index, events)
            self.seen["aborted during a step"] += during and bool(events)
        self._aborts = later

    def _step(self) -> None:
        events = _sound(self.engine.step)
        self.runner.settle()
        facts = self._facts.pop()
        if not facts.request_ids and not events:
            raise Violation("I10", "it stands still")
        if self._trace is not None:
            self._trace.update(repr(events).encode())
        self.watch.stepped(facts, events, self.clock.now_s)
        if self.watch.num_steps % CHECK_EVERY == 0:
            self._check()

    def _check(self) -> None:
        """The scheduler's own proof, and the size of what is remembered (I1, I2, I9)."""
        try:
            self.scheduler.check_invariants()
        except AssertionError as error:
            invariant = "I2" if "to be written" in str(error) else "I1"
            raise Violation(invariant, str(error)) from error
        if self.prefix is not None and len(self.prefix._entries) > self.setup.num_blocks:
            raise Violation("I9", "more prefixes are known than there are blocks")


def _sound(call: Callable[..., T], *arguments: object) -> T:
    """Between the engine and its callers nothing is raised."""
    try:
        return call(*arguments)
    except Exception as error:
        raise Violation("I3", f"the engine raised {error!r}") from error


@contextmanager
def _untold_faults() -> Iterator[None]:
    """The engine logs each failed step; here they fail on purpose, by the thousand."""
    log = logging.getLogger("firsthand.engine")
    before = log.level
    log.setLevel(logging.CRITICAL)
    try:
        yield
    finally:
        log.setLevel(before)
