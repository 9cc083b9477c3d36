"""The lesson of scales computed in the step, proven: our count is zero, the faulty way is caught.

Source: A §2.2. Every scale of a rounded weight comes from two functions of `quant.round`; wrapped,
they count. The other lessons (mask, softmax scale, position) are in
`tests/compute/torch/test_lessons.py`.
"""

from __future__ import annotations

import json
import shutil
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import numpy as np
import pytest
from numpy.typing import NDArray

from firsthand import LLM
from firsthand.compute.batch import FlatBatch
from firsthand.generation.load_options import LoadOptions
from firsthand.generation.loading import load_model
from firsthand.kvcache.store import KVStore
from firsthand.quant import round as rounding

pytestmark = pytest.mark.native


@pytest.fixture
def scales(monkeypatch: pytest.MonkeyPatch) -> Iterator[list[str]]:
    """The name of each computation of scales, as it happens."""
    seen: list[str] = []
    for name in ("channel_scales", "group_scales"):
        original = getattr(rounding, name)

        def counting(*args: Any, _name: str = name, _original: Any = original) -> Any:
            seen.append(_name)
            return _original(*args)

        monkeypatch.setattr(rounding, name, counting)
    yield seen


@pytest.mark.parametrize("quantization", ["int8", "int4"])
def test_scales_are_computed_at_load_and_never_in_a_step(
    micro_folder: Path, scales: list[str], quantization: Any
) -> None:
    with LLM(micro_folder, quantization=quantization, max_context=64) as llm:
        assert scales
        scales.clear()
        llm.generate("abc", max_tokens=20, temperature=0, ignore_end=True)
        assert scales == []


def test_the_faulty_way_is_caught(micro_folder: Path, scales: list[str]) -> None:
    """An executor that rounds its weights again in each step: same tokens, and a count above 0."""
    loaded = load_model(micro_folder, LoadOptions(quantization="int8", max_context=64))
    original = loaded.executor.run

    def rounds_in_each_step(batch: FlatBatch, store: KVStore) -> NDArray[np.float32]:
        rounding.to_channel_int8(np.ones((4, 4), np.float32))
        return original(batch, store)

    loaded.executor.run = rounds_in_each_step  # type: ignore[method-assign]
    with LLM(loaded) as llm:
        scales.clear()
        llm.generate("abc", max_tokens=5, temperature=0, ignore_end=True)
    assert len(scales) == 5


def test_sample_10_sampling_values_of_generation_config_are_not_mixed_in(
    micro_folder: Path, tmp_path: Path
) -> None:
    """A request means the same on every model; only the end tokens of that file are used."""
    changed = tmp_path / "model"
    shutil.copytree(micro_folder, changed)
    settings = {"repetition_penalty": 1.5, "temperature": 0.01, "top_k": 1, "do_sample": True}
    path = changed / "generation_config.json"
    known = json.loads(path.read_text("utf-8")) if path.exists() else {}
    path.write_text(json.dumps(known | settings), "utf-8")
    answers = []
    for folder in (micro_folder, changed):
        with LLM(folder, max_context=64) as llm:
            answers.append(llm.generate("abc", max_tokens=20, seed=3).token_ids)
            answers.append(llm.generate("abc", max_tokens=20, seed=3, top_k=1).token_ids)
    assert answers[0] == answers[2]
    assert answers[1] == answers[3]
    assert answers[0] != answers[1], "an explicit value of the request does something"
