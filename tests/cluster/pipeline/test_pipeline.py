"""A model over stages of one process: every bit is that of one plan over all layers."""

from __future__ import annotations

import sys
from collections.abc import Sequence
from dataclasses import replace
from pathlib import Path
from types import SimpleNamespace
from typing import Any

import pytest

from firsthand.cluster.pipeline import opening
from firsthand.cluster.pipeline.links import LocalLinks, ranges
from firsthand.cluster.pipeline.loading import Pipeline, Wanted, load_pipeline, stage_options
from firsthand.cluster.pipeline.opening import open_pipeline
from firsthand.cluster.pipeline.report import facts_of
from firsthand.cluster.pipeline.stage import Stage
from firsthand.cluster.pipeline.work import Work
from firsthand.errors import (
    CapacityExceeded,
    EngineError,
    EngineLost,
    InvalidRequest,
    ModelNotFound,
)
from firsthand.generation.llm import LLM
from firsthand.generation.load_options import LoadOptions
from tests.cluster.pipeline.asking import answers_of

pytestmark = pytest.mark.native

OPTIONS = LoadOptions(threads=1, max_context=160, max_sequences=4, max_step_tokens=64)


def opened(
    model: Path, options: LoadOptions = OPTIONS, num_stages: int = 2, **wanted: Any
) -> Pipeline:
    def connect(name: str, given: LoadOptions) -> LocalLinks:
        return LocalLinks([Stage(number, name, given) for number in range(num_stages)])

    return load_pipeline(str(model), options, Wanted(num_stages, **wanted), connect)


@pytest.mark.parametrize(
    ("name", "wanted", "error"),
    [
        ("", Wanted(7), InvalidRequest),
        ("", Wanted(2, (1, 7)), InvalidRequest),
        ("/none", Wanted(2), ModelNotFound),
    ],
)
def test_no_ray_is_begun_for_what_cannot_be_split(
    six_layers: Path,
    monkeypatch: pytest.MonkeyPatch,
    name: str,
    wanted: Wanted,
    error: type[Exception],
) -> None:
    begun: list[Any] = []
    monkeypatch.setattr(opening, "begin_own", lambda *_: begun.append(1))
    with pytest.raises(error), open_pipeline(f"{six_layers}{name}", OPTIONS, wanted):
        pass
    assert not begun


