"""The native executor: near the float64 formula, and equal bits wherever they are promised."""

from __future__ import annotations

from collections.abc import Sequence
from itertools import product
from typing import get_args

import numpy as np
import pytest
from numpy.typing import NDArray

from firsthand.compute.fusion import RULES
from firsthand.compute.native import _native
from firsthand.compute.native.cores import available_threads
from firsthand.compute.native.executor import NativeExecutor
from firsthand.errors import EngineError, InvalidRequest, UnsupportedModel
from firsthand.kvcache.arrays import KVLayout, KVType
from firsthand.models.spec import ModelSpec
from firsthand.quant.formats import Format, GroupedWeight, decode
from tests.compute.native.micro import (
    EMBEDDING,
    FORMATS,
    MicroModel,
    Source,
    batch,
    error_of,
    instruction_sets,
    random_weight,
    run_whole,
    spec,
)

pytestmark = pytest.mark.native

LAYOUTS: tuple[KVLayout, ...] = ("tiles", "rows")
ALL_RULES = tuple(rule.name for rule in RULES)


def executor_for(model: MicroModel, **options: object) -> NativeExecutor:
    executor = NativeExecutor(**options)  # type: ignore[arg-type]
    model.load(executor)
    return executor


def tokens(model: MicroModel, count: int, seed: int = 3) -> NDArray[np.int64]:
    return np.random.default_rng(seed).integers(0, model.spec.vocab_size, count)


def rms(x: NDArray[np.float64]) -> float:
    return float(np.sqrt(np.mean(np.square(x))))


@pytest.mark.parametrize("name", FORMATS)
def test_logits_near_the_float64_formula(name: str) -> None:
    model = MicroModel.random(spec(), FORMATS[name])
    ids = tokens(model, 100)
    got = run_whole(executor_for(model, threads=2), model, ids)
    want = model.logits(ids)
    assert rms(got - want) <= error_of(name) * rms(want)


@pytest.mark.parametrize("name", FORMATS)
def test_equal_bits_for_every_set_thread_count_rule_and_chunking(name: str) -> None:
    """The numerics contract: only the sequence decides, never how or beside whom it is computed."""
    model = MicroModel.random(spec(), FORMATS[name])
    ids = tokens(model, 70)
    want = run_whole(executor_for(model, threads=1), model, ids)
    for isa in instruction_sets():
        for threads, disabled in ((1, ALL_RULES), (3, ()), (2, ALL_RULES)):
            executor = executor_for(model, threads=threads, isa=isa, disabled_rules=disabled)
            for chunks in ((70,), (1, 2, 3, 5, 7, 11, 41), (64, 1, 1, 1, 1, 1, 1)):
                got = run_whole(executor, model, ids, chunks)
                assert got.tobytes() == want.tobytes(), (isa, threads, disabled, chunks)


@pytest.mark.parametrize("rule", ALL_RULES)
def test_each_rule_alone_keeps_the_bits(rule: str) -> None:
    model = MicroModel.random(spec(attention_bias=True, mlp_bias=True), FORMATS["q4_1"])
    ids = tokens(model, 20)
    want = run_whole(executor_for(model), model, ids)
    got = run_whole(executor_for(model, disabled_rules=(rule,)), model, ids)
    assert got.tobytes() == want.tobytes()


@pytest.mark.parametrize("dtype", ["float32", "float16"])
@pytest.mark.parametrize("name", ["float32", "q4_1", "channel"])
def test_batched_equals_alone(name: str, dtype: str) -> None:
    model = MicroModel.random(spec(), FORMATS[name])
    executor = executor_for(model)
    kv = "float16" if dtype == "float16" else "float32"
    prompts = [tokens(model, count, seed) for seed, count in enumerate((17, 5, 66))]
    alone = [run_whole(executor, model, ids, dtype=kv) for ids in prompts]  # type: ignore[arg-type]
    store = model.store(kv)  # type: ignore[arg-type]
    first = batch(store, *((row, 0, ids[:3]) for row, ids in enumerate(prompts)))
    rest = batch(store, *((row, 3, ids[3:]) for row, ids in enumerate(prompts)))
    got = [executor.run(piece, store).copy() for piece in (first, rest)]
    begins, ends = (
        np.split(part, piece.row_starts[1:-1])
        for part, piece in zip(got, (first, rest), strict=True)
    )
    for want, begin, end in zip(alone, begins, ends, strict=True):
        assert np.concatenate([begin, end]).tobytes() == want.tobytes()


