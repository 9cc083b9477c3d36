"""Every step from logits to a token, against known numbers; bad input; statistics.

Owns: the check of `engine/sampler.py` and of the native code behind it.
May not know: scheduling, models.
Read next: `test_sampler_reference.py`, the same code against the reference, with `==`.
"""

from __future__ import annotations

import ctypes
import math
import platform
from collections.abc import Callable, Sequence
from concurrent.futures import ThreadPoolExecutor
from contextlib import suppress
from dataclasses import replace
from typing import Any

import numpy as np
import pytest
from numpy.typing import NDArray

from firsthand.compute.native import _native
from firsthand.engine import sampler_reference
from firsthand.engine.sampler import SampleOutcome, Sampler, settings
from firsthand.errors import InvalidRequest
from firsthand.request import SamplingParams
from firsthand.scheduling.plan import Draw

pytestmark = pytest.mark.native

Row = NDArray[np.float32]
Sample = Callable[[Row, Sequence[Draw]], list[SampleOutcome]]
INF = math.inf
GREEDY = SamplingParams(temperature=0.0)


def sample(logits: Row, draws: Sequence[Draw], **how: Any) -> list[SampleOutcome]:
    sampled = Sampler(**how)(logits, draws)
    rows = enumerate(sampled.token_ids)
    return [sampled.reports.get(row) or SampleOutcome(token_id) for row, token_id in rows]


def runnable_isas() -> list[str]:
    found = []
    for isa in ("portable", "avx2", "avx512", "neon"):
        with suppress(ValueError):
            found.append(_native.isa(isa))
    return found


def row(*logits: float) -> Row:
    return np.array(logits, dtype=np.float32)


def one(logits: Row, sampling: SamplingParams, **draw: Any) -> SampleOutcome:
    fields = {"seed": 0, "position": 0, **draw}
    return sample(logits[None], [Draw(sampling, **fields)])[0]


def masses(logits: Row, sampling: SamplingParams) -> list[int]:
    return _native.row_masses(logits, settings(sampling), sampling.logit_bias, (), 0)


def kept(logits: Row, **sampling: float) -> set[int]:
    mass = masses(logits, SamplingParams(**sampling))  # type: ignore[arg-type]
    return {i for i, m in enumerate(mass) if m > 0}


# --- each step, with known numbers -----------------------------------------------------------


@pytest.mark.parametrize("temperature", [0.0, 5e-324, 1e-12, 1e-4])
def test_sample_1_a_very_small_temperature_is_greedy(temperature: float) -> None:
    sampling = SamplingParams(temperature=temperature, logprobs=1)
    for seed in range(20):
        outcome = one(row(30, 29.9, -30), sampling, seed=seed)
        assert (outcome.token_id, outcome.error) == (0, None)
        assert outcome.logprob == pytest.approx(-0.644397, abs=1e-6)  # −ln(1 + e^−0.1)


def test_the_border_of_greedy_is_1e_5() -> None:
    logits = row(0.0, 1e-6)
    picked = {one(logits, SamplingParams(temperature=1e-5), seed=s).token_id for s in range(99)}
    assert picked == {0, 1}
    assert one(logits, SamplingParams(temperature=9.9e-6), seed=1).token_id == 1


def test_sample_2_temperature_comes_before_top_p() -> None:
    assert kept(row(2, 1, 0, -1), temperature=2.0, top_p=0.75) == {0, 1, 2}
    assert kept(row(2, 1, 0, -1), temperature=1.0, top_p=0.75) == {0, 1}


def test_sample_3_min_p_is_measured_against_the_best() -> None:
    mass = masses(row(2, 1, 0, -1), SamplingParams(min_p=0.2))
    assert [m / sum(mass) for m in mass] == pytest.approx([0.731059, 0.268941, 0, 0], abs=1e-6)
    assert kept(row(2, 1, 0, -1), min_p=0.13) == {0, 1, 2}


