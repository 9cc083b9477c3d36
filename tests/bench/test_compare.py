"""The comparison asks each engine the same, in turns, and never drops one silently.

Owns: engines without a model that answer or fail. May not know: any real engine.
Read next: `bench/compare.py`.
"""

from __future__ import annotations

from pathlib import Path

import numpy as np
import pytest

from bench.compare import Contest, Settings, lines, prompt, spread
from bench.rivals.engines import ENGINES, HERE, OURS, Engine
from bench.rivals.protocol import nll_of_rows

pytestmark = pytest.mark.process

FAKE = str(Path(__file__).with_name("fake_rival.py"))


def fake(name: str, kind: str = "well") -> Engine:
    return Engine(name, "none", "", "", FAKE, options=(kind,))


def contest(*engines: Engine, repeats: int = 2) -> Contest:
    here = Path(__file__)
    return Contest(engines, Settings(here.parent, here, 1, repeats))


def test_every_engine_has_its_turn_in_every_round() -> None:
    between = contest(fake("a"), fake("b"))
    try:
        reached, failed = between.rounds("decode")
    finally:
        between.close()
    assert not failed
    assert [len(values) for values in reached.values()] == [2, 2], "the warm-up is left out"
    assert all(value[0] > 0 for values in reached.values() for value in values)


def test_start_gives_the_time_and_the_memory_of_a_new_process() -> None:
    reached, failed = contest(fake("a"), repeats=1).rounds("start")
    assert not failed
    ((seconds, mib),) = reached[fake("a")]
    assert 0 < seconds < 60
    assert 1 < mib < 1000


@pytest.mark.parametrize(
    ("engine", "reason"),
    [
        (fake("a", "no room"), "MemoryError: no room"),
        (fake("a", "short"), "ValueError: [127] new tokens instead of 128"),
        (Engine("a", "none", "", "", "absent.py"), "not installed"),
        (Engine("a", "none", "", "nowhere", FAKE), "not installed"),
        (Engine("a", "none", "", "", str(HERE / "protocol.py")), "ended without an answer"),
    ],
)
def test_an_engine_that_fails_has_a_line_that_says_why(engine: Engine, reason: str) -> None:
    between = contest(engine, fake("b"), repeats=1)
    try:
        reached, failed = between.rounds("decode")
    finally:
        between.close()
    assert failed == {engine: reason}
    values = {each: [value[0] for value in of] for each, of in reached.items()}
    found = list(lines("decode", values, failed))
    assert [line.get("missing") for line in found] == [reason, None]


def test_a_ratio_is_of_neighbours_in_time() -> None:
    """Ours was 2 and 3 times as fast, though the medians of all rounds say 1.67."""
    values = {fake(OURS): [20.0, 30.0], fake("b"): [10.0, 10.0]}
    ours, theirs = lines("decode", values, {})
    assert ours["ours_over"] == {"none": spread([1.0, 1.0])}
    assert theirs["ours_over"] == {"none": {"min": 2.0, "median": 2.5, "max": 3.0}}


def test_of_a_time_the_smaller_one_is_ahead() -> None:
    values = {fake(OURS): [0.2], fake("b"): [0.5]}
    assert list(lines("start", values, {}))[1]["ours_over"]["none"]["median"] == 2.5


def test_prompts_are_the_same_for_all_and_new_in_each_round() -> None:
    assert prompt(16, 3) == prompt(16, 3)
    assert len({tuple(prompt(16, seed)) for seed in range(-1, 5)}) == 6


def test_a_score_is_the_log_of_the_softmax() -> None:
    rows = np.log(np.array([[0.5, 0.25, 0.25], [0.1, 0.8, 0.1]]))
    assert nll_of_rows(rows + 1000, [1, 0]) == pytest.approx(-np.log(0.25) - np.log(0.1))


def test_every_engine_has_its_script_and_its_own_row() -> None:
    rows = [(engine.name, engine.weights, engine.is_server) for engine in ENGINES]
    assert len(set(rows)) == len(rows)
    assert all((HERE / engine.script).is_file() for engine in ENGINES)
    assert all(engine.version for engine in ENGINES if engine.name != OURS)