def test_instruction_sets_agree_on_a_float16_cache() -> None:
    model = MicroModel.random(spec(head_size=24), FORMATS["bfloat16"])
    ids = tokens(model, 40)
    results = {
        isa: run_whole(executor_for(model, isa=isa), model, ids, dtype="float16").tobytes()
        for isa in instruction_sets()
    }
    assert len(set(results.values())) == 1, sorted(results)


@pytest.mark.parametrize("dtype", get_args(KVType))
def test_neither_layout_nor_block_size_nor_threads_change_a_bit(dtype: KVType) -> None:
    """Contexts around the borders of tiles (16) and chunks (64), one row and many; from three
    chunks on, two threads compute the chunks of a row apart."""
    model = MicroModel.random(spec(head_size=24), FORMATS["float32"])
    ids = tokens(model, 195)
    chunks = (1, 14, 1, 1, 46, 1, 1, 63, 1, 1, 61, 1, 1, 1, 1)
    wanted = run_whole(executor_for(model, threads=1), model, ids, (128, 67), dtype).tobytes()
    for threads in (1, 2, 3):
        executor = executor_for(model, threads=threads)
        for layout, size in product(LAYOUTS, (0, 16, 48)):
            got = run_whole(executor, model, ids, chunks, dtype, layout, size)
            assert got.tobytes() == wanted, (threads, layout, size)


@pytest.mark.parametrize("dtype", get_args(KVType))
def test_what_is_stored_is_what_the_formula_stores(dtype: KVType) -> None:
    """The kernels write into both layouts what kvcache/arrays.py writes, to the bit."""
    model = MicroModel.random(spec(), FORMATS["float32"])
    executor = executor_for(model, threads=1)
    ids = tokens(model, 20)
    exact = model.store("float32")
    executor.run(batch(exact, (0, 0, ids)), exact)
    slots = batch(exact, (0, 0, ids)).slots()
    written = exact.layer(0).read(slots)  # of layer 0, whose inputs know of no store
    for layout in LAYOUTS:
        got, want = model.store(dtype, layout=layout), model.store(dtype, layout=layout)
        executor.run(batch(got, (0, 0, ids)), got)
        want.layer(0).write(slots, *written)
        for one, other in zip(got.layer(0).read(slots), want.layer(0).read(slots), strict=True):
            assert one.tobytes() == other.tobytes()


def test_an_int8_cache_is_near_the_exact_one() -> None:
    model = MicroModel.random(spec(), FORMATS["float32"])
    executor = executor_for(model)
    ids = tokens(model, 100)
    exact, rounded = (run_whole(executor, model, ids, dtype=kv) for kv in ("float32", "int8"))
    assert 0 < np.abs(rounded - exact).max() < 0.03 * np.abs(exact).max()


def test_logits_only_where_wanted() -> None:
    model = MicroModel.random(spec(tied_head=False), FORMATS["q8_0"])
    executor = executor_for(model)
    ids = tokens(model, 30)
    every = run_whole(executor, model, ids)
    store = model.store()
    last = executor.run(batch(store, (0, 0, ids), wanted="last"), store)
    assert last.shape == (1, model.spec.vocab_size)
    assert last.tobytes() == every[-1:].tobytes()


@pytest.mark.parametrize("name", ["float32", "q4_1"])
@pytest.mark.parametrize("disabled", [(), ALL_RULES])
def test_rows_of_the_last_batch_can_be_asked_for_afterwards(
    name: str, disabled: tuple[str, ...]
) -> None:
    """Logits with the bits that the run itself gives, and what the head made them of."""
    model = MicroModel.random(spec(), FORMATS[name])
    executor = executor_for(model, threads=2, disabled_rules=disabled)
    ids = tokens(model, 20)
    want = run_whole(executor, model, ids)
    rows = np.array([19, 3, 4], dtype=np.int32)
    assert executor.logits(rows).tobytes() == want[rows].tobytes()
    hidden = executor.hidden(np.arange(20, dtype=np.int32))
    assert executor.hidden(rows).tobytes() == hidden[rows].tobytes()
    exact = hidden.astype(np.float64) @ decode(model.weights[EMBEDDING]).T
    assert rms(exact - want) <= 3e-4 * rms(want.astype(np.float64))
    for wrong in ([20], [-1], list(range(20)) * 20):
        with pytest.raises(EngineError, match="rows: "):
            executor.logits(np.array(wrong, dtype=np.int32))
        with pytest.raises(EngineError, match="rows: "):
            executor.hidden(np.array(wrong, dtype=np.int32))