def test_the_borders_of_min_p_and_top_p_are_exact() -> None:
    mass = masses(row(0, -1), SamplingParams())[1]
    assert kept(row(0, -1), min_p=mass / 2**43) == {0, 1}
    assert kept(row(0, -1), min_p=(mass + 0.5) / 2**43) == {0}
    assert kept(row(1, 1, 1, 1), top_p=0.5) == {0, 1}
    assert kept(row(1, 1, 1, 1), top_p=0.50001) == {0, 1, 2}
    assert kept(row(10, 0), top_p=0.9999) == {0}
    assert kept(row(10, 0), top_p=0.99999) == {0, 1}


def test_top_p_is_a_share_of_what_top_k_kept() -> None:
    """Probabilities 0.4, 0.3, 0.2, 0.1; of the best two, renormalised, 0.571 and 0.429."""
    logits = np.log(row(0.4, 0.3, 0.2, 0.1))
    assert kept(logits, top_p=0.55) == {0, 1}
    assert kept(logits, top_k=2, top_p=0.55) == {0}
    assert kept(logits, top_k=2, top_p=0.55, min_p=0.5) == {0}
    assert kept(logits, top_k=3, min_p=0.7) == {0, 1}


def test_sample_4_repetition_penalty_covers_the_prompt_once() -> None:
    logits, sampling = row(1.0, -0.5, 0.25, 0.0), SamplingParams(repetition_penalty=2.0)
    draw = Draw(sampling, 0, 4, history=(0, 1, 2, 2), num_prompt_tokens=2)
    right = [0.5, -1.0, 0.125, 0.0]
    assert list(sampler_reference.adjusted(logits.astype(np.float64), draw)) == right
    penalised = _native.row_masses(logits, settings(sampling), (), tuple(draw.history), 2)
    assert penalised == masses(row(*right), SamplingParams())


def test_presence_and_frequency_count_the_output_only() -> None:
    sampling = SamplingParams(presence_penalty=0.5, frequency_penalty=0.25)
    found = _native.row_masses(row(1, 1, 1, 1), settings(sampling), (), (0, 0, 1, 2, 2), 2)
    assert found == masses(row(1, 0.25, 0, 1), SamplingParams())


def test_bias_comes_before_the_penalties() -> None:
    sampling = SamplingParams(repetition_penalty=2.0, logit_bias=((0, 3.0), (1, -1.0)))
    found = _native.row_masses(row(1, 0, 0), settings(sampling), sampling.logit_bias, (0, 1), 2)
    assert found == masses(row(2, -2, 0), SamplingParams())


def test_sample_5_penalties_do_not_depend_on_the_order_of_rows() -> None:
    a = Draw(SamplingParams(0.0, repetition_penalty=2.0), 0, 2, (0, 0), 1)
    b = Draw(GREEDY, 0, 2)
    logits = row(1.0, 0.8)
    alone = sample(logits[None], [a])
    two = np.stack([logits, logits])
    assert sample(two, [a, b]) == sample(two, [b, a])[::-1] == alone + sample(logits[None], [b])
    assert alone[0].token_id == 1


def test_sample_6_each_use_lowers_a_token() -> None:
    logits = row(-50, -50, -50, 0.1, 0.0, -50)
    history: tuple[int, ...] = (0,)
    for _ in range(6):
        sampling = SamplingParams(0.0, frequency_penalty=1.0)
        outcome = one(logits, sampling, history=history, num_prompt_tokens=1)
        history += (outcome.token_id,)
    assert history[1:] == (3, 4, 3, 4, 3, 4)


def generated(sampler: Sample, num_before: int, neighbour_seed: int | None) -> list[int]:
    """16 tokens at seed 42 and T = 0.8, behind `num_before` other rows."""
    tokens = []
    for position in range(16):
        logits = np.random.default_rng(position).normal(0, 2, (num_before + 1, 100))
        logits[-1] = np.random.default_rng(1000 + position).normal(0, 2, 100)
        draws = [
            Draw(SamplingParams(0.9), neighbour_seed or 7 * i + position, position)
            for i in range(num_before)
        ]
        draws.append(Draw(SamplingParams(0.8, top_p=0.95), 42, position))
        tokens.append(sampler(logits.astype(np.float32), draws)[-1].token_id)
    return tokens


