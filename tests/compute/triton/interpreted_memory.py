"""Memory of a card, where there is none: refusals, errors and readings are made; loads are real.

Owns: the reserve, what an error becomes, and that a load holds no second copy.
May not know: kernels. Read next: `../../engine/test_attempts.py`, who hears of it.
"""

from __future__ import annotations

import tracemalloc
from typing import Any

import numpy as np
import pytest
import torch

from firsthand.compute.triton.memory import DeviceReserve, told_apart
from firsthand.compute.triton.weights import Staging, load_weight
from firsthand.errors import CapacityExceeded, DeviceLost, InvalidRequest
from firsthand.quant.formats import BLOCK_BYTES, FloatFormat, FloatWeight, Format, Weight
from tests.compute.native.micro import batch
from tests.compute.triton.device import DEVICE
from tests.compute.triton.interpreted_executor import IDS, new_store, ready, small

FULL = "CUDA out of memory. Tried to allocate 2.00 GiB\nand much more"
SICK = ("CUDA error: an illegal memory access was encountered", "Triton Error [CUDA]: misaligned")


def reserve() -> DeviceReserve:
    dropped: list[int] = []
    found = DeviceReserve(lambda n: bytearray(n), lambda: dropped.append(1), 8)
    found.take()
    assert found.is_held
    return found


class Refusing:
    """Raises for the first runs of a replay, and then runs it."""

    def __init__(self, executor: Any, *faults: Exception) -> None:
        self.run_it, self.faults = executor._replay.run, list(faults)
        executor._replay.run = self

    def __call__(self, *arguments: Any) -> Any:
        if self.faults:
            raise self.faults.pop(0)
        return self.run_it(*arguments)


def test_s62_the_reserve_goes_at_the_first_refusal_and_the_step_is_run_again() -> None:
    executor = ready(small())
    store = new_store(executor)
    step = batch(store, (0, 0, IDS[:3]))
    wanted = executor.run(step, store).copy()
    executor._reserve = reserve()
    Refusing(executor, torch.OutOfMemoryError(FULL))
    assert np.array_equal(executor.run(step, store), wanted)
    assert not executor._reserve.is_held
    Refusing(executor, torch.OutOfMemoryError(FULL))
    with pytest.raises(MemoryError, match=r"the card: CUDA out of memory. Tried .* GiB$"):
        executor.run(step, store)
    assert np.array_equal(executor.run(step, store), wanted)


@pytest.mark.parametrize("text", SICK)
def test_s61_any_other_error_of_the_card_is_for_good(text: str) -> None:
    executor = ready(small())
    store = new_store(executor)
    Refusing(executor, RuntimeError(text))
    with pytest.raises(DeviceLost, match="the card failed"):
        executor.run(batch(store, (0, 0, IDS[:3])), store)


def test_an_error_that_is_not_the_cards_stays_what_it_is() -> None:
    with pytest.raises(RuntimeError, match="shapes"), told_apart():
        raise RuntimeError("shapes do not fit")


def test_a_load_that_does_not_fit_says_what_had_no_room(monkeypatch: pytest.MonkeyPatch) -> None:
    executor = ready(small())

    def refuse(*_: Any) -> Any:
        raise torch.OutOfMemoryError(FULL)

    monkeypatch.setattr("firsthand.compute.triton.executor.DeviceStore", refuse)
    with pytest.raises(CapacityExceeded, match="no room for the keys and values"):
        executor.new_store(4, 16, "float32")


class Large:
    """A matrix of float16 that is nowhere but in the block that is asked for."""

    name = "large"
    shape = (16384, 2048)
    format: Format = FloatFormat("float16")

    def rows(self, start: int, stop: int) -> Weight:
        values = np.full((stop - start, self.shape[1]), 0.5, np.float16)
        return FloatWeight(FloatFormat("float16"), values)

    def release(self) -> None:
        pass


def test_s88_a_load_holds_a_few_blocks_beside_the_device() -> None:
    """64 MiB pass through; what the host holds meanwhile is two blocks."""
    device = torch.device(DEVICE)
    staging = Staging(device)
    tracemalloc.start()
    held = load_weight(Large(), staging, device, torch.bfloat16)
    _, peak_bytes = tracemalloc.get_traced_memory()
    tracemalloc.stop()
    staging.finish()
    assert held.num_bytes == 64 << 20
    assert bool((held.values == 0.5).all())
    assert peak_bytes <= 2 * BLOCK_BYTES


def test_a_graph_wants_a_card() -> None:
    if DEVICE == "cpu":
        with pytest.raises(InvalidRequest, match="compile: a graph is captured on a card"):
            ready(small(), buckets=(1,))
