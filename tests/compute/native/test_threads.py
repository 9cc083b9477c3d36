"""The pool: every item once, whatever the number of threads; no thread outlives its owner."""

from __future__ import annotations

import threading

import numpy as np
import pytest

from firsthand.compute.native import _native
from firsthand.compute.native.executor import NativeExecutor
from tests.compute.native.micro import FORMATS, MicroModel, run_whole, spec

pytestmark = pytest.mark.native


def test_count_has_limits() -> None:
    for count in (0, -1, 257):
        with pytest.raises(ValueError, match="threads"):
            _native.Threads(count)
    assert _native.Threads(3).count == 3


def test_many_short_steps_never_hang_or_differ() -> None:
    """The wake-up and the end of a call are where a pool loses an item: ten thousand of each."""
    model = MicroModel.random(spec(num_layers=1), FORMATS["q8_0"])
    ids = np.arange(2)
    executor = NativeExecutor(threads=4)
    model.load(executor)
    want = run_whole(executor, model, ids).tobytes()
    for _ in range(1500):
        assert run_whole(executor, model, ids).tobytes() == want


def test_executors_run_beside_each_other() -> None:
    """The interpreter lock is released in a step: two Python threads, two pools, equal bits."""
    model = MicroModel.random(spec(), FORMATS["q4_1"])
    ids = np.arange(40)
    results: list[bytes] = []

    def work() -> None:
        executor = NativeExecutor(threads=2)
        model.load(executor)
        results.extend(run_whole(executor, model, ids).tobytes() for _ in range(20))

    workers = [threading.Thread(target=work) for _ in range(3)]
    for worker in workers:
        worker.start()
    for worker in workers:
        worker.join(timeout=60)
    assert len(results) == 60
    assert len(set(results)) == 1
