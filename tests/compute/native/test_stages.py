"""A model cut into stages, each a plan of its own: the bits of the whole.

Owns: equality in one process, for every format and for layers that differ; what is refused.
May not know: how rows travel. Read next: `tests/cluster/pipeline/test_pipeline.py`.
"""

from __future__ import annotations

from dataclasses import replace
from typing import Any

import numpy as np
import pytest
from numpy.typing import NDArray

from firsthand.compute.batch import FlatBatch
from firsthand.compute.native.executor import NativeExecutor
from firsthand.compute.plan import record
from firsthand.compute.stages import names_of, stage_ops
from firsthand.errors import EngineError
from firsthand.kvcache.paged import PagedStore
from firsthand.models import families
from firsthand.models.spec import ExpertsSpec, ModelSpec, RopeSpec
from firsthand.quant.formats import Format
from tests.compute.native.micro import EMBEDDING, FORMATS, MicroModel, Source, batch, spec

pytestmark = pytest.mark.native

EXPERTS = ExpertsSpec(num_experts=5, top_k=2, width=24, renormalise=True)
LAYERS: dict[str, dict[str, Any]] = {
    "llama": {},
    "gemma3_text": {
        "windows": (7, None, 30, None),
        "local_rope": RopeSpec("default", tuple(100.0 ** (-i / 8) for i in range(8))),
        "activation": "gelu_tanh",
        "logit_cap": 3.0,
    },
    "gemma2": {"windows": (9, None, 9, None), "score_cap": 2.0, "activation": "gelu_tanh"},
    "qwen2": {"attention_bias": True},
    "qwen3_moe": {"experts": replace(EXPERTS, dense_layers=frozenset({1}))},
}


def spec_of(architecture: str) -> ModelSpec:
    return spec(architecture=architecture, num_layers=4, **LAYERS[architecture])


class Stages:
    """Executors and stores of the stages, beside those of the whole."""

    def __init__(self, model: MicroModel, split: tuple[int, ...], **options: Any) -> None:
        self.parts: list[tuple[NativeExecutor, PagedStore]] = []
        shapes = {slot.name: slot.shape for slot in families.slots(model.spec)}
        program = families.program(model.spec)

        def shape_of(name: str) -> tuple[int, int]:
            n, k = shapes[name]
            return n, k

        ops, first = record(program.forward, shape_of), 0
        for count in split:
            own = stage_ops(ops, first, first + count)
            names = names_of(own)
            executor = NativeExecutor(**({"threads": 1} | options))
            for name, weight in model.weights.items():
                if name in names or (name == EMBEDDING and "lm_head.weight" in names):
                    executor.load_weight(Source(name, weight))
            for name in model.vectors.keys() & names:
                executor.load_vector(name, model.vectors[name])
            if model.spec.tied_head and "lm_head.weight" in names:
                executor.alias("lm_head.weight", EMBEDDING)
            executor.prepare_ops(own, program, 128, 128)
            first += count
            part = replace(model, spec=replace(model.spec, num_layers=count, windows=()))
            self.parts.append((executor, part.store()))

    def run(self, batch: FlatBatch) -> NDArray[np.float32]:
        rows: NDArray[np.float32] | None = None
        for number, (executor, store) in enumerate(self.parts):
            is_last = number == len(self.parts) - 1
            given = batch if is_last else replace(batch, logit_rows=batch.logit_rows[:0])
            rows, _ = executor.run_stage(given, store, rows)
        assert rows is not None
        return rows.copy()


def assert_equal(
    model: MicroModel, split: tuple[int, ...], ids: NDArray[np.int64], **options: Any
) -> None:
    """Two sequences, one in chunks, then a token of each."""
    whole = NativeExecutor(**({"threads": 2} | options))
    model.load(whole)
    store, stages = model.store(), Stages(model, split, **options)
    for one in (
        batch(store, (0, 0, ids[:20]), (1, 0, ids[20:50])),
        batch(store, (0, 20, ids[50:70])),
        batch(store, (0, 40, ids[70:71]), (1, 30, ids[71:72])),
    ):
        assert stages.run(one).tobytes() == whole.run(one, store).tobytes()


@pytest.mark.parametrize("name", FORMATS)
def test_s107_every_format_has_the_same_bits_in_two_stages(name: str) -> None:
    model = MicroModel.random(spec(), FORMATS[name])
    assert_equal(model, (2, 1), np.arange(72) * 7 % 101)


@pytest.mark.parametrize("architecture", LAYERS)
@pytest.mark.parametrize("split", [(1, 3), (1, 2, 1)])
def test_layers_that_differ_keep_their_bits(architecture: str, split: tuple[int, ...]) -> None:
    format: Format = FORMATS["q4_1"]
    assert_equal(MicroModel.random(spec_of(architecture), format), split, np.arange(72) * 5 % 101)


def test_without_fusion_the_bits_are_the_same() -> None:
    model = MicroModel.random(spec(), FORMATS["q8_0"])
    rules = ("residual", "norm-linear", "gate-up", "rope", "share-input")
    assert_equal(model, (1, 2), np.arange(72), disabled_rules=rules)


def test_a_stage_is_traced_operator_by_operator() -> None:
    model = MicroModel.random(spec(), FORMATS["float32"])
    stages = Stages(model, (2, 1))
    (first, store), (last, last_store) = stages.parts
    one = batch(store, (0, 0, np.arange(5)))
    none = replace(one, logit_rows=one.logit_rows[:0])
    rows, ops = first.run_stage(none, store, None, trace=True)
    assert [op.name for op in ops][-1] == "send"
    assert ops[-1].shape == (5, model.spec.width)
    _, ops = last.run_stage(one, last_store, rows, trace=True)
    assert ops[0].name == "receive"
    assert ops[-1].name == "head"


def test_rows_that_do_not_fit_are_refused() -> None:
    """Missing, too few, of another width, or for a stage that takes none."""
    model = MicroModel.random(spec(), FORMATS["float32"])
    (first, store), (last, last_store) = Stages(model, (2, 1)).parts
    one = batch(store, (0, 0, np.arange(5)))
    none = replace(one, logit_rows=one.logit_rows[:0])
    good = np.zeros((5, model.spec.width), np.float32)
    with pytest.raises(EngineError, match="rows"):
        last.run_stage(one, last_store, None)
    for wrong in (good[:4], good[:, :-1].copy()):
        with pytest.raises(EngineError, match="wrong shape"):
            last.run_stage(one, last_store, wrong)
    with pytest.raises(EngineError, match="rows"):
        first.run_stage(none, store, good)
    last.run_stage(one, last_store, good)
