"""Shared blocks, copies on write, and what others may find."""

from __future__ import annotations

import pytest

from firsthand.kvcache.blocks import BlockPool
from firsthand.kvcache.prefix import PrefixCache
from firsthand.request import FinishReason
from firsthand.scheduling.plan import BlockCopy, StepResult
from firsthand.scheduling.tables import Tables
from tests.scheduling.bench import Bench

PROMPT = tuple(range(8))


def starts(bench: Bench) -> list[int]:
    """Where the slices of the last plan begin."""
    return [piece.start for piece in bench.plans[-1].slices]


def test_a_cache_of_another_pool_is_refused() -> None:
    with pytest.raises(ValueError, match="own pool"):
        Tables(BlockPool(1, 1), PrefixCache(BlockPool(1, 1)))


@pytest.mark.parametrize(
    ("prompt", "start"),
    [
        (PROMPT, 4),  # both blocks are known, but the last token must be computed
        ((*PROMPT, 9), 8),
        ((*PROMPT[:7], 39, 9), 4),
        ((39, *PROMPT[1:]), 0),
        (PROMPT[:4], 0),
        (PROMPT[:5], 4),
        (PROMPT[:3], 0),
    ],
)
def test_kv_5_what_was_computed_is_found_and_one_token_is_left(
    prompt: tuple[int, ...], start: int
) -> None:
    bench = Bench(shares=True)
    bench.add("a", prompt=PROMPT, new=2)
    bench.finish()
    bench.add("b", prompt=prompt, new=3)
    bench.step()
    assert starts(bench) == [start]
    assert bench.machine.last_plan.num_prefix_hit_tokens == start
    bench.finish()  # compares every token with a cold run


def test_a_running_sequence_lends_its_blocks() -> None:
    bench = Bench(shares=True)
    bench.add("a", prompt=(*PROMPT, 1), new=9)
    bench.step()
    bench.add("b", prompt=(*PROMPT, 2), new=9)
    bench.step()
    first, second = bench.plans[-1].slices
    assert first.block_ids[:2] == second.block_ids[:2]
    assert set(first.block_ids[2:]).isdisjoint(second.block_ids[2:])
    assert bench.machine.num_used_blocks == 4
    bench.finish()


def test_drawn_tokens_are_found_too() -> None:
    bench = Bench(shares=True)
    bench.add("a", prompt=PROMPT, new=9)
    bench.finish()
    answer = bench.ledger.tokens["a", 0]
    bench.add("next turn", prompt=(*PROMPT, *answer, 5, 6), new=2)
    bench.step()
    assert starts(bench) == [16]
    bench.finish()


@pytest.mark.parametrize(
    ("one", "other"),
    [
        ({"tenant": "a"}, {"tenant": "b"}),
        ({"tenant": "a", "salt": "bc"}, {"tenant": "ab", "salt": "c"}),
    ],
)
def test_s_52_a_tenant_finds_no_prefix_of_another(
    one: dict[str, str], other: dict[str, str]
) -> None:
    """Also without a salt: how soon a first token comes would tell what another has asked."""
    bench = Bench(shares=True, size=4)
    found = []
    for name, whose in (("mine", one), ("yours", other), ("again", one)):
        bench.add(
            name,
            prompt=PROMPT,
            new=1,
            tenant=whose["tenant"],
            salt=whose.get("salt", ""),
        )
        bench.step()
        found += starts(bench)
        bench.finish()
    assert found == [0, 0, 4]


def test_kv_4_kv_5_no_hit_across_salts_and_after_eviction() -> None:
    bench = Bench(shares=True, blocks=4, context=16)
    bench.add("a", prompt=PROMPT, new=1, salt="one")
    bench.finish()
    bench.add("b", prompt=PROMPT, new=1, salt="two")
    bench.step()
    assert starts(bench) == [0]
    bench.add("c", prompt=[39] * 15, new=1)  # takes all blocks
    bench.step()
    assert bench.machine.num_evicted_blocks > 0
    bench.add("d", prompt=PROMPT, new=1, salt="one")
    bench.step()
    assert starts(bench) == [0]
    bench.finish()


def test_kv_6_a_block_that_is_not_full_is_not_found() -> None:
    bench = Bench(shares=True)
    bench.add("a", prompt=PROMPT[:7], new=1)
    bench.finish()
    bench.add("b", prompt=PROMPT, new=1)
    bench.step()
    assert starts(bench) == [4]
    bench.finish()


def test_what_a_failed_sequence_wrote_is_not_found() -> None:
    bench = Bench(shares=True)
    bench.add("a", prompt=PROMPT, new=9)
    bench.step()
    plan = bench.machine.plan(1.0)
    bench.take(bench.machine.commit(plan, StepResult((), 0.0, 0.0), 1.0))
    assert bench.ledger.reasons["a", 0] is FinishReason.ERROR
    assert (bench.pool.num_cached, bench.pool.num_free) == (0, bench.pool.num_blocks)
    bench.add("b", prompt=PROMPT, new=1)
    bench.step()
    assert starts(bench) == [0]


@pytest.mark.parametrize(
    ("num_prompt", "common", "copied"),
    [
        (9, 8, False),  # the last prompt token is the first of its block: nothing to copy
        (8, 7, True),
        (6, 5, True),
        (1, 0, False),
        (2, 1, True),
    ],
)
def test_n_sequences_share_the_prompt_and_copy_on_write(
    num_prompt: int, common: int, copied: bool
) -> None:
    bench = Bench(shares=True)
    bench.add("a", prompt=num_prompt, new=6, n=3)
    assert bench.step() == ["a"]
    assert bench.machine.num_waiting == 2
    assert bench.step() == ["a"] * 3
    plan = bench.plans[-1]
    assert [piece.start for piece in plan.slices] == [num_prompt, common, common]
    seeds = [piece.draw.seed for piece in plan.slices if piece.draw]
    assert seeds == [0, 1, 2]
    tails = [piece.block_ids[common // 4] for piece in plan.slices]
    assert len(set(tails)) == 3  # nobody writes where another reads
    copies = tuple(BlockCopy(tails[0], tail) for tail in tails[1:]) if copied else ()
    assert plan.copies == copies
    heads = {piece.block_ids[: common // 4] for piece in plan.slices}
    assert len(heads) == 1
    bench.finish()


def test_without_a_cache_the_n_sequences_compute_for_themselves() -> None:
    bench = Bench(shares=False)
    bench.add("a", prompt=6, new=3, n=3)
    assert bench.step() == ["a"] * 3
    assert starts(bench) == [0, 0, 0]
    bench.finish()


def test_n_is_the_same_as_n_requests_with_the_seeds_after() -> None:
    bench = Bench(shares=True, sequences=2, blocks=8, size=2, context=16)
    bench.add("a", prompt=5, new=11, n=5)
    bench.finish()  # compares each index with a run alone of its seed


def test_copies_are_told_once() -> None:
    bench = Bench(shares=True)
    bench.add("a", prompt=6, new=6, n=2)
    for _ in range(4):
        bench.step()
    assert [len(plan.copies) for plan in bench.plans] == [0, 1, 0, 0]
    bench.finish()
