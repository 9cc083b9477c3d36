"""From a body to answers that run: by the model that it names, or by one of two.

Owns: the order enter → prepare → submit, and of a cascade the whole way from its small model to the
large one: what is held back, what is given up, what is noted of it.
May not know: the form of a body or of an answer, how a confidence is worked out.
Read next: `submitting.py`, `../cascade.py`; `chat.py`, which prepares.

Nothing of the small one's answer is sent before it is certain that all of it will be. So a client
sees the answer of one model, from the first byte to the last, and where the large one gives it, it
is as if that one had been asked alone. Both prompts are made first: what one of the two would
refuse is refused, whoever would have answered.
"""

from __future__ import annotations

from collections.abc import Awaitable, Callable, Sequence
from dataclasses import replace
from typing import Generic, TypeVar

from starlette.requests import Request

from firsthand.cascade.confidence import Hearing
from firsthand.cascade.decision import TOO_LONG, UNCALIBRATED, Decision, Told
from firsthand.errors import ContextLengthExceeded
from firsthand.generation.calibrated import check_options, decided, spent_of
from firsthand.generation.completion import Chunk
from firsthand.generation.options import Options
from firsthand.generation.service import Prompt, Service
from firsthand.server.answers import Answers, unless_gone
from firsthand.server.asides import take_request_id
from firsthand.server.cascade import Cascade, check_prompts
from firsthand.server.guard.call import call_of
from firsthand.server.headers import at_end
from firsthand.server.house import House
from firsthand.server.routes.submitting import Asked, submit
from firsthand.server.wire.base import Sampling
from firsthand.server.writing import manifest
from firsthand.values import dataclass

R = TypeVar("R")
FIELD = "firsthand_cascade"  # of a reply


@dataclass(frozen=True, slots=True)
class Wish:
    """Whom a body asks; see `Asked`."""

    endpoint: str
    model: str | None
    body: Sampling


@dataclass(frozen=True, slots=True)
class Draft(Generic[R]):
    """What a body becomes for one model; `reply` makes its answers into the route's form."""

    prompts: Sequence[Prompt]
    options: Options
    reply: Callable[[Asked, Answers], R]
    keeps_markers: bool = False


@dataclass(frozen=True, slots=True)
class Begun(Generic[R]):
    """A reply that can be written, and the headers that say what answers."""

    reply: R
    headers: dict[str, str]


Prepare = Callable[[Service], Awaitable[Draft[R]]]


async def answered(house: House, request: Request, wish: Wish, prepare: Prepare[R]) -> Begun[R]:
    """Raises InvalidRequest, Refused and what a service raises; then nothing runs."""
    take_request_id(request.scope, wish.body.request_id)
    cascade = house.cascades.get(wish.model or "")
    if cascade is not None:
        return await _Attempt(house, request, wish, cascade).made(prepare)
    name, service = await house.enter(request, wish.model)
    return _begun(house, request, wish, (name, service), await prepare(service))[0]


def _begun(
    house: House,
    request: Request,
    wish: Wish,
    whom: tuple[str, Service],
    draft: Draft[R],
    *,
    scored: bool = False,
) -> tuple[Begun[R], Answers]:
    name, service = whom
    asked = Asked(
        wish.endpoint, name, service, wish.body, keeps_markers=draft.keeps_markers, scored=scored
    )
    answers = submit(house, request, asked, draft.prompts, draft.options)
    return Begun(draft.reply(asked, answers), manifest(service)), answers


class _Attempt:
    """One request to a cascade."""

    def __init__(self, house: House, request: Request, wish: Wish, cascade: Cascade) -> None:
        self._house, self._request, self._wish = house, request, wish
        self._cascade = cascade
        self._decision: Decision | None = None
        self._small: Answers | None = None
        self._large: Answers | None = None
        self._attempt_ms = 0.0
        self._call = call_of(request.scope)

    async def made(self, prepare: Prepare[R]) -> Begun[R]:
        cascade, house = self._cascade, self._house
        small, large = cascade.pair(house.services)
        of_large = await prepare(large)
        check_options(of_large.options)
        check_prompts(of_large.prompts)
        at_end(self._request.scope, self._note)
        threshold = cascade.calibration.confidence
        began_s = large.clock()
        kept: Begun[R] | None = None
        if cascade.is_calibrated(house.services):
            try:
                kept = await self._tried(small, prepare)
            except ContextLengthExceeded:
                self._decision = Decision(TOO_LONG, threshold)
        else:
            self._decision = Decision(UNCALIBRATED, threshold)
        if kept is not None:
            return self._told(kept, self._small)
        now_s = large.clock()
        self._attempt_ms = (now_s - began_s) * 1e3
        self._call.attempt_ms = self._attempt_ms
        await house.enter_service(self._request, large)
        now_s = large.clock()
        prompts = [replace(one, called_s=now_s, tokenized_s=now_s) for one in of_large.prompts]
        draft = replace(of_large, prompts=prompts)
        begun, self._large = self._begin(large, draft, scored=False)
        return self._told(begun, self._large)

    async def _tried(self, small: Service, prepare: Prepare[R]) -> Begun[R] | None:
        """The small one's reply; None: it is not sure enough. Unless it is kept, the small one is
        let go here: it may have to leave, for there to be room for the large one."""
        let_go = await self._house.enter_service(self._request, small)
        kept: Begun[R] | None = None
        try:
            begun, answers = self._begin(small, await prepare(small), scored=True)
            self._small = answers
            self._decision = await self._heard(answers)
            if self._decision.escalated:
                self._house.recorder.gave_up(small.model.name, await answers.give_up())
                self._call.forget_answer()
            else:
                kept = begun
        finally:
            if kept is None:
                let_go()
        return kept

    async def _heard(self, answers: Answers) -> Decision:
        calibration = self._cascade.calibration
        hearing = Hearing(calibration.rule(), answers.num_choices)

        def enough(index: int, chunk: Chunk) -> bool:
            scores = [one.logprob for one in chunk.logprobs or ()]
            return hearing.add(index, scores, ended=chunk.completion is not None) is not None

        await unless_gone(self._request, answers.hold(enough))
        return decided(calibration, hearing)

    def _begin(
        self, service: Service, draft: Draft[R], *, scored: bool
    ) -> tuple[Begun[R], Answers]:
        whom = (self._cascade.name, service)
        return _begun(self._house, self._request, self._wish, whom, draft, scored=scored)

    def _told(self, begun: Begun[R], answers: Answers | None) -> Begun[R]:
        decision = self._decision
        assert decision is not None and answers is not None, "it is known who answers"
        answers.more = lambda: {FIELD: self._as_told().to_dict()}
        parts = ["large" if decision.escalated else "small", f"reason={decision.reason}"]
        if decision.confidence is not None:
            parts.append(f"confidence={decision.confidence:.4f}")
        return replace(begun, headers={**begun.headers, "x-cascade": "; ".join(parts)})

    def _as_told(self) -> Told:
        found, calibration = self._cascade.found, self._cascade.calibration
        small, large = (
            None if answers is None else spent_of(replace(side, model=name), answers.usage)
            for side, name, answers in (
                (calibration.small, found.small, self._small),
                (calibration.large, found.large, self._large),
            )
        )
        return Told(self._cascade.name, self._decision, small, large, self._attempt_ms)

    def _note(self) -> None:
        """At the request's end."""
        self._call.cascade = self._as_told()
        self._house.metrics.cascaded(self._call.cascade)
