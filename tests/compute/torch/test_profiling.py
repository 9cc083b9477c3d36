"""Steps under torch's profiler, and the ranges around operators."""

from __future__ import annotations

from collections.abc import Iterator
from contextlib import AbstractContextManager, contextmanager, nullcontext
from typing import Any

import numpy as np
import pytest

pytest.importorskip("torch")
import torch

from firsthand.compute.executor import Profiles
from firsthand.compute.torch.executor import TorchExecutor
from firsthand.models.families import read_config
from tests.compute.torch.tiny import ArrayStore, Piece, config, flat, prompt, ready, whole

pytestmark = pytest.mark.torch


def test_s42_a_profiled_trace_has_the_calls_and_their_trace() -> None:
    spec = read_config(config())
    executor: Any = ready(TorchExecutor())
    profiles: object = executor
    assert isinstance(profiles, Profiles)
    batch = flat([Piece(prompt(12))])
    plain, names = executor.trace(batch, ArrayStore(spec))
    with executor.profile_traces() as steps:
        logits, times = executor.trace(batch, ArrayStore(spec))
    assert np.array_equal(logits, plain)
    assert [time.name for time in times] == [time.name for time in names]
    (step,) = steps
    calls = {call.name: call for call in step.calls}
    product = calls["aten::mm"]
    assert product.count == 15  # seven linear layers twice, and the head
    macs = sum(time.num_macs for time in times if time.name in ("linear", "head"))
    assert product.num_flops == 2 * macs
    assert product.allocated_bytes > 0
    assert step.total_ms >= product.self_ms > 0
    assert calls["aten::matmul"].total_ms >= product.self_ms
    assert all(call.device_ms == 0 for call in step.calls)
    assert list(step.calls) == sorted(step.calls, key=lambda call: -call.self_ms)
    events = [event for event in step.trace["traceEvents"] if event.get("ph") == "X"]
    ranges = [event["name"] for event in events if event.get("cat") == "user_annotation"]
    assert len(ranges) == len(times)
    assert "attend layer 1" in ranges
    assert "linear model.layers.0.mlp.up_proj.weight" in ranges
    assert not set(ranges) & set(calls)  # a range is no call
    assert any(event["name"] == "aten::mm" for event in events)
    executor.trace(batch, ArrayStore(spec))
    assert len(steps) == 1  # outside nothing is profiled


class Recorder:
    """In place of a drawer of ranges."""

    def __init__(self) -> None:
        self.names: list[str] = []
        self.depth = 0

    def __call__(self, name: str) -> AbstractContextManager[None]:
        @contextmanager
        def open_range() -> Iterator[None]:
            self.names.append(name)
            self.depth += 1
            yield
            self.depth -= 1

        return open_range()


def test_s43_every_operator_has_its_range(monkeypatch: pytest.MonkeyPatch) -> None:
    """On CUDA the ranges are NVTX; there is none here, so that the executor asks for them is
    shown with another drawer in their place."""
    spec, drawn = read_config(config()), Recorder()
    executor = ready(TorchExecutor())
    plain = whole(executor, spec, prompt(9))
    monkeypatch.setattr(executor, "_range_of", drawn)
    assert np.array_equal(whole(executor, spec, prompt(9)), plain)
    assert drawn.depth == 0
    assert len(drawn.names) == 1 + 2 * 16 + 2
    assert [name for name in drawn.names if name.startswith("store")] == [
        "store layer 0",
        "store layer 1",
    ]
    assert drawn.names[-1] == "head lm_head.weight"


def test_s43_on_the_cpu_nobody_draws(monkeypatch: pytest.MonkeyPatch) -> None:
    def refuse(*_: object) -> Any:
        raise AssertionError("a range was drawn")

    monkeypatch.setattr(torch.cuda.nvtx, "range", refuse)
    monkeypatch.setattr(torch.profiler, "record_function", refuse)
    whole(ready(TorchExecutor()), read_config(config()), prompt(3))


@pytest.mark.gpu
def test_s43_on_cuda_the_ranges_are_those_of_nvtx(monkeypatch: pytest.MonkeyPatch) -> None:
    if not torch.cuda.is_available():
        pytest.skip("no CUDA device")
    names: list[str] = []

    def range_of(name: str) -> AbstractContextManager[None]:
        names.append(name)
        return nullcontext()

    monkeypatch.setattr(torch.cuda.nvtx, "range", range_of)
    whole(ready(TorchExecutor(device="cuda")), read_config(config()), prompt(3))
    assert "attend layer 0" in names
