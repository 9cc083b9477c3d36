"""One request on its way to a replica, and to another one if that is lost.

Owns: where it is, how often it was sent, and its end.
May not know: which replicas there are, how one is chosen.
Read next: `fleet.py`, which has them; `rotation.py`, which is told what became of it.

It is sent again only when a replica was lost with it, and `MAX_LOST` times at most: a request that
takes engines down shall not take them all. It is a failure of the replica when that neither gives a
first token within `FIRST_S` nor makes any step for anybody meanwhile.
"""

from __future__ import annotations

import asyncio
from asyncio import FIRST_COMPLETED
from collections.abc import Callable, Sequence
from dataclasses import replace

from firsthand.checks import shown
from firsthand.cluster.calls import Calls, look_at
from firsthand.cluster.link import SILENT_S
from firsthand.cluster.rotation import Rotation, asked_of
from firsthand.cluster.ticket import Ticket
from firsthand.cluster.wire import Begin, End, packed, unpacked
from firsthand.errors import EngineLost, EngineUnavailable, FirsthandError
from firsthand.generation.frames import from_fault
from firsthand.generation.remote_stream import RemoteStream
from firsthand.request import Finish, FinishReason, TokenEvent

MAX_LOST = 2
FIRST_S = 15.0
NOBODY_S = 60.0  # for a replica that takes it
LOOK_S = 1.0
AGAIN_S = 0.1  # after a replica that did not take it