def test_a_reused_row_shows_nothing_of_its_last_owner() -> None:
    """Positions come from the sequence: whatever lies in the store beyond them is never read."""
    model = MicroModel.random(spec(), FORMATS["float32"])
    executor = executor_for(model)
    ids = tokens(model, 12)
    want = run_whole(executor, model, ids)
    store = model.store()
    for block in range(store.num_blocks):
        store.fill_block(block, 0xFF)  # NaN in every float
    assert executor.run(batch(store, (1, 0, ids)), store).tobytes() == want.tobytes()


@pytest.mark.parametrize("poison", [np.nan, np.inf])
def test_a_nan_reaches_the_logits_of_its_own_rows_only(poison: float) -> None:
    """S-9: rounding to integers must not hide a NaN, and a neighbour must not see it."""
    model = MicroModel.random(spec(), FORMATS["q4_1"])
    executor = executor_for(model)
    ids = tokens(model, 6)
    clean = run_whole(executor, model, ids)
    store = model.store()
    executor.run(batch(store, (0, 0, ids), (1, 0, ids)), store)
    poisoned = np.full((1, model.spec.num_kv_heads, model.spec.head_size), poison, np.float32)
    slot = np.array([store.block_start(0) + 2])
    store.layer(1).write(slot, store.layer(1).read(slot)[0], poisoned)
    got = executor.run(batch(store, (0, 6, ids[:1]), (1, 5, ids[5:])), store)
    assert np.isnan(got[0]).all()
    assert got[1].tobytes() == clean[-1].tobytes()


@pytest.mark.parametrize("isa", instruction_sets())
@pytest.mark.parametrize("name", FORMATS)
def test_packed_rows_decode_as_the_format_says(name: str, isa: str) -> None:
    rng = np.random.default_rng(5)
    for n, k in ((1, 1), (17, 33), (16, 64), (50, 80)):
        weight = random_weight(rng, n, k, FORMATS[name])
        packed = loaded(Source(EMBEDDING, weight))
        out = np.empty((n, k), np.float32)
        packed.decode_rows(np.arange(n, dtype=np.int32), out, isa)
        assert out.tobytes() == decode(weight).tobytes()


@pytest.mark.parametrize("isa", instruction_sets())
def test_every_half_decodes_exactly(isa: str) -> None:
    halves = np.arange(65536, dtype=np.uint16).view(np.float16).reshape(256, 256)
    packed = _native.PackedWeight("float16", 256, 256)
    packed.fill_float(0, halves)
    out = np.empty((256, 256), np.float32)
    packed.decode_rows(np.arange(256, dtype=np.int32), out, isa)
    want = halves.astype(np.float32)
    assert np.array_equal(np.isnan(out), np.isnan(want))
    assert out[~np.isnan(want)].tobytes() == want[~np.isnan(want)].tobytes()


def loaded(source: Source) -> _native.PackedWeight:
    executor = NativeExecutor(threads=1)
    executor.load_weight(source)
    return executor._weights[source.name]


def test_aliases_are_counted_once() -> None:
    tied = executor_for(MicroModel.random(spec(), FORMATS["q4_1"])).memory()
    apart = executor_for(MicroModel.random(spec(tied_head=False), FORMATS["q4_1"])).memory()
    assert apart.weights_bytes - tied.weights_bytes >= 101 * 40 * 5 // 8
    assert tied.scratch_bytes > 0


@pytest.mark.parametrize("disabled", [(), ALL_RULES, *((rule,) for rule in ALL_RULES)])
def test_trace_gives_the_same_bits_and_one_entry_per_operator(disabled: tuple[str, ...]) -> None:
    model = MicroModel.random(spec(), FORMATS["q4_1"])
    executor = executor_for(model, disabled_rules=disabled)
    ids = tokens(model, 9)
    store = model.store()
    logits, times = executor.trace(batch(store, (0, 0, ids)), store)
    assert logits.tobytes() == run_whole(executor, model, ids).tobytes()
    assert [entry.name for entry in times] == [op.name for op in executor.ops]
    assert times[-1].shape == (9, 101)
    assert sum(entry.ms for entry in times) > 0
    read = {entry.name: entry.num_bytes for entry in times}
    assert read["attend"] == 2 * 9 * 3 * 16 * 4
    assert read["head"] == executor._weights[EMBEDDING].num_bytes
    assert 0 < read["embed"] < read["head"]
    products = {entry.name: entry.num_macs for entry in times}
    assert products["head"] == 9 * 101 * model.spec.width
    assert products["attend"] == 2 * 45 * model.spec.num_heads * model.spec.head_size
    assert products["embed"] == 0


