"""A step's guesses: which are made, and which of them were the tokens that the model draws.

Owns: a record per sequence (how often its guesses were right), and the way from a plan with room
for guesses to one with guesses in it, and from its draws to tokens.
May not know: how a guess is made, logits, why a sequence runs.
Read next: `payoff.py` (how many are worth it), `lookup.py` and `draft_model.py` (which);
`../runner.py`, the only caller.

With guesses g₁ … g_k behind its known token, a sequence has k + 1 rows in the step. Row i is drawn
as the step would draw it in which g₁ … g_i were known: same logits, for a row's do not depend on
the other rows; same position, so the same random number; same penalties and mask, for its history
holds the guesses before it. If that draw is g_i+1, the next row has begun with the right token, and
counts; else what comes after it is dropped. So the tokens are those of plain decoding, sampled or
not, and so is all that is told of them.

Every guess is judged by the tokens that came, also one that was not computed. Where guessing is
free, it goes on while it does not pay, and is taken up again as soon as it would. Where it costs, a
sequence for which it does not pay has rest, each time for twice as long, and is then tried again.
"""

from __future__ import annotations

import logging
from collections.abc import Callable, Iterable, Sequence
from dataclasses import field, replace

from firsthand.engine.guessing.guesser import Asked, Guesser
from firsthand.engine.guessing.payoff import Payoff, Rate, in_order
from firsthand.scheduling.plan import Draw, Drawn, SequenceSlice, StepPlan
from firsthand.values import dataclass

SEQUENCE_DECAY = 0.8  # per guess that was judged
ENGINE_DECAY = 0.98
HOPE = 0.5  # before anything was judged
FREE_HOPE = 0.2  # the same where guesses are free: a few tokens show whether they are right
FIRST_REST = 32  # tokens
LONGEST_REST = 512

_LOG = logging.getLogger(__name__)


@dataclass(slots=True, eq=False)
class _Record:
    """Of one sequence: the last guess, made when `at` tokens were known, and what came of them."""

    rate: Rate = field(default_factory=lambda: Rate(SEQUENCE_DECAY))
    guess: tuple[int, ...] = ()
    at: int = 0
    rest: int = FIRST_REST
    rests_until: int = 0