class Sending:
    """`replica` is where it is or, until `is_routed`, where it probably will be. `last_step_s` is
    when a replica last made a step, `next_id` gives the id under which it is sent."""

    def __init__(
        self,
        stream: RemoteStream,
        rotation: Rotation,
        clock: Callable[[], float],
        last_step_s: Callable[[str], float],
        next_id: Callable[[Sending], str],
        on_end: Callable[[Sending], None],
    ) -> None:
        self.stream = stream
        self.wire_id = ""
        self.replica = ""
        self.is_routed = False
        self.num_sent = 0
        self._asked = asked_of(stream.request, rotation.routing)
        self._rotation = rotation
        self._clock = clock
        self._last_step_s, self._next_id, self._on_end = last_step_s, next_id, on_end
        self._had: list[str] = []  # replicas that took it
        self._num_lost = 0
        self._free_s = clock()  # since when no replica has it
        self._sent_s = 0.0
        self._is_answered = self._has_failed = self._is_over = False
        self._unwanted: set[int] = set()
        self._moved = _future()

    async def send(self, calls: Calls) -> None:
        """Until it has ended. Nobody is left waiting."""
        try:
            while not self._is_over:
                fault = await self._attempt(calls)
                if fault is None:
                    return
                if not isinstance(fault, EngineUnavailable) or self._num_lost > MAX_LOST:
                    self.fail(fault)
                elif not self.is_routed:
                    await asyncio.sleep(AGAIN_S)
        except Exception as error:
            self.fail(EngineUnavailable(f"the way to the replicas failed: {shown(error)}"))

    def is_at(self, name: str) -> bool:
        """Or on its way there: a replica that is cut off answers no call either."""
        return self.replica == name

    def moves(self, fault: FirsthandError) -> None:
        """Its replica is lost."""
        if not self._moved.done():
            self._moved.set_result(fault)

    def fail(self, fault: FirsthandError) -> None:
        if not self._is_over:
            self.stream.fail(fault)
            self._end()

    def wants_end(self, index: int | None) -> None:
        """Of one sequence, or of all: at the replica, which is told by the caller; or here, while
        none has it."""
        self._unwanted |= set(self.stream.open_indexes) if index is None else {index}
        if not self.is_routed:
            self._end_unwanted()

    def take(self, event: TokenEvent, name: str) -> None:
        """From the replica that has it. The first event can be here before its receipt."""
        if not self.is_routed:
            self._routed(name)
        if not self._is_answered:
            self._is_answered = True
            self._rotation.answered(name, self._asked, self._clock() - self._sent_s)
        if self.stream.put(event):
            self._end()

    async def _attempt(self, calls: Calls) -> FirsthandError | None:
        """Send it, and wait for its end, None; or for what became of its replica."""
        self.wire_id = self._next_id(self)
        self.num_sent += 1
        self.is_routed = self._is_answered = self._has_failed = False
        self.replica, self._moved = "", _future()
        self._end_unwanted()
        if self._is_over:
            return None
        self._sent_s = self._clock()
        call = asyncio.ensure_future(calls.run(Ticket(self._begin(), self._order, self._routed)))
        call.add_done_callback(look_at)
        fault: FirsthandError | None = EngineLost("it was given up")
        try:
            fault = await self._outcome(call)
        finally:
            if self.is_routed and fault is not None:
                self._num_lost += 1
                self._free_s = self._clock()
            if self.replica:
                self._rotation.ended(
                    self.replica,
                    self._asked,
                    answered=self._is_answered,
                    failed=self._has_failed,
                )
            if fault is not None or not self.is_routed or self.stream.has_failed:
                call.cancel()
        return fault

    async def _outcome(self, call: asyncio.Future[bytes]) -> FirsthandError | None:
        moved = self._moved
        while not moved.done():
            await asyncio.wait((call, moved), timeout=LOOK_S, return_when=FIRST_COMPLETED)
            if moved.done():
                break
            if call.done():
                fault, taken = _fault_of(call)
                if fault is not None:
                    self._has_failed = isinstance(fault, EngineUnavailable)
                    self.is_routed &= taken
                    return fault
                await asyncio.wait((moved,), timeout=SILENT_S)  # its last events, by the link
                return moved.result() if moved.done() else EngineLost("its end did not come")
            now_s = self._clock()
            waited_s = now_s - self._sent_s
            if not self.is_routed and now_s - self._free_s > NOBODY_S:
                self.fail(EngineUnavailable(f"no replica took it for {NOBODY_S:.0f} s"))
            elif waited_s > FIRST_S and self._is_forgotten:
                self._has_failed = True
                return EngineLost(f"its replica made no step for {waited_s:.0f} s")
        return moved.result()

    @property
    def _is_forgotten(self) -> bool:
        """Its replica has it, and has made no step since, for whomever."""
        waits = self.is_routed and not self._is_answered
        return waits and self._last_step_s(self.replica) < self._sent_s

    def _begin(self) -> bytes:
        request = self.stream.rest()
        late_s = request.deadline_s
        left_s = None if late_s is None else late_s - self._clock()
        return packed(Begin(replace(request, request_id=self.wire_id, deadline_s=None), left_s))

    def _order(self, names: Sequence[str]) -> Sequence[str]:
        """Another one than those that were lost with it, if there is one."""
        fresh = [name for name in names if name not in self._had]
        order = self._rotation.order(self._asked, fresh) if fresh else []
        order = order or self._rotation.order(self._asked, names)
        if order:
            self._place(order[0])
        return order

    def _routed(self, name: str) -> None:
        if not self.is_routed:
            self._place(name)
            self.is_routed = True
            self._had.append(name)

    def _place(self, name: str) -> None:
        """It counts there from now on, so that who comes next is told of it."""
        if name != self.replica:
            if self.replica:
                self._rotation.ended(self.replica, self._asked, answered=False)
            self.replica = name
            self._rotation.sent(name, self._asked)

    def _end_unwanted(self) -> None:
        request, now_s = self.stream.request, self._clock()
        cancelled = Finish(FinishReason.CANCELLED)
        for index in sorted(self._unwanted.intersection(self.stream.open_indexes)):
            event = TokenEvent(request.request_id, None, now_s, finish=cancelled, index=index)
            if self.stream.put(event):
                self._end()

    def _end(self) -> None:
        self._is_over = True
        if not self._moved.done():
            self._moved.set_result(None)
        self._on_end(self)


def only(name: str) -> Callable[[Sequence[str]], Sequence[str]]:
    """For a ticket to one replica."""
    return lambda names: [name] if name in names else []


def _future() -> asyncio.Future[FirsthandError | None]:
    return asyncio.get_running_loop().create_future()


def _fault_of(call: asyncio.Future[bytes]) -> tuple[FirsthandError | None, bool]:
    """Why a call ended without the request's end, and whether a replica had taken it."""
    error = None if call.cancelled() else call.exception()
    if isinstance(error, FirsthandError):
        return error, False
    if call.cancelled() or error is not None:
        return EngineLost(f"the call to its replica was cut: {type(error).__name__}"), True
    end = unpacked(call.result(), End)
    return (None if end.fault is None else from_fault(end.fault)), end.taken
