"""The door's link to one replica: what it says, in order, until it says nothing more.

Owns: when a link is lost, and what the replica's clock means here.
May not know: requests, which replica is chosen for one.
Read next: `replica.py` (the other end), `fleet.py`, which has one for each.
"""

from __future__ import annotations

import asyncio
from collections.abc import AsyncIterator, Callable
from dataclasses import replace

from firsthand.cluster.wire import Beat, parted
from firsthand.engine.facts import StepFacts
from firsthand.errors import EngineError
from firsthand.generation.frames import Seen, Stepped
from firsthand.request import TokenEvent
from firsthand.scheduling.picture import Picture
from firsthand.values import dataclass

SILENT_S = 6.0  # it speaks at least once a second


@dataclass(slots=True, eq=False)
class Link:
    """`name` is Ray Serve's, `slot` a small number that the replica has for its life. Its clock has
    to be moved by `ahead_s`: 0 on the same machine."""

    name: str
    slot: int
    here: str  # this machine
    clock: Callable[[], float]
    beat: Beat | None = None
    facts: StepFacts | None = None  # of its last step
    picture: Picture | None = None
    heard_s: float = 0.0
    stepped_s: float = 0.0
    ahead_s: float | None = None
    is_leaving: bool = False  # it gets nothing new

    @property
    def num_blocks(self) -> int:
        facts = None if self.beat is None else self.beat.facts
        return 0 if facts is None else facts.num_blocks

    async def follow(
        self, pieces: AsyncIterator[bytes], on_step: Callable[[Link, Stepped], None]
    ) -> None:
        """Until it ends, which it does not by itself. Raises what ended it; EngineError after a
        silence."""
        self.heard_s = self.clock()
        while True:
            try:
                async with asyncio.timeout(SILENT_S):
                    piece = await anext(pieces, None)
            except TimeoutError:
                raise EngineError(f"nothing was heard of it for {SILENT_S:g} s") from None
            if piece is None:
                raise EngineError("the replica closed its link")
            self.heard_s = self.clock()
            for message in parted(piece):
                match message:
                    case Beat():
                        self._take_beat(message)
                    case Seen(picture=picture):
                        self.picture = picture
                    case Stepped():
                        on_step(self, self._here(message))

    def _take_beat(self, beat: Beat) -> None:
        """A beat is never early: of all that came, the one that took least tells the clocks'
        difference best."""
        self.beat = beat
        ahead_s = 0.0 if beat.machine == self.here else self.heard_s - beat.clock_s
        self.ahead_s = ahead_s if self.ahead_s is None else min(self.ahead_s, ahead_s)

    def _here(self, message: Stepped) -> Stepped:
        """The same, in times of this machine's clock."""
        if not self.ahead_s:
            return message
        events = tuple(_later(event, self.ahead_s) for event in message.events)
        facts = message.facts
        if facts is not None:
            facts = replace(facts, started_s=facts.started_s + self.ahead_s)
        return Stepped(events, facts)


def _later(event: TokenEvent, ahead_s: float) -> TokenEvent:
    return event._replace(at_s=event.at_s + ahead_s)