def check_batch_independence(sampler: Sample) -> None:
    alone = generated(sampler, 0, None)
    assert generated(sampler, 7, None) == alone
    assert generated(sampler, 7, 42) == alone
    assert generated(sampler, 3, None)[8:] == alone[8:]


def test_sample_7_neighbours_change_nothing() -> None:
    check_batch_independence(sample)


def test_sabotage_a_stream_keyed_by_the_row_is_caught() -> None:
    def sabotaged(logits: Row, draws: Sequence[Draw]) -> list[SampleOutcome]:
        return sample(logits, [draw._replace(seed=i) for i, draw in enumerate(draws)])

    with pytest.raises(AssertionError):
        check_batch_independence(sabotaged)


def test_s112_rows_are_equal_in_any_batch_order_and_thread() -> None:
    generator = np.random.default_rng(3)
    logits = generator.normal(0, 3, (24, 501)).astype(np.float32)
    kinds = [GREEDY, SamplingParams(0.7, 50), SamplingParams(1.0, 0, 0.9), SamplingParams(1.5)]
    draws = [Draw(replace(kinds[i % 4], logprobs=3), i, 10 * i) for i in range(24)]
    alone = [sample(logits[i : i + 1], [draws[i]])[0] for i in range(24)]
    assert sample(logits, draws) == alone
    order = [int(i) for i in generator.permutation(24)]
    assert sample(logits[order], [draws[i] for i in order]) == [alone[i] for i in order]
    with ThreadPoolExecutor(4) as pool:
        rows = pool.map(lambda i: sample(logits[i : i + 1], [draws[i]])[0], range(24))
        assert list(rows) == alone


@pytest.mark.parametrize("isa", runnable_isas())
@pytest.mark.parametrize("num_threads", [None, 1, 3])
def test_s112_threads_and_instruction_sets_give_the_same_bits(
    isa: str, num_threads: int | None
) -> None:
    generator = np.random.default_rng(9)
    logits = generator.normal(0, 4, (40, 3001)).astype(np.float32)
    logits[5, 7], logits[6, 3000], logits[7] = math.nan, INF, -INF
    penalised = SamplingParams(0.8, 40, 0.9, 0.02, 1.2, 0.3, 0.1, ((17, 4.0),), logprobs=4)
    kinds = [GREEDY, SamplingParams(), SamplingParams(0.7, top_p=0.9), SamplingParams(top_k=30)]
    kinds += [SamplingParams(min_p=0.05), SamplingParams(0.0, logprobs=2), penalised]
    history = [int(i) for i in generator.integers(0, 3001, 300)]
    draws = [Draw(kinds[i % 7], i, i, history, 100) for i in range(40)]
    threads = None if num_threads is None else _native.Threads(num_threads)
    found = sample(logits, draws, threads=threads, isa=isa)
    assert found == [sample(logits[i : i + 1], [draws[i]])[0] for i in range(40)]
    for i in (0, 1, 2, 5, 6, 7, 9, 18, 20, 39):
        assert found[i] == sampler_reference.sample_row(logits[i], draws[i])