class Speculation:
    """The guesses of one engine. `payoff` None: all that there is room for are computed. For one
    thread."""

    def __init__(self, guesser: Guesser, payoff: Payoff | None, clock: Callable[[], float]) -> None:
        self._guesser: Guesser | None = guesser
        self._payoff = payoff
        self._clock = clock
        self._records: dict[int, _Record] = {}
        self._all = Rate(ENGINE_DECAY)
        self._num_guesses = 0  # in the last plan

    def extend(self, plan: StepPlan) -> StepPlan:
        """The plan with the guesses that are worth it behind the known tokens; `max_guesses` of it
        are so many. A guesser that fails is asked no more: no request shall fail for a wish."""
        self._num_guesses = 0
        slices: Sequence[SequenceSlice] = plan.slices
        if self._guesser is not None:
            try:
                slices = self._guessed(self._guesser, plan)
            except Exception:
                _LOG.exception("guessing failed, and has ended")
                self._guesser = None
                self._num_guesses = 0
        return replace(plan, slices=tuple(slices), max_guesses=self._num_guesses)

    def learn(self, num_sequences: int, ms: float) -> None:
        """The plan that was extended last took this long to compute and to draw from."""
        if self._payoff is not None:
            self._payoff.learn(num_sequences, self._num_guesses, ms)

    def _guessed(self, guesser: Guesser, plan: StepPlan) -> Sequence[SequenceSlice]:
        asked = [
            Asked(piece.sequence_id, piece.draw, piece.draw.max_guesses)
            for piece in plan.slices
            if piece.draw is not None and piece.draw.max_guesses
        ]
        present = {piece.sequence_id for piece in plan.slices}
        guesser.forget(present)
        self._records = {
            one.sequence_id: self._records.get(one.sequence_id) or _Record() for one in asked
        }
        for one in asked:
            self._judge(self._records[one.sequence_id], one.draw.history)
        wishes = self._wishes(guesser, asked, len(plan.slices), plan.max_guesses)
        for one, wish in wishes:
            record = self._records[one.sequence_id]
            record.guess, record.at = wish, len(one.draw.history)
        chosen = {one.sequence_id: wish[: one.most] for one, wish in wishes if one.most}
        self._num_guesses = sum(map(len, chosen.values()))
        if not self._num_guesses:
            return plan.slices
        return [
            piece._replace(token_ids=piece.token_ids + guess, num_guesses=len(guess))
            if (guess := chosen.get(piece.sequence_id))
            else piece
            for piece in plan.slices
        ]

    def _wishes(
        self, guesser: Guesser, asked: Sequence[Asked], num_sequences: int, most: int
    ) -> list[tuple[Asked, tuple[int, ...]]]:
        """A guess of each, and in `most` of each how many of it to compute."""
        if guesser.is_free:
            guesses = guesser.guess(asked)
            lengths = self._lengths(asked, map(len, guesses), num_sequences, most, is_free=True)
            chosen = [one._replace(most=length) for one, length in zip(asked, lengths, strict=True)]
            return list(zip(chosen, guesses, strict=True))
        awake = [
            one
            for one in asked
            if len(one.draw.history) >= self._records[one.sequence_id].rests_until
        ]
        sizes = [one.most for one in awake]
        lengths = self._lengths(awake, sizes, num_sequences, most, is_free=False)
        chosen = []
        for one, length in zip(awake, lengths, strict=True):
            record = self._records[one.sequence_id]
            if length:
                chosen.append(one._replace(most=length))
            elif self._payoff is not None and self._payoff.knows(num_sequences):
                self._send_to_rest(record, len(one.draw.history))
        if not chosen:
            return []
        began_s = self._clock()
        guesses = guesser.guess(chosen)
        rounds = max(map(len, guesses), default=0)
        if rounds and self._payoff is not None:
            self._payoff.learn_round(num_sequences, (self._clock() - began_s) * 1e3 / rounds)
        return list(zip(chosen, guesses, strict=True))

    def _lengths(
        self,
        asked: Sequence[Asked],
        sizes: Iterable[int],
        num_sequences: int,
        most: int,
        *,
        is_free: bool,
    ) -> list[int]:
        prior = FREE_HOPE if is_free else self._all.estimate(HOPE)
        offers = [
            (self._records[one.sequence_id].rate.estimate(prior), size)
            for one, size in zip(asked, sizes, strict=True)
        ]
        if self._payoff is not None:
            return self._payoff.lengths(offers, num_sequences, most, is_free=is_free)
        lengths = [0] * len(offers)
        for _, _, index in in_order(offers, most):
            lengths[index] += 1
        return lengths

    def _judge(self, record: _Record, history: Sequence[int]) -> None:
        """By the tokens that came since the last guess."""
        came = history[record.at : record.at + len(record.guess)]
        if not came:
            return
        num_right = num_equal(record.guess, came)
        num_judged = num_right + (num_right < len(came))
        record.rate.add(num_right, num_judged)
        self._all.add(num_right, num_judged)
        if num_right == len(came):
            record.rest = FIRST_REST
        record.guess = ()

    def _send_to_rest(self, record: _Record, num_known: int) -> None:
        record.rests_until = num_known + record.rest
        record.rest = min(2 * record.rest, LONGEST_REST)
        record.rate = Rate(SEQUENCE_DECAY, right=HOPE, judged=1.0)  # then with new hope


def num_equal(guess: Sequence[int], tokens: Sequence[int]) -> int:
    """How many of the first ones are the same."""
    count = 0
    for one, other in zip(guess, tokens, strict=False):
        if one != other:
            break
        count += 1
    return count


def draws_of(piece: SequenceSlice) -> list[tuple[int, Draw]]:
    """The draws of a slice, one per row with logits, each with the sequence's id."""
    draw, count = piece.draw, piece.num_guesses
    assert draw is not None, "only what draws has guesses"
    if not count:
        return [(piece.sequence_id, draw)]
    history, guesses = draw.history, piece.token_ids[-count:]
    looks_back = draw.sampling.needs_history or draw.grammar is not None
    whole = [*history, *guesses] if looks_back else []
    return [
        (
            piece.sequence_id,
            draw._replace(
                position=draw.position + i,
                history=whole[: len(history) + i],
                num_guessed=i,
            ),
        )
        for i in range(count + 1)
    ]


def kept(slices: Iterable[SequenceSlice], drawn: Sequence[Drawn]) -> list[Drawn]:
    """Of the outcomes of all draws, in order, one per slice: its token, and those after it that
    were drawn from the right tokens."""
    outcomes: list[Drawn] = []
    row = 0
    for piece in slices:
        count = piece.num_guesses
        first = drawn[row]
        if count:
            guesses = piece.token_ids[-count:]
            ids = [one.token_id for one in drawn[row : row + count]]
            num_right = num_equal(guesses, ids)
            then = tuple(drawn[row + 1 : row + 1 + num_right])
            first = first._replace(then=then, num_guesses=count)
        outcomes.append(first)
        row += 1 + count
    return outcomes