def bad_batches(model: MicroModel) -> Sequence[tuple[str, dict[str, NDArray[np.generic]]]]:
    size = model.spec.vocab_size
    return [
        ("token id", {"token_ids": np.array([0, size], np.int32)}),
        ("token id", {"token_ids": np.array([0, -1], np.int32)}),
        ("position", {"positions": np.array([199, 200], np.int32)}),
        ("consecutive", {"positions": np.array([0, 2], np.int32)}),
        ("row_starts", {"row_starts": np.array([0, 3], np.int32)}),
        ("outside the store", {"block_starts": np.array([[624]], np.int64)}),
        ("outside the store", {"block_starts": np.array([[-1]], np.int64)}),
        ("logit row", {"logit_rows": np.array([2], np.int32)}),
        ("logit rows", {"logit_rows": np.zeros(1000, np.int32)}),
    ]


def test_a_wrong_index_is_refused_before_anything_is_read() -> None:
    """S-42: checked against what the kernel will index."""
    model = MicroModel.random(spec(), FORMATS["float32"])
    executor = executor_for(model)
    store = model.store()
    good = batch(store, (0, 0, tokens(model, 2)))
    fields = {name: getattr(good, name) for name in good.__dataclass_fields__}
    for message, change in bad_batches(model):
        with pytest.raises(EngineError, match=message):
            executor.run(type(good)(**(fields | change)), store)
    assert np.isfinite(executor.run(good, store)).all()


def test_options_are_checked_by_name() -> None:
    with pytest.raises(InvalidRequest, match="threads"):
        NativeExecutor(threads=0)
    with pytest.raises(InvalidRequest, match=r"disabled_rules.*no-such-rule"):
        NativeExecutor(disabled_rules=("no-such-rule",))
    with pytest.raises(InvalidRequest, match=r"FIRSTHAND_ISA.*z80"):
        NativeExecutor(isa="z80")
    with pytest.raises(UnsupportedModel, match="head size 514"):
        model = MicroModel.random(spec(head_size=514), FORMATS["float16"])
        executor_for(model)
    assert available_threads() >= 1


@pytest.mark.parametrize(
    "shape",
    [
        {"num_heads": 1, "num_kv_heads": 1, "head_size": 2, "width": 2, "ffn_width": 1},
        {"num_heads": 5, "num_kv_heads": 1, "head_size": 34, "width": 17, "ffn_width": 33},
        {"num_heads": 4, "num_kv_heads": 4, "head_size": 128, "width": 600, "ffn_width": 1100},
    ],
)
@pytest.mark.parametrize("name", ["float32", "channel", "q6_k"])
def test_odd_and_wide_shapes(shape: dict[str, int], name: str) -> None:
    """Long rows, tails of every kind, a head of one pair."""
    sizes: ModelSpec = spec(num_layers=1, vocab_size=19, **shape)
    format: Format = FORMATS[name]
    model = MicroModel.random(sizes, format)
    ids = tokens(model, 67)
    want = model.logits(ids)
    results = [
        run_whole(executor_for(model, isa=isa), model, ids, (33, 34)) for isa in instruction_sets()
    ]
    assert len({result.tobytes() for result in results}) == 1
    assert rms(results[0] - want) <= max(error_of(name), 3e-4) * rms(want)


@pytest.mark.slow
def test_s_7_sizes_beyond_31_bits_and_no_element_left_unwritten() -> None:
    """A weight of more than 2³¹ elements: its last rows decode, and every element is written."""
    n, k = 2**31 // 64 + 16, 64
    format = FORMATS["q4_1"]
    packed = _native.PackedWeight("grouped4", n, k, 32, True, True, 0)
    weight = random_weight(np.random.default_rng(0), 16, k, format)
    assert isinstance(weight, GroupedWeight)
    assert weight.minima is not None
    packed.fill_grouped(n - 16, weight.codes, weight.scales, weight.minima)
    out = np.full((16, k), 0xA5A5A5A5, np.uint32).view(np.float32)
    packed.decode_rows(np.arange(n - 16, n, dtype=np.int32), out)
    assert out.tobytes() == decode(weight).tobytes()
