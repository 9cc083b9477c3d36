"""Whole models through the kernels, against the torch executor and against themselves.

Owns: every format and family end to end; company, chunks, graphs, fusion and adapters.
May not know: how a kernel computes.
Read next: `../torch/test_executor.py`, the proof that the reference is right.
"""

from __future__ import annotations

from dataclasses import replace
from typing import Any

import numpy as np
import pytest
import torch
from numpy.typing import NDArray
from torch.utils._python_dispatch import TorchDispatchMode

from firsthand.compute.torch.executor import TorchExecutor
from firsthand.compute.triton.executor import TritonExecutor
from firsthand.compute.triton.fusing import RULES
from firsthand.compute.triton.sampling import shortlist_of
from firsthand.errors import EngineError, InvalidRequest
from firsthand.quant.low_rank import LowRank
from tests.compute.native.micro import FORMATS, MicroModel, batch, run_whole, spec
from tests.compute.triton.device import DEVICE

MAX_TOKENS = 24
EXACT: dict[str, Any] = {"device": DEVICE, "dtype": "float32", "deterministic": True}
IDS = np.random.default_rng(1).integers(0, 101, 40)
ALL_RULES = tuple(rule.name for rule in RULES)


def small(**changes: Any) -> MicroModel:
    return MicroModel.random(spec(num_layers=1, **changes), FORMATS["float32"])


def ready(model: MicroModel, **options: Any) -> TritonExecutor:
    executor = TritonExecutor(**(EXACT | options))
    model.load(executor, MAX_TOKENS)
    return executor


def new_store(executor: TritonExecutor, kv_dtype: Any = "float32") -> Any:
    return executor.new_store(3 * 13, 16, kv_dtype)


def in_chunks(executor: TritonExecutor, ids: NDArray[np.int64], *chunks: int) -> NDArray[Any]:
    store, start, found = new_store(executor), 0, []
    for count in chunks:
        found.append(
            executor.run(batch(store, (1, start, ids[start : start + count])), store).copy()
        )
        start += count
    return np.concatenate(found)


def relative(got: NDArray[Any], want: NDArray[Any]) -> float:
    return float(np.linalg.norm(got - want) / np.linalg.norm(want))


@pytest.mark.parametrize("name", ["float32", "channel", "q4_0", "q2_k", "q8_0"])
def test_logits_are_those_of_the_torch_executor(name: str) -> None:
    """One matrix of each form is enough: the others differ in the kernel alone."""
    changes = {"attention_bias": True, "mlp_bias": True, "num_layers": 1}
    model = MicroModel.random(spec(**changes), FORMATS[name])
    reference = TorchExecutor()
    model.load(reference, MAX_TOKENS)
    want = run_whole(reference, model, IDS[:9])
    assert relative(in_chunks(ready(model), IDS, 5, 3, 1), want) <= 3e-6


@pytest.mark.parametrize("kv_dtype", ["float16", "int16", "int8"])
def test_every_cache_is_that_of_the_torch_executor(kv_dtype: Any) -> None:
    model = small()
    reference = TorchExecutor()
    model.load(reference, MAX_TOKENS)
    want = run_whole(reference, model, IDS[:8], dtype=kv_dtype)
    executor = ready(model)
    store = new_store(executor, kv_dtype)
    got = executor.run(batch(store, (0, 0, IDS[:8])), store)
    # Of float16, products are made in it; a code at a border may fall to either side.
    assert relative(got, want) <= {"float16": 2e-3, "int16": 2e-4, "int8": 2e-2}[kv_dtype]


def test_company_and_chunks_change_no_bit() -> None:
    executor = ready(small())
    whole = in_chunks(executor, IDS, 11)
    assert np.array_equal(in_chunks(executor, IDS, 3, 1, 7), whole)
    store = new_store(executor)
    executor.run(batch(store, (0, 0, IDS[:9]), (2, 0, IDS[20:29])), store)
    mixed = executor.run(
        batch(store, (1, 0, IDS[:11]), (0, 9, IDS[9:10]), (2, 9, IDS[29:34])), store
    )
    assert np.array_equal(mixed[:11], whole[:11])
    assert np.array_equal(mixed[11], whole[9])