@pytest.mark.parametrize("isa", runnable_isas())
@pytest.mark.parametrize("size", [1, 3, 16, 1023, 1024, 1025, 2048, 5000])
def test_the_highest_logit_is_found_wherever_it_is(isa: str, size: int) -> None:
    """And so is NaN; also in float64, after a penalty that changes nothing else."""
    generator = np.random.default_rng(size)
    base = np.round(generator.normal(0, 1, size), 1).astype(np.float32)
    penalised = SamplingParams(0.0, repetition_penalty=1.5)
    for position in {0, size // 3, size // 2, size - 2, size - 1} - {-1}:
        for value in (9.0, INF, math.nan):
            logits = base.copy()
            logits[position] = value
            for sampling in (GREEDY, penalised):
                draw = Draw(sampling, 0, 1, (position,), 1)
                expected = sampler_reference.sample_row(logits, draw)
                assert sample(logits[None], [draw], isa=isa) == [expected]
    tied = np.repeat(base, 2)
    assert sample(tied[None], [Draw(GREEDY, 0, 0)], isa=isa)[0].token_id == int(np.argmax(tied))


def test_a_new_value_in_the_memory_of_an_old_one_is_not_taken_for_it() -> None:
    sampler, logits = Sampler(), row(0, 1, 2)[None]
    for bias in range(300):
        sampling = SamplingParams(0.0, logit_bias=((bias % 3, 50.0),))
        assert sampler(logits, [Draw(sampling, 0, 0)]).token_ids == [bias % 3]


def test_settings_are_packed_once_and_not_kept_without_bound(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    made: list[object] = []
    pack = _native.SampleSettings

    def counted(*arguments: Any) -> object:
        made.append(arguments)
        return pack(*arguments)

    monkeypatch.setattr(_native, "SampleSettings", counted)
    monkeypatch.setattr("firsthand.engine.sampler.MAX_PACKED", 3)
    sampler, logits = Sampler(), row(0, 1)[None]
    draws = [Draw(SamplingParams(0.0), 0, 0) for _ in range(3)]
    for _ in range(5):
        for draw in draws:
            sampler(logits, [draw])
    assert len(made) == 3
    sampler(logits, [Draw(SamplingParams(0.0), 0, 0)])
    assert len(made) == 4 and len(vars(sampler)["_packed"]) == 1


def test_sample_8_other_seeds_give_other_texts() -> None:
    def text(seed: int) -> tuple[int, ...]:
        draws = [Draw(SamplingParams(), seed, position) for position in range(8)]
        return tuple(o.token_id for o in sample(np.zeros((8, 1000), np.float32), draws))

    assert len({text(seed) for seed in range(10)}) == 10
    assert text(0) == text(0)


def check_ties(found: Callable[[Row, SamplingParams], list[int]]) -> None:
    def ids(sampling: SamplingParams) -> set[int]:
        return {i for i, m in enumerate(found(row(0, 5, 4, 4, 5, 4, 0), sampling)) if m > 0}

    assert ids(SamplingParams(top_k=1)) == {1}
    assert ids(SamplingParams(top_k=3)) == {1, 2, 4}
    assert ids(SamplingParams(top_p=0.3)) == {1}
    assert ids(SamplingParams(top_p=0.7)) == {1, 2, 4}


def test_ties_go_to_the_lower_id() -> None:
    check_ties(masses)
    assert one(row(-1, 2, 2, 2), GREEDY).token_id == 1
    assert one(row(-0.0, 0.0), GREEDY).token_id == 0
    assert one(np.repeat(row(1, 3, 2), 300), GREEDY).token_id == 300


def test_sabotage_ties_to_the_higher_id_are_caught() -> None:
    with pytest.raises(AssertionError):
        check_ties(lambda logits, sampling: masses(logits[::-1].copy(), sampling)[::-1])


# --- logprobs --------------------------------------------------------------------------------


def test_f17_logprobs_are_of_the_raw_logits() -> None:
    logits = row(1.0, 3.0, -INF, 3.0, 2.0)
    sampling = SamplingParams(0.0, logit_bias=((4, 50.0),), logprobs=3)
    outcome = one(logits, sampling)
    log_sum = math.log(sum(math.exp(x) for x in (1, 3, 3, 2)))
    assert outcome.token_id == 4
    assert outcome.logprob == pytest.approx(2 - log_sum, abs=1e-7)
    assert [i for i, _ in outcome.top_logprobs] == [1, 3, 4]
    assert outcome.top_logprobs[0][1] == outcome.top_logprobs[1][1] == np.float32(3 - log_sum)
    everything = one(logits, replace(sampling, logprobs=20)).top_logprobs
    assert [i for i, _ in everything] == [1, 3, 4, 0]
    assert one(logits, replace(sampling, logprobs=0)).top_logprobs == ()
    assert one(logits, replace(sampling, logprobs=None)).logprob is None
    assert one(row(7.0), replace(GREEDY, logprobs=1)).top_logprobs == ((0, 0.0),)


# --- bad input -------------------------------------------------------------------------------

BAD_ROWS = [
    ((1.0, math.nan, 0.0), "NaN"),
    ((math.nan, INF, 0.0), "NaN"),
    ((1.0, INF, 0.0), "+infinity"),
    ((-INF, -INF, -INF), "every logit is -infinity"),
]
BAD_HISTORY = [(3,), (-1,), (2**31,), (0, 2**63), (-(2**70),)]


@pytest.mark.parametrize("sampling", [GREEDY, SamplingParams(), SamplingParams(top_p=0.5)])
def test_s_9_a_bad_row_gives_an_error_and_no_token(sampling: SamplingParams) -> None:
    good = row(0.5, 1.0, 0.0)
    draw = Draw(replace(sampling, logprobs=2), 5, 5)
    penalised = Draw(replace(sampling, repetition_penalty=2.0), 5, 5, (0,), 1)
    for values, text in BAD_ROWS:
        before, bad, after = sample(np.stack([good, row(*values), good]), [draw] * 3)
        assert before == after == sample(good[None], [draw])[0]
        assert bad.token_id == -1 and bad.logprob is None and bad.top_logprobs == ()
        assert text in (bad.error or "")
        assert text in (sample(row(*values)[None], [penalised])[0].error or "")


@pytest.mark.parametrize("history", BAD_HISTORY)
def test_s_42_ids_outside_the_row_are_an_error(history: tuple[int, ...]) -> None:
    good = row(0.5, 1.0, 0.0)
    bad = Draw(SamplingParams(0.0, presence_penalty=1.0), 1, 1, history, 0)
    first, second = sample(np.stack([good, good]), [bad, Draw(GREEDY, 1, 1)])
    assert "history holds token" in (first.error or "") and first.token_id == -1
    assert second.token_id == 1
    unlooked = bad._replace(sampling=GREEDY)
    assert sample(good[None], [unlooked])[0].token_id == 1


@pytest.mark.parametrize("num_prompt_tokens", [-1, 2])
def test_a_prompt_longer_than_the_history_is_an_error(num_prompt_tokens: int) -> None:
    sampling = SamplingParams(presence_penalty=1.0)
    outcome = one(row(0, 1), sampling, history=(0,), num_prompt_tokens=num_prompt_tokens)
    assert "num_prompt_tokens" in (outcome.error or "")


def test_sample_9_a_biased_id_outside_the_row_is_an_error() -> None:
    for token_id in (3, 99_999_999, 2**31 - 1):
        outcome = one(row(0, 1, 2), SamplingParams(logit_bias=((token_id, 5.0),)))
        assert f"logit_bias holds token {token_id}," in (outcome.error or "")
    with pytest.raises(InvalidRequest):
        SamplingParams(logit_bias=((-1, 5.0),))
    assert one(row(0, 1, 2), GREEDY).token_id == 2


def test_penalties_that_overflow_are_an_error() -> None:
    """The kernel does not rely on the range that `SamplingParams` checks."""
    wild = _native.SampleSettings((1.0, 0, 1.0, 0.0, 1e-300, 0.0, 0.0), (), -1)
    token_ids = np.zeros(1, np.int32)
    memory = _native.SampleMemory()
    history: dict[int, tuple[Sequence[int], int]] = {0: ((0,), 1)}
    logits = row(1e30, 0)[None]
    reports = _native.sample_rows(logits, [wild], [0], [1], history, token_ids, memory)
    assert reports == {0: (None, (), "after penalties: logits hold +infinity")}
    assert token_ids.tolist() == [-1]


def test_seed_and_position_outside_64_bits_are_an_error() -> None:
    for seed, position in ((-1, 0), (2**64, 0), (0, -1), (0, 2**64)):
        assert "seed" in (one(row(0, 1), GREEDY, seed=seed, position=position).error or "")


def test_shapes_that_do_not_fit_are_the_callers_fault() -> None:
    draw = Draw(GREEDY, 0, 0)
    for shape, count in (((2, 3), 1), ((3,), 1), ((1, 0), 1), ((1, 2**20 + 1), 1)):
        with pytest.raises(ValueError, match=r"logits"):
            sample(np.zeros(shape, np.float32), [draw] * count)
    assert sample(np.zeros((0, 3), np.float32), []) == []


@pytest.mark.skipif(
    platform.machine() != "x86_64" or platform.libc_ver()[0] != "glibc",
    reason="sets the floating-point mode through glibc's layout of x86-64",
)
@pytest.mark.parametrize("mode", [0x8040, 0x2000, 0x4000, 0x6000])
def test_the_threads_floating_point_mode_changes_nothing(mode: int) -> None:
    """0x8040 flushes denormals (results and inputs); the others round another way."""
    libm = ctypes.CDLL("libm.so.6")
    saved, changed = (ctypes.c_uint32 * 8)(), (ctypes.c_uint32 * 8)()
    logits = np.random.default_rng(5).normal(0, 2, 999).astype(np.float32)
    tiny = row(0.0, 1e-40, 2e-40)
    draw = Draw(SamplingParams(0.7, 100, 0.9, logprobs=5), 1, 1)
    right = sample(logits[None], [draw]), one(tiny, GREEDY)
    libm.fegetenv(saved)
    libm.fegetenv(changed)
    changed[7] |= mode  # the control and status register of the vector unit
    libm.fesetenv(changed)
    try:
        found = sample(logits[None], [draw]), one(tiny, GREEDY)
    finally:
        libm.fesetenv(saved)
    assert found == right
    assert found[1].token_id == 2


# --- statistics ------------------------------------------------------------------------------

CHI_SQUARE_0_001 = {1: 10.83, 2: 13.82, 3: 16.27, 4: 18.47, 5: 20.52, 6: 22.46, 7: 24.32}
NUM_DRAWS = 100_000


@pytest.mark.parametrize(
    ("sampling", "num_kept"),
    [
        (SamplingParams(), 8),
        (SamplingParams(0.5), 8),
        (SamplingParams(2.0), 8),
        (SamplingParams(top_k=5), 5),
        (SamplingParams(top_p=0.9), 6),
        (SamplingParams(min_p=0.12), 6),
        (SamplingParams(0.7, 4), 4),
        (SamplingParams(1.5, 6, 0.8), 4),
        (SamplingParams(1.0, 0, 0.95, 0.2), 5),
    ],
)
def test_n_8_draws_follow_the_probabilities(sampling: SamplingParams, num_kept: int) -> None:
    """χ² against plain softmax over the best `num_kept`; seeds are fixed, so it cannot flake."""
    logits = row(0.3, 1.7, -1.9, 1.1, 0.9, -0.6, 0.1, -0.2)
    draws = [Draw(sampling, 17 + i % 5, i) for i in range(NUM_DRAWS)]
    drawn = Sampler()(np.tile(logits, (NUM_DRAWS, 1)), draws).token_ids
    counts = np.bincount(drawn, minlength=8).tolist()
    best = sorted(range(8), key=lambda i: -logits[i])[:num_kept]
    weights = {i: math.exp(float(logits[i]) / sampling.temperature) for i in best}
    total = sum(weights.values())
    expected = {i: NUM_DRAWS * w / total for i, w in weights.items()}
    assert sum(counts[i] for i in best) == NUM_DRAWS
    chi_square = sum((counts[i] - e) ** 2 / e for i, e in expected.items())
    assert chi_square < CHI_SQUARE_0_001[num_kept - 1]
