"""Compiled and padded steps: the values of plain ones, and nothing written where nobody owns.

Owns: the bound of compiled steps, and the proof that padding touches nobody.
May not know: engines. Read next: `test_executor.py`, the bound of plain steps.

Compiling takes seconds a graph, so one compiled model of two layers serves every test here.
"""

from __future__ import annotations

from collections.abc import Iterator
from typing import Any

import numpy as np
import pytest
from numpy.typing import NDArray

pytest.importorskip("torch")
import torch

from firsthand.compute.plan import Op, record
from firsthand.compute.torch import compiled, formulas
from firsthand.compute.torch.compiled import Piece as Rows
from firsthand.compute.torch.compiled import check_compiler, cut, graph_of, pad_rows
from firsthand.compute.torch.executor import TorchExecutor
from firsthand.errors import InvalidRequest
from firsthand.models.families import program, read_config
from firsthand.models.spec import ModelSpec
from tests.compute.torch.tiny import (
    ArrayStore,
    Piece,
    config,
    flat,
    in_steps,
    prompt,
    random_weights,
    ready,
    whole,
)

BUCKET = 32
pytestmark = [
    pytest.mark.torch,
    # Of torch itself, when its compiler is imported for the first time.
    pytest.mark.filterwarnings("ignore:`torch.jit.script_method` is deprecated:DeprecationWarning"),
]


@pytest.fixture(scope="module")
def spec() -> ModelSpec:
    return read_config(config(attention_bias=True))


@pytest.fixture(scope="module")
def warned() -> Iterator[None]:
    import warnings

    with warnings.catch_warnings():
        warnings.simplefilter("ignore", DeprecationWarning)
        yield


@pytest.fixture(scope="module")
def executor(warned: None, spec: ModelSpec) -> Any:
    return ready(TorchExecutor(buckets=(BUCKET,)), spec)


def plan_of(spec: ModelSpec) -> tuple[list[Op], dict[str, tuple[int, ...]]]:
    shapes = {name: values.shape for name, values in random_weights(spec).items()}
    return record(program(spec).forward, lambda name: shapes[name][:2]), shapes


def rms(error: NDArray[Any]) -> float:
    return float(np.sqrt(np.mean(np.square(error, dtype=np.float64))))


@pytest.mark.slow
def test_s15_compiled_and_padded_steps_keep_the_bound_of_plain_ones(
    executor: Any, spec: ModelSpec
) -> None:
    """At most twice the plain formula's error against float64, root mean square, and no logit
    off by more than 1e-4: the bound that the three attentions keep."""
    ids = prompt(100)
    double = ready(TorchExecutor(attention="formula", dtype="float64"), spec)
    exact = double.run(flat([Piece(ids)]), ArrayStore(spec, "float64")).copy()
    plain = rms(whole(ready(TorchExecutor(attention="formula"), spec), spec, ids) - exact)
    before = executor.compiled_steps()
    error = in_steps(executor, spec, ids, [32, 17, 16, 31, 1, 3]) - exact
    assert rms(error) <= 2 * plain
    assert np.abs(error).max() < 1e-4
    after = executor.compiled_steps()
    assert after.num_hits - before.num_hits == 4
    assert after.num_misses - before.num_misses == 2
    padded = after.buckets[0].num_padded_rows - before.buckets[0].num_padded_rows
    assert padded == 0 + 15 + 16 + 1
    assert after.buckets[0].compile_ms > 0


@pytest.mark.slow
def test_padding_writes_nothing_and_reads_nothing(executor: Any, spec: ModelSpec) -> None:
    """Every slot but the step's own keeps its poison, also those left in the sequences' own
    blocks; and none of it is read."""
    batch = flat([Piece(prompt(9), 0, [3, 1]), Piece(prompt(11, 2), 0, [9, 7, 8])])
    store = ArrayStore(spec)
    logits = executor.run(batch, store)
    assert np.isfinite(logits).all()
    own = sorted(batch.slots())
    assert len(own) == 20
    for layer in range(spec.num_layers):
        for memory in (store.layer(layer).keys, store.layer(layer).values):
            slots = memory.reshape(-1, spec.num_kv_heads * spec.head_size)
            assert np.isfinite(slots[own]).all()
            assert np.isnan(np.delete(slots, own, axis=0)).all()


