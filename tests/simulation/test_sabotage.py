"""The simulation is seen to see: each deliberate fault is caught, by the invariant it breaks.

A fault that is caught too late, or by nothing, fails here; so does one that something else catches.
"""

from __future__ import annotations

import pytest

from tests.simulation.runs import failure_of, run_seeds
from tests.simulation.sabotage import SABOTAGES, Sabotage
from tests.simulation.workload import random_workload

MAX_STEPS = 30_000


@pytest.mark.slow
@pytest.mark.parametrize("sabotage", SABOTAGES, ids=lambda one: one.name)
def test_sabotage_is_caught(sabotage: Sabotage) -> None:
    with pytest.MonkeyPatch.context() as patch:
        sabotage.apply(patch)
        report = run_seeds(sabotage.first, sabotage.stride, MAX_STEPS)
    assert report.failure is not None, f"not caught in {report.num_steps} steps"
    assert report.failure.invariant in sabotage.caught_by, report.failure.what
    assert failure_of(random_workload(report.failure.seed)) is None, (
        "it fails without the fault too"
    )
