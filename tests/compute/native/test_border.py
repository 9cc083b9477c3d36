"""The border to C++: the pool of threads, and what a plan refuses when it is built."""

from __future__ import annotations

import threading
from collections.abc import Callable

import numpy as np
import pytest

from firsthand.compute.native import _native
from firsthand.compute.native.executor import NativeExecutor
from firsthand.errors import EngineError
from tests.compute.native.micro import FORMATS, MicroModel, instruction_sets, run_whole, spec

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


def test_wrong_sizes_are_refused_when_the_plan_is_built() -> None:
    """The border to C++ checks what a kernel will index: widths, lengths, heads, layers."""

    def plan() -> tuple[_native.Plan, int, int]:
        made = _native.Plan(4, 4, 10, 8, [([1.0, 0.5, 0.25, 0.1], 1.0)], _native.Threads(1))
        return made, made.add_buffer(0, 16), made.add_buffer(1024, 24)

    weight = _native.PackedWeight("float32", 24, 16)
    many = [weight] * 16
    gain = np.ones(20, np.float32)
    made, narrow, wide = plan()
    made.linear(narrow, [weight], [None], [wide])
    made.receive(narrow)
    made.send(narrow)
    wrong: list[Callable[[], object]] = [
        lambda: made.linear(wide, [weight], [None], [narrow]),
        lambda: made.linear(narrow, [weight], [None], [narrow]),
        lambda: made.linear(narrow, [weight], [None], []),
        lambda: made.linear(narrow, [weight], [None], [wide], residual=narrow),
        lambda: made.linear(narrow, [weight], [None], [wide], gain=np.ones(40, np.float32)),
        lambda: made.linear(narrow, [weight], [np.ones(50, np.float32)], [wide]),
        lambda: made.linear(narrow, [weight], [None], [wide], gated="silu"),
        lambda: made.linear(narrow, [weight], [None], [], logits=True),
        lambda: made.embed(weight, narrow),
        lambda: made.norm(narrow, gain, 1e-5, wide),
        lambda: made.rope(narrow, 3, narrow),
        lambda: made.store(-1, narrow, narrow),
        lambda: made.store(0, narrow, wide),
        lambda: made.attend(0, narrow, narrow, 2, 0, 1.0),
        lambda: made.attend(0, narrow, narrow, 3, 2, 1.0),
        lambda: made.attend(0, narrow, wide, 2, 1, 1.0),
        lambda: made.attend(0, narrow, narrow, 2, 1, -1.0),
        lambda: made.attend(0, narrow, narrow, 2, 1, 1.0, cap=-1.0),
        lambda: made.attend(0, narrow, narrow, 2, 1, 1.0, window=-1),
        lambda: made.attend(0, narrow, narrow, 2, 1, 1.0, table=1),
        lambda: made.store(0, narrow, narrow, table=1),
        lambda: made.rope(narrow, 2, narrow, table=-1),
        lambda: made.norm(narrow, gain, 1e-5, narrow, num_heads=0),
        lambda: made.norm(narrow, np.ones(8, np.float32), 1e-5, narrow, num_heads=3),
        lambda: made.route(narrow, narrow, 0, False),
        lambda: made.route(narrow, narrow, 17, False),
        lambda: made.route(narrow, wide, 2, False),
        lambda: made.route(narrow, narrow, 2, False, shared=wide),
        lambda: made.experts(narrow, narrow, narrow, [weight], [weight], [weight], "silu"),
        lambda: made.experts(narrow, narrow, narrow, many, many, [], "silu"),
        lambda: made.experts(narrow, narrow, wide, many, many, many, "silu"),
        lambda: made.experts(narrow, narrow, narrow, many, many, many, "silu"),
        lambda: made.activation(narrow, wide, narrow, "silu"),
        lambda: made.add(narrow, wide, narrow),
        lambda: made.add(narrow, 7, narrow),
        lambda: made.receive(narrow),  # a second one
        lambda: made.send(narrow),
        lambda: made.send(7),
    ]
    for build in wrong:
        with pytest.raises((ValueError, IndexError)):
            build()


def test_a_plan_runs_once_at_a_time() -> None:
    """Two engines over one executor would share its scratch: the second is told, not corrupted."""
    model = MicroModel.random(spec(), FORMATS["q4_1"])
    executor = NativeExecutor(threads=1)
    model.load(executor)
    ids = np.arange(100)
    want = run_whole(executor, model, ids).tobytes()
    refused: list[str] = []

    def work() -> None:
        for _ in range(40):
            try:
                assert run_whole(executor, model, ids).tobytes() == want
            except EngineError as fault:
                refused.append(str(fault))

    workers = [threading.Thread(target=work) for _ in range(3)]
    for worker in workers:
        worker.start()
    for worker in workers:
        worker.join(timeout=60)
    assert refused
    assert all("another thread" in message for message in refused)
    assert run_whole(executor, model, ids).tobytes() == want


@pytest.mark.parametrize("isa", instruction_sets())
def test_rotation_is_that_of_the_mathematics_library(isa: str) -> None:
    frequencies = [1.0, 0.5, 100000.0**-0.3, 1e-4, 1e-7]
    positions = np.concatenate([np.arange(5000), 2 ** np.arange(13, 31) + 7]).astype(np.int32)
    cosine, sine = (np.empty((len(positions), 5), np.float32) for _ in range(2))
    _native.rotation(positions, frequencies, 1.25, cosine, sine, isa)
    angles = np.outer(positions.astype(np.float64), frequencies)
    for got, want in ((cosine, np.cos(angles)), (sine, np.sin(angles))):
        assert np.abs(got - want * 1.25).max() <= 1.25 * 2**-24