@pytest.mark.slow
def test_rows_of_padding_reach_no_other_row(
    executor: Any, spec: ModelSpec, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Padding with NaN gives the same bits: it is computed, and nothing else."""
    batch = flat([Piece(prompt(20))])
    zeros = executor.run(batch, ArrayStore(spec)).copy()

    def poisoned(x: Any, num_rows: int) -> Any:
        padded = pad_rows(x, num_rows)
        padded[len(x) :] = torch.nan
        return padded

    monkeypatch.setattr(compiled, "pad_rows", poisoned)
    assert np.array_equal(executor.run(batch, ArrayStore(spec)), zeros)


@pytest.mark.slow
def test_a_trace_has_the_same_bits_and_does_not_count(executor: Any, spec: ModelSpec) -> None:
    batch = flat([Piece(prompt(20))], last_rows_only=True)
    plain = executor.run(batch, ArrayStore(spec)).copy()
    before = executor.compiled_steps()
    logits, times = executor.trace(batch, ArrayStore(spec))
    assert np.array_equal(logits, plain)
    assert executor.compiled_steps() == before
    between = ["store", "attend", "linear"]
    assert [op.name for op in times] == ["embed", "linear", *between, *between, "head"]
    assert [op.shape[0] for op in times] == [20] * 8 + [1]
    _, operators = ready(TorchExecutor(), spec).trace(batch, ArrayStore(spec))
    assert sum(op.num_macs for op in times) == sum(op.num_macs for op in operators)
    assert sum(op.num_bytes for op in times) == sum(op.num_bytes for op in operators)
    assert times[4].detail == (
        "compiled linear, add, norm, 2 linear, activation, linear, add, norm, linear, rope, "
        "linear, rope, linear from model.layers.0.self_attn.o_proj"
    )


def test_a_bucket_needs_three_graphs_whatever_the_depth() -> None:
    spec = read_config(config(num_hidden_layers=7))
    plan, shapes = plan_of(spec)
    parts = list(cut(plan, shapes.__getitem__))
    pieces = [part for part in parts if isinstance(part, Rows)]
    assert len(pieces) == 8
    assert len({piece.shape for piece in pieces}) == 3
    ops = [op for part in parts for op in (part.ops if isinstance(part, Rows) else [part])]
    assert ops == plan


@pytest.mark.parametrize(
    "changes", [{"intermediate_size": 41}, {"rms_norm_eps": 1e-6}, {"mlp_bias": True}]
)
def test_pieces_that_differ_share_no_graph(changes: dict[str, Any]) -> None:
    found = []
    for one in (config(), config(**changes)):
        plan, shapes = plan_of(read_config(one))
        found.append([p.shape for p in cut(plan, shapes.__getitem__) if isinstance(p, Rows)])
    assert found[0][1] != found[1][1]


def test_a_graph_is_the_formulas(spec: ModelSpec) -> None:
    """Run as it is, without a compiler, it gives the bits of the operators one by one."""
    plan, shapes = plan_of(spec)
    piece = next(part for part in cut(plan, shapes.__getitem__) if isinstance(part, Rows))
    weights = {n: torch.tensor(v) for n, v in random_weights(spec).items()}
    x = torch.randn(3, 24, generator=torch.Generator().manual_seed(0))
    angle = torch.arange(3)[:, None, None] * torch.ones(8)
    turn = (angle.cos(), angle.sin())
    found = graph_of(piece, 1)(x, *turn, *(weights[name] for name in piece.weights))
    h = formulas.norm(x, weights["model.layers.0.input_layernorm.weight"], 1e-5)
    prefix = "model.layers.0.self_attn"
    q, k, v = (
        formulas.linear(
            h, weights[f"{prefix}.{name}_proj.weight"], weights[f"{prefix}.{name}_proj.bias"]
        )
        for name in "qkv"
    )
    wanted = [
        formulas.rope(q.unflatten(1, (3, 16)), *turn),
        formulas.rope(k.unflatten(1, (1, 16)), *turn),
        v,
    ]
    assert all(one.equal(other) for one, other in zip(found, wanted, strict=True))


def test_without_a_compiler_the_option_is_refused(monkeypatch: pytest.MonkeyPatch) -> None:
    def fails(*_: object, **__: object) -> None:
        raise RuntimeError("no C++\ncompiler" + "!" * 1000 + "\n\nSet TORCH_LOGS for more")

    monkeypatch.setattr(torch, "compile", fails)
    with pytest.raises(
        InvalidRequest, match=r"compile: does not work here: no C\+\+ compiler!!"
    ) as e:
        check_compiler(torch.device("cpu"))
    assert len(str(e.value)) < 400