@pytest.mark.parametrize("left_out", [*ALL_RULES, ALL_RULES])
def test_what_is_fused_changes_no_bit(left_out: Any) -> None:
    model = small()
    disabled = (left_out,) if isinstance(left_out, str) else left_out
    plain = in_chunks(ready(model, disabled_rules=disabled), IDS, 6, 1)
    fused = ready(model)
    assert np.array_equal(in_chunks(fused, IDS, 6, 1), plain)
    names = [op.name for op in fused.ops]
    assert "rope" not in names
    assert names.count("add") == 0  # each is read by a norm


def test_a_replayed_step_has_the_bits_of_a_plain_one() -> None:
    """S15: a bucket runs over the same memory each time; what no bucket takes runs as before."""
    model = small()
    made: list[int] = []

    def capture(run: Any) -> Any:
        made.append(1)
        run()
        return run

    plain, graphed = ready(model), ready(model, buckets=(1, 4), capture=capture)
    stores = new_store(plain), new_store(graphed)

    def both(*slices: Any) -> None:
        got, want = (
            executor.run(batch(store, *slices, wanted="last"), store).copy()
            for executor, store in zip((graphed, plain), stores, strict=True)
        )
        assert np.array_equal(got, want)

    both((0, 0, IDS[:2]), (1, 0, IDS[5:6]), (2, 0, IDS[8:9]))
    both((0, 2, IDS[9:10]), (1, 1, IDS[10:11]), (2, 1, IDS[11:12]))
    both((1, 2, IDS[12:13]))
    both((0, 3, IDS[13:15]), (1, 3, IDS[15:16]))
    facts = graphed.compiled_steps()
    assert facts is not None
    assert len(made) == 2
    assert {one.num_rows: one.num_hits for one in facts.buckets} == {1: 1, 4: 1}
    assert (facts.num_misses, facts.hit_rate) == (2, 0.5)
    assert np.array_equal(graphed.hidden(np.array([0], np.int32)).shape, (1, 40))


def test_an_adapter_is_added_to_its_rows_alone() -> None:
    model = small()
    made = np.random.default_rng(7)
    names = ["model.layers.0.self_attn.q_proj.weight", "model.layers.0.mlp.down_proj.weight"]
    factors = []
    for name in names:
        n, k = model.weights[name].values.shape  # type: ignore[union-attr]
        a, b = made.normal(0, 0.2, (3, k)), made.normal(0, 0.2, (n, 3))
        factors.append(LowRank(name, a.astype(np.float32), b.astype(np.float32)))
    reference, executor = TorchExecutor(), ready(model)
    model.load(reference, MAX_TOKENS)
    found = []
    for one, store in ((reference, model.store(block_size=16)), (executor, new_store(executor))):
        one.add_adapter("tuned", factors)
        plain = batch(store, (0, 0, IDS[:4]), (1, 0, IDS[4:9]))
        fields = {name: getattr(plain, name) for name in type(plain).__slots__}
        tuned = type(plain)(**(fields | {"adapters": ("", "tuned")}))
        found.append((one.run(plain, store).copy(), one.run(tuned, store).copy()))
    assert relative(found[1][1], found[0][1]) <= 3e-6
    assert np.array_equal(found[1][0][:4], found[1][1][:4])
    assert relative(found[1][0][4:], found[1][1][4:]) > 1e-3


def test_rows_asked_for_afterwards_are_those_of_the_step() -> None:
    executor = ready(small())
    store = new_store(executor)
    piece = batch(store, (0, 0, IDS[:6]))
    every = executor.run(piece, store).copy()
    assert np.array_equal(executor.logits(np.array([4, 1], np.int32)), every[[4, 1]])
    assert executor.hidden(np.array([5], np.int32)).shape == (1, 40)


def test_the_best_tokens_are_those_of_the_logits() -> None:
    executor = ready(small())
    store = new_store(executor)
    piece = batch(store, (0, 0, IDS[:3]))
    every = executor.run(piece, store).copy()
    assert executor.run_best(piece, store).tolist() == every.argmax(axis=1).tolist()
    assert np.array_equal(executor.logits(np.arange(3, dtype=np.int32)), every)


def test_a_shortlist_is_of_the_logits() -> None:
    """All of a small vocabulary; `interpreted_rows.py` has longer rows."""
    executor = ready(small())
    store = new_store(executor)
    piece = batch(store, (0, 0, IDS[:3]))
    every = executor.run(piece, store).copy()
    found = executor.run_shortlist(piece, store)
    assert found.is_certain
    assert np.array_equal(found.ids, np.tile(np.arange(101), (3, 1)))
    assert np.array_equal(found.logits, every)
    assert np.array_equal(found.edges[:, 0], every.max(axis=1))