def test_the_workers_end_before_their_ray(
    six_layers: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    told: list[str] = []

    class Links(LocalLinks):
        def __init__(self, name: str, given: list[LoadOptions]) -> None:
            super().__init__([Stage(number, name, one) for number, one in enumerate(given)])
            told.append("workers")

        def close(self) -> None:
            super().close()
            told.append("no workers")

    def begin(*_: object) -> SimpleNamespace:
        told.append("ray")
        return SimpleNamespace(end=lambda: told.append("no ray"))

    actors = "firsthand.cluster.pipeline.actors"
    monkeypatch.setitem(sys.modules, actors, SimpleNamespace(RayLinks=Links))
    monkeypatch.setattr(opening, "begin_own", begin)
    with open_pipeline(str(six_layers), OPTIONS, Wanted(2)) as pipeline:
        assert sum(pipeline.split) == 6
    assert told == ["ray", "workers", "no workers", "no ray"]


@pytest.fixture(scope="module")
def whole(six_layers: Path) -> list[Any]:
    with LLM(str(six_layers), threads=1, max_context=160, max_sequences=4) as llm:
        return answers_of(llm)


@pytest.mark.parametrize(
    ("num_stages", "split", "num_parts"),
    [(1, None, 1), (2, None, None), (2, (5, 1), 1), (2, (1, 5), 3), (3, (1, 3, 2), 4)],
)
def test_stages_give_the_bits_of_one_process(
    six_layers: Path,
    whole: list[Any],
    num_stages: int,
    split: tuple[int, ...] | None,
    num_parts: int | None,
) -> None:
    pipeline = opened(six_layers, num_stages=num_stages, split=split, num_parts=num_parts)
    with LLM(pipeline.loaded) as llm:
        assert answers_of(llm) == whole
    parts = {(one.step, one.part) for one in pipeline.executor.spans}
    assert max(part for _, part in parts) + 1 == num_parts or num_parts is None


def test_a_stage_holds_its_own_weights_alone(six_layers: Path) -> None:
    """All together have each tensor once, but for the embedding, which is the head, too."""
    with LLM(str(six_layers), threads=1) as llm:
        held = llm.memory().weights_bytes
        names = {one.name for one in llm.loaded.weights.tensors}
    pipeline = opened(six_layers, num_stages=3, split=(2, 2, 2))
    own = [{one.name for one in stage.weights.tensors} for stage in pipeline.stages]
    assert set.union(*own) == names
    assert own[0] & own[2] == {"model.embed_tokens.weight"}
    assert not own[1] & (own[0] | own[2])
    embedding = max(one.held_bytes for one in pipeline.stages[0].weights.tensors)
    together = sum(stage.held.weights_bytes for stage in pipeline.stages)
    assert together == pytest.approx(held + embedding, rel=0.02)
    assert pipeline.loaded.executor.memory().weights_bytes == together


def test_the_stages_share_the_keys_and_values(six_layers: Path) -> None:
    pipeline = opened(six_layers, num_stages=2, split=(4, 2))
    assert pipeline.store_bytes[0] == 2 * pipeline.store_bytes[1]
    assert pipeline.loaded.store.num_bytes == sum(pipeline.store_bytes)


def test_costs_are_measured_by_layer(six_layers: Path) -> None:
    pipeline = opened(six_layers, num_stages=2, split=(4, 2))
    for costs in (pipeline.token, pipeline.prompt):
        assert len(costs.layers) == 6
        assert min(costs.layers) > 0
        assert costs.before > 0
        assert costs.after > 0
    assert pipeline.executor.cost is not None


def test_what_a_pipeline_tells(six_layers: Path) -> None:
    pipeline = opened(six_layers, num_stages=2, split=(4, 2), num_parts=2)
    pipeline.executor.forget_spans()
    with LLM(pipeline.loaded) as llm:
        llm.generate("a prompt of thirty-two characters", max_tokens=2, ignore_end=True)
        shapes = llm.trace("abc")
    facts = facts_of(pipeline, [one for one in pipeline.executor.spans if one.step])
    assert [(one.first_layer, one.last_layer) for one in facts.stages] == [(0, 3), (4, 5)]
    assert facts.num_steps >= 2
    assert facts.num_hops == facts.num_parts
    assert 0.4 < facts.bubble_share < 1.0  # in one process, one stage at a time computes
    assert facts.mean_hop_bytes > 64 * 4  # a row of 64 floats, and whose it is
    assert [op.name for op in shapes].count("send") == 1
    assert facts.to_dict()["stages"][1]["first_layer"] == 4


@pytest.mark.parametrize(
    "changed",
    [
        {"executor": "torch", "threads": None},
        {"load": "shards"},
        {"lora": {"a": "/nowhere"}},
        {"speculative_config": {"method": "ngram"}},
        {"kv_store": "contiguous"},
        {"family": "file.py:FAMILY"},
    ],
)
def test_what_stages_cannot_do_is_refused(six_layers: Path, changed: dict[str, Any]) -> None:
    with pytest.raises(InvalidRequest, match=next(iter(changed))):
        opened(six_layers, replace(OPTIONS, **changed))


def test_wrong_numbers_are_refused_before_anything_is_loaded(six_layers: Path) -> None:
    with pytest.raises(InvalidRequest, match="stages"):
        opened(six_layers, num_stages=7)
    with pytest.raises(InvalidRequest, match="7 layers together, and the model 6"):
        opened(six_layers, split=(4, 3))
    with pytest.raises(InvalidRequest, match="micro_batches"):
        Wanted(2, num_parts=0)
    with pytest.raises(InvalidRequest, match="balance"):
        Wanted(2, balance="both")


def test_prompts_are_not_scored_and_the_others_go_on(six_layers: Path) -> None:
    pipeline = opened(six_layers, split=(3, 3))
    with LLM(pipeline.loaded) as llm:
        with pytest.raises(EngineError, match="scored"):
            llm.generate("abc", max_tokens=1, prompt_logprobs=1)
        assert llm.generate("abc", max_tokens=2, ignore_end=True).usage.completion_tokens == 2


class _Failing(LocalLinks):
    """Links whose stages can be lost."""

    is_lost = False
    is_closed = False

    def run(self, works: Sequence[Work]) -> list[Work]:
        if self.is_lost:
            raise EngineLost("stage 1 of 2 was lost")
        return super().run(works)

    def close(self) -> None:
        self.is_closed = True


def test_a_lost_stage_ends_requests_with_its_name(six_layers: Path) -> None:
    links = _Failing([Stage(number, str(six_layers), OPTIONS) for number in range(2)])
    pipeline = load_pipeline(str(six_layers), OPTIONS, Wanted(2, split=(3, 3)), lambda *_: links)
    with LLM(pipeline.loaded) as llm:
        stream = llm.stream("abc", max_tokens=100, ignore_end=True)
        next(stream)
        links.is_lost = True
        with pytest.raises(EngineError, match="stage 1 of 2 was lost"):
            stream.completion()
    pipeline.close()
    assert links.is_closed


def test_a_load_that_fails_closes_the_stages(six_layers: Path) -> None:
    options = replace(OPTIONS, memory_limit=1 << 20)
    links = _Failing([Stage(number, str(six_layers), options) for number in range(2)])
    with pytest.raises(CapacityExceeded, match="limit"):
        load_pipeline(str(six_layers), options, Wanted(2), lambda *_: links)
    assert links.is_closed


def test_stages_of_one_machine_share_memory_and_cores() -> None:
    own = stage_options(LoadOptions(), 3, 2)
    assert (own.memory_limit, own.threads) == ("26%", 2)
    own = stage_options(LoadOptions(memory_limit="2GiB", threads=5), 3, 2)
    assert (own.memory_limit, own.threads) == ("2GiB", 5)


def test_ranges_of_a_split() -> None:
    assert ranges((2, 3, 1)) == [(0, 2), (2, 5), (5, 6)]


def test_work_that_comes_too_early_is_refused(six_layers: Path) -> None:
    stage = Stage(0, str(six_layers), OPTIONS)
    with pytest.raises(EngineError, match="load"):
        stage.open_store(4)
