"""A draft's own cache: gaps are closed, guesses taken back, blocks given back."""

from __future__ import annotations

from hypothesis import given, settings
from hypothesis import strategies as st

from firsthand.engine.guessing.draft_model import DraftLimits, DraftModel
from firsthand.engine.guessing.guesser import Asked
from firsthand.kvcache.blocks import BlockPool
from firsthand.request import SamplingParams
from firsthand.scheduling.plan import Draw
from tests.scheduling.fakes import VOCAB, FakeModel, drawn_token, extended

BLOCK = 4


def draft(blocks: int = 64, context: int = 64, budget: int = 64) -> tuple[DraftModel, BlockPool]:
    pool = BlockPool(blocks, BLOCK)
    limits = DraftLimits(context, budget, 4, VOCAB)
    return DraftModel(FakeModel(BLOCK), pool, limits), pool


def asked(sequence_id: int, known: list[int], most: int) -> Asked:
    sampling = SamplingParams(logprobs=2)
    return Asked(sequence_id, Draw(sampling, sequence_id, len(known), known, 1), most)


def expected(sequence_id: int, known: list[int], count: int) -> tuple[int, ...]:
    """What the fake draws after these tokens, one after another."""
    found: list[int] = []
    context = 0
    for token_id in known:
        context = extended(context, token_id)
    for at in range(count):
        found.append(drawn_token(context, sequence_id, len(known) + at))
        context = extended(context, found[-1])
    return tuple(found)


@settings(deadline=None, max_examples=60)
@given(st.data())
def test_it_guesses_what_it_would_draw_whatever_came_before(data: st.DataObject) -> None:
    """The fake keeps in each slot what a kernel would find there: one slot that was not written
    over after a wrong guess, and the next guess is another."""
    model, pool = draft()
    texts = {i: [i + 1] * data.draw(st.integers(1, 12)) for i in range(3)}
    for _ in range(8):
        present = data.draw(st.sets(st.sampled_from(sorted(texts)), min_size=1))
        model.forget(set(texts))
        wanted = [asked(i, texts[i], data.draw(st.integers(1, 5))) for i in sorted(present)]
        guesses = model.guess(wanted)
        for one, guess in zip(wanted, guesses, strict=True):
            text = texts[one.sequence_id]
            assert guess == expected(one.sequence_id, text, one.most)
            right = data.draw(st.integers(0, one.most))
            texts[one.sequence_id] = [*text, *guess[:right], data.draw(st.integers(0, VOCAB - 1))]
    model.forget(set())
    assert pool.num_used == 0


def test_a_long_gap_is_closed_over_several_steps() -> None:
    model, _ = draft(budget=8)
    known = list(range(20))
    one = asked(0, known, 3)
    assert [model.guess([one])[0] for _ in range(3)] == [(), (), expected(0, known, 3)]


def test_no_guess_without_blocks_or_beyond_the_context() -> None:
    model, pool = draft(blocks=2)
    assert model.guess([asked(0, [1] * 5, 2), asked(1, [2] * 5, 2)])[1] == ()
    assert pool.num_used == 2
    model.forget({1})
    assert model.guess([asked(1, [2] * 5, 2)])[0] == expected(1, [2] * 5, 2)
    short, pool = draft(context=8)
    assert short.guess([asked(0, [1] * 6, 4)]) == [()]
    assert pool.num_used == 0