class NothingWaits(TorchDispatchMode):  # type: ignore[misc]
    """Refuses what torch answers only when the device has come so far; on a card torch does."""

    WAITED_FOR = ("_local_scalar_dense", "nonzero", "masked_select", "unique", "item", "equal")

    def __enter__(self) -> NothingWaits:
        if DEVICE == "cuda":
            torch.cuda.set_sync_debug_mode("error")
        super().__enter__()
        return self

    def __exit__(self, *error: Any) -> None:
        super().__exit__(*error)
        if DEVICE == "cuda":
            torch.cuda.set_sync_debug_mode("default")

    def __torch_dispatch__(self, func: Any, types: Any, args: Any = (), kwargs: Any = None) -> Any:
        name = func.overloadpacket.__name__
        indices = [one for one in torch.utils._pytree.tree_leaves(args) if torch.is_tensor(one)]
        masked = "index" in name and any(one.dtype == torch.bool for one in indices)
        assert not masked, name
        assert name not in self.WAITED_FOR, name
        return func(*args, **(kwargs or {}))


def test_nothing_waits_inside_a_step() -> None:
    """Of one with an adapter in a layer and in the head, whose rows are known on the device."""
    executor = ready(small(tied_head=False))
    made = np.random.default_rng(7)
    factors = [
        LowRank(
            name, *(made.normal(0, 0.2, shape).astype(np.float32) for shape in ((2, k), (n, 2)))
        )
        for name, (n, k) in {
            "model.layers.0.self_attn.q_proj.weight": (96, 40),
            "lm_head.weight": (101, 40),
        }.items()
    ]
    executor.add_adapter("tuned", factors)
    store = new_store(executor)
    plain = batch(store, (0, 0, IDS[:1]), (1, 0, IDS[1:3]), wanted="last")
    wanted = executor.run(plain, store).copy()
    with NothingWaits():
        words = executor._picks.likeliest(
            executor._run(replace(plain, adapters=("", "tuned")), store)
        )
    executor._wait()
    got = shortlist_of(words).logits
    assert np.array_equal(got[0], wanted[0])
    assert relative(got[1], wanted[1]) > 1e-3


def test_a_trace_has_the_same_bits_and_names_every_operator() -> None:
    executor = ready(small(), disabled_rules=ALL_RULES)
    store = new_store(executor)
    piece = batch(store, (0, 0, IDS[:6]))
    plain = executor.run(piece, store).copy()
    logits, times = executor.trace(piece, store)
    assert np.array_equal(logits, plain)
    layer = ["norm", "linear", "rope", "linear", "rope", "linear", "store", "attend", "linear"]
    layer += ["add", "norm", "linear", "linear", "activation", "linear", "add"]
    assert [time.name for time in times] == ["embed", *layer, "norm", "head"]
    assert times[0].num_bytes == 6 * 40 * 4
    attend = next(time for time in times if time.name == "attend")
    assert attend.num_bytes == 6 * 2 * 3 * 16 * 4


def test_what_a_step_may_not_be_is_refused() -> None:
    executor = ready(small())
    store = new_store(executor)
    with pytest.raises(EngineError, match="at most 24"):
        executor.run(batch(store, (0, 0, IDS[:25])), store)
    with pytest.raises(EngineError, match="token id"):
        executor.run(batch(store, (0, 0, np.array([101]))), store)
    with pytest.raises(EngineError, match="own stores"):
        other = small().store(block_size=16)
        executor.run(batch(other, (0, 0, IDS[:1])), other)
    with pytest.raises(InvalidRequest, match="disabled_rules"):
        TritonExecutor(DEVICE, disabled_rules=("gate-up",))


def test_blocks_are_copied_and_filled_in_every_layer() -> None:
    executor = ready(small())
    store = new_store(executor, "int8")
    piece = batch(store, (0, 0, IDS[:4]))
    first = piece.block_starts[0, 0] // 16
    store.fill_block(int(first), 0)  # the step writes 4 of its slots
    executor.run(piece, store)
    store.copy_block(int(first), 30)
    slots = np.arange(16)
    held = store.layer(0)
    for one, other in zip(held.read(slots + 16 * first), held.read(slots + 16 * 30), strict=True):
        assert np.array_equal(one, other)
    store.fill_block(30, 0xFF)
    assert np.isnan(store.layer(0).read(slots + 16 * 30)[0]).all()
    assert store.resident_bytes(16) == 16 * 2 * 3 * (16 + 4)
