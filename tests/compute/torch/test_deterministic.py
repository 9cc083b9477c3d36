"""Deterministic algorithms: equal bits, the flag of the process, and the name of what has none."""

from __future__ import annotations

import threading
from typing import Any

import numpy as np
import pytest

pytest.importorskip("torch")
import torch

from firsthand.compute.torch.deterministic import deterministic_algorithms
from firsthand.compute.torch.executor import TorchExecutor
from firsthand.compute.torch.ops import TorchOps
from firsthand.errors import EngineError
from firsthand.models.families import read_config
from tests.compute.torch.tiny import ArrayStore, Piece, config, flat, prompt, ready, whole

pytestmark = pytest.mark.torch


def test_two_runs_have_equal_bits_and_the_flag_is_put_back() -> None:
    spec = read_config(config())
    one, other = (
        whole(ready(TorchExecutor(deterministic=True)), spec, prompt(70)) for _ in range(2)
    )
    assert np.array_equal(one, other)
    assert not torch.are_deterministic_algorithms_enabled()


class SeesTheFlag(TorchOps):
    def add(self, x: Any, y: Any) -> Any:
        assert torch.are_deterministic_algorithms_enabled()
        return super().add(x, y)


class HasNoDeterministicForm(TorchOps):
    """`put_` without accumulation is one of the few that torch knows none of on the CPU either."""

    def add(self, x: Any, y: Any) -> Any:
        return x.clone().put_(torch.tensor([0, 0]), torch.tensor([1.0, 2.0]))


def test_the_flag_is_set_while_a_step_runs(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr("firsthand.compute.torch.executor.TorchOps", SeesTheFlag)
    executor, spec = ready(TorchExecutor(deterministic=True)), read_config(config())
    whole(executor, spec, prompt(5))
    executor.trace(flat([Piece(prompt(5))]), ArrayStore(spec))
    with pytest.raises(AssertionError):  # and it is seen to be off without the option
        whole(ready(TorchExecutor()), spec, prompt(5))


def test_an_operator_without_a_deterministic_form_is_named(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    monkeypatch.setattr("firsthand.compute.torch.executor.TorchOps", HasNoDeterministicForm)
    spec = read_config(config())
    whole(ready(TorchExecutor()), spec, prompt(5))
    with pytest.raises(EngineError, match=r"deterministic: put_ does not have a deterministic"):
        whole(ready(TorchExecutor(deterministic=True)), spec, prompt(5))
    assert not torch.are_deterministic_algorithms_enabled()


def test_the_first_step_to_end_does_not_clear_the_flag_of_another() -> None:
    inside, leave = threading.Event(), threading.Event()
    seen = []

    def longer() -> None:
        with deterministic_algorithms():
            inside.set()
            leave.wait(10)
            seen.append(torch.are_deterministic_algorithms_enabled())

    thread = threading.Thread(target=longer)
    with deterministic_algorithms():
        thread.start()
        assert inside.wait(10)
    leave.set()
    thread.join()
    assert seen == [True]
    assert not torch.are_deterministic_algorithms_enabled()


def test_what_was_set_before_is_put_back() -> None:
    torch.use_deterministic_algorithms(True, warn_only=True)
    try:
        with deterministic_algorithms():
            assert not torch.is_deterministic_algorithms_warn_only_enabled()
        assert torch.is_deterministic_algorithms_warn_only_enabled()
    finally:
        torch.use_deterministic_algorithms(False)


def test_any_other_fault_passes_through() -> None:
    with pytest.raises(RuntimeError, match="mat1"), deterministic_algorithms():
        torch.ones(2, 3) @ torch.ones(2, 3)
