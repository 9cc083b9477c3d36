"""Options of the torch executor, seen from above.

Owns: what `compile` and `deterministic` mean to whoever generates.
May not know: how a step is compiled. Read next: `tests/compute/torch/test_compiled.py`.
"""

from __future__ import annotations

from pathlib import Path
from typing import Any

import pytest

pytest.importorskip("torch")
import torch

from firsthand.compute.torch.ops import TorchOps
from firsthand.errors import EngineError
from firsthand.generation.llm import LLM

pytestmark = pytest.mark.torch

PROMPT = "a few words"


def test_two_deterministic_runs_have_equal_bits(micro_folder: Path) -> None:
    found = []
    for _ in range(2):
        with LLM(micro_folder, executor="torch", max_context=64, deterministic=True) as llm:
            done = llm.generate(PROMPT, max_tokens=8, temperature=0.7, seed=3, logprobs=2)
            found.append((done.token_ids, done.logprobs))
    assert found[0] == found[1]
    assert not torch.are_deterministic_algorithms_enabled()


class HasNoDeterministicForm(TorchOps):
    def add(self, x: Any, y: Any) -> Any:
        return x.clone().put_(torch.tensor([0, 0]), torch.tensor([1.0, 2.0]))


def test_what_has_no_deterministic_form_ends_the_request_by_name(
    micro_folder: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr("firsthand.compute.torch.executor.TorchOps", HasNoDeterministicForm)
    llm = LLM(micro_folder, executor="torch", max_context=64, deterministic=True)
    with llm, pytest.raises(EngineError, match="deterministic: put_ does not have"):
        llm.generate(PROMPT, max_tokens=2)


def test_the_facts_of_compiled_steps_come_with_the_model(
    micro_folder: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Graphs run as they are here: what compiling them changes is tested with the executor."""
    monkeypatch.setattr(torch, "compile", lambda graph, **_: graph)
    with LLM(micro_folder, executor="torch", max_context=64) as llm:
        assert llm.loaded.compiled_steps is None
        plain = llm.generate(PROMPT, max_tokens=4, temperature=0)
    buckets = [16, 2]
    with LLM(
        micro_folder, executor="torch", max_context=64, compile=True, compile_buckets=buckets
    ) as llm:
        found = llm.generate(PROMPT, max_tokens=4, temperature=0)
        facts = llm.loaded.compiled_steps
    assert found.token_ids == plain.token_ids
    assert facts is not None
    assert [(one.num_rows, one.num_hits) for one in facts.buckets] == [(2, 3), (16, 1)]
    assert facts.hit_rate == 1.0
