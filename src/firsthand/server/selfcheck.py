"""The self-check: a fixed input through the real path, compared with golden tokens.

Owns: when it runs, what it compares, what it has seen last.
May not know: who recorded golden tokens, how an answer is computed.
Read next: `generation/golden.py`, `lifecycle.py`.

The answer must be equal token by token, which the engine promises whatever else is in the batch.
A wrong one closes the door until a later check is right again. An answer that does not come in time
says nothing about the tokens; whether the engine moves is another check's business.
"""

from __future__ import annotations

import asyncio
import logging
from collections.abc import Awaitable, Callable, Sequence

from firsthand.errors import FirsthandError
from firsthand.generation.golden import golden_key, read_golden
from firsthand.generation.load_options import LoadOptions
from firsthand.release.record import release_of
from firsthand.server.health import Check
from firsthand.server.logs import tell
from firsthand.values import dataclass

RETRY_S = 5.0  # after a wrong answer
LOOK_S = 0.25  # whether the model was loaded anew, or one is due
TIMEOUT_S = 60.0

# From the prompt and a number of tokens to the tokens that the engine gives.
Answer = Callable[[Sequence[int], int], Awaitable[Sequence[int]]]


@dataclass(slots=True)
class SelfCheck:
    """`golden` is the prompt and its tokens; None: nothing is on record, once it was looked up."""

    golden: tuple[Sequence[int], Sequence[int]] | None
    answer: Answer
    clock: Callable[[], float]
    interval_s: float
    looked_up: bool = False
    right: bool | None = None  # None: never compared
    checked_s: float | None = None
    num_wrong: int = 0
    why_not: str = ""
    loads: Callable[[], int | None] = lambda: 0  # how often it was loaded; None: it is asleep

    @property
    def failed(self) -> bool:
        return self.right is False

    def check(self) -> Check:
        """For readiness. Without a record nothing is claimed, and it says so."""
        if not self.looked_up:
            return Check(False, "golden tokens are being looked up")
        if self.golden is None:
            return Check(True, "no golden tokens are on record; see serve --record-golden")
        age_s = None if self.checked_s is None else self.clock() - self.checked_s
        if self.right is None:
            waits = self.interval_s > 0 and self.loads() is not None
            return Check(not waits, self.why_not or "not compared yet", age_s)
        return Check(self.right, "equal" if self.right else "the tokens differ", age_s)

    async def look_up(self, model: str, options: LoadOptions) -> None:
        """Find what is on record for the model as it is run."""
        try:
            self.golden = await asyncio.to_thread(_find, model, options)
        except FirsthandError as error:
            tell("golden_unknown", f"no golden tokens: {error}", logging.WARNING)
        self.looked_up = True

    async def run_once(self) -> None:
        if self.golden is None:
            return
        prompt, expected = self.golden
        try:
            async with asyncio.timeout(TIMEOUT_S):
                tokens = await self.answer(prompt, len(expected))
        except (TimeoutError, FirsthandError) as fault:
            self.why_not = f"no answer: {type(fault).__name__}"
            tell("selfcheck_unanswered", "the self-check got no answer", logging.WARNING)
            return
        was, self.right = self.right, list(tokens) == list(expected)
        self.checked_s = self.clock()
        if not self.right:
            self.num_wrong += 1
            tell("selfcheck_wrong", "the self-check's tokens differ", logging.ERROR)
        elif was is not True:
            tell("selfcheck_right", "the self-check's tokens are those on record")

    async def run(self) -> None:
        """For ever; the first one is at once, and after each load. One that is asleep is let be."""
        num_loads, due_s = -1, 0.0
        while self.golden is not None and self.interval_s > 0:
            loads = self.loads()
            if loads is not None and (loads != num_loads or self.clock() >= due_s):
                await self.run_once()
                num_loads = loads
                wait_s = self.interval_s if self.right else min(RETRY_S, self.interval_s)
                due_s = self.clock() + wait_s
            await asyncio.sleep(min(LOOK_S, self.interval_s))


def _find(model: str, options: LoadOptions) -> tuple[tuple[int, ...], tuple[int, ...]] | None:
    release = release_of(model)
    if release is not None and release.golden is not None:
        return tuple(release.golden["prompt"]), tuple(release.golden["tokens"])
    key = golden_key(model, options, hash_now=False)
    found = None if key is None else read_golden(key)
    return None if found is None else (found.prompt, found.tokens)
