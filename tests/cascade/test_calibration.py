"""The fit is a stair that rises and errs least; the file is what its hash says, or is refused."""

from __future__ import annotations

import json
from collections.abc import Callable
from dataclasses import replace
from math import inf
from pathlib import Path
from typing import Any

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from firsthand.cascade.calibration import (
    Calibration,
    Side,
    fitted,
    isotonic,
    read_calibration,
    with_confidence,
)
from firsthand.cascade.tradeoff import Sample, curve, point
from firsthand.errors import InvalidRequest

SIDES = (
    Side("small", "a" * 64, "auto", "int16", "native", 2, 100),
    Side("large", "b" * 64, "auto", "int16", "native", 2, 1000),
)
STEPS = ((-4.0, 0.25), (-1.0, 0.5), (-0.5, 1.0))
PAIRS = st.lists(st.tuples(st.integers(-6, 0).map(float), st.floats(0, 1)), min_size=1, max_size=14)


def calibration(**changes: Any) -> Calibration:
    values: dict[str, Any] = {
        "form": "chat",
        "measure": "mean",
        "window": 2,
        "confidence": 0.6,
        "steps": STEPS,
        "num_prompts": 9,
        "max_tokens": 8,
        "error": 0.1,
    }
    return Calibration(*SIDES, **{**values, **changes})


def worth(steps: tuple[tuple[float, float], ...], score: float) -> float:
    return max(worth for least, worth in steps if least <= score)


@given(pairs=PAIRS, other=st.lists(st.floats(0, 1), min_size=7, max_size=7).map(sorted))
@settings(deadline=None, max_examples=150)
def test_no_stair_errs_less(pairs: list[tuple[float, float]], other: list[float]) -> None:
    steps = isotonic(pairs)
    assert list(steps) == sorted(steps)
    assert all(0 <= value <= 1 for _, value in steps)
    ours = sum((worth(steps, score) - value) ** 2 for score, value in pairs)
    theirs = sum((other[int(score) + 6] - value) ** 2 for score, value in pairs)
    assert ours <= theirs + 1e-9
    assert sum(worth(steps, score) for score, _ in pairs) == pytest.approx(
        sum(value for _, value in pairs)
    )


def test_neighbours_in_the_wrong_order_are_joined() -> None:
    found = isotonic([(-3, 0.0), (-2, 0.8), (-1, 0.4), (-1, 0.6), (0, 1.0)])
    assert [least for least, _ in found] == [-3, -2, 0]
    assert [value for _, value in found] == pytest.approx([0.0, 0.6, 1.0])


def test_from_a_threshold_to_a_rule() -> None:
    made = calibration()
    assert [made.rule(one).least for one in (0.0, 0.1, 0.5, 0.6, 1.0)] == [
        *(-inf, -4.0, -1.0, -0.5, -0.5)
    ]
    low = calibration(steps=((-2.0, 0.3),))
    assert low.rule().least == inf, "nothing is worth so much: all of it goes on"
    assert [made.worth(one) for one in (-9.0, -4.0, -0.7, 0.0)] == [0.0, 0.25, 0.5, 1.0]


def test_the_measure_that_tells_more_is_chosen() -> None:
    scores = {"mean": [-1.0, -1.0, -1.0, -1.0], "least": [-3.0, -2.0, -1.0, 0.0]}
    made = fitted(SIDES, "text", scores, [0.0, 0.0, 1.0, 1.0], 16, 0.8, 64)
    assert (made.measure, made.error, made.num_prompts) == ("least", 0.0, 4)


def test_a_file_is_read_as_it_was_written(tmp_path: Path) -> None:
    path = tmp_path / "quick.json"
    made = fitted(SIDES, "chat", {"mean": [-0.1, -1 / 3]}, [1 / 3, 0.7], 16, 0.8, 64)
    path.write_bytes(made.content())
    assert read_calibration(path) == made
    assert made.sha256 != with_confidence(made, 0.9).sha256


BROKEN: dict[str, Callable[[dict[str, Any]], object]] = {
    "sha256": lambda content: content.update(confidence=0.1),
    "version": lambda content: content.update(version=2),
    "the file": lambda content: content.update(extra=1),
    "small": lambda content: content["small"].pop("weights"),
    "steps": lambda content: content.update(steps=[[0, 1], [-1, 0]]),
    "window": lambda content: content.update(window=0),
    "confidence": lambda content: content.update(confidence=2),
    "measure": lambda content: content.update(measure="most"),
    "parameters": lambda content: content["large"].update(parameters="many"),
}


@pytest.mark.parametrize("field", BROKEN)
def test_a_file_that_was_changed_is_refused_by_the_fields_name(tmp_path: Path, field: str) -> None:
    content = calibration().to_dict()
    BROKEN[field](content)
    path = tmp_path / "quick.json"
    path.write_text(json.dumps(content))
    with pytest.raises(InvalidRequest) as refused:
        read_calibration(path)
    assert refused.value.field == f"{path}: {field}"


@pytest.mark.parametrize("text", ["", "[]", '{"a": 1, "a": 2}', "[" * 100_000])
def test_no_calibration_is_refused(tmp_path: Path, text: str) -> None:
    path = tmp_path / "quick.json"
    path.write_text(text)
    with pytest.raises(InvalidRequest):
        read_calibration(path)
    with pytest.raises(InvalidRequest):
        read_calibration(tmp_path / "none.json")


def sample(logprobs: tuple[float, ...], small: float) -> Sample:
    return Sample(logprobs, tuple(range(1, len(logprobs) + 1)), 10, 12, 8, 40.0, small, 1.0)


def test_quality_against_cost() -> None:
    """Of four answers two are sure. What an answer that is given up costs is what was looked at."""
    samples = [
        *(sample((-0.1, -0.1, -9.0), 1.0), sample((-0.4, -0.6, 0.0), 0.5)),
        *(sample((-0.9, -0.9, 0.0), 0.5), sample((-9.0, -0.1, 0.0), 0.0)),
    ]
    points = curve(calibration(), samples)
    shares = [(one.confidence, one.escalated) for one in points]
    assert shares == [(0.0, 0.0), (0.25, 0.25), (1.0, 0.5)], "0.5 changes nothing"
    never, half = points[0], points[-1]
    assert (never.quality, half.quality, half.chance_quality) == (0.5, 0.875, 0.75)
    assert never.cost == 4 * 13 * 100 / (4 * 20 * 1000)
    spent = (2 * 13 + 12 + 11) * 100 + 2 * 20 * 1000
    assert half.cost == spent / (4 * 20 * 1000)
    assert half.time == (2 * 3 + 2 + 1 + 80) / 160
    assert point(calibration(), samples, 0.6) == replace(half, confidence=0.6)


def test_worth_is_the_part_of_the_large_ones_quality() -> None:
    assert Sample((), (1,), 1, 1, 1, 1, 0.2, 0.4).worth == 0.5
    assert Sample((), (1,), 1, 1, 1, 1, 0.4, 0.2).worth == 1.0
    assert Sample((), (1,), 1, 1, 1, 1, 0.0, 0.0).worth == 1.0
