"""Bubbles and hops, from spans whose figures are known."""

from __future__ import annotations

import json

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from firsthand.cluster.pipeline.report import shown_steps
from firsthand.cluster.pipeline.timeline import (
    Span,
    bubble_share,
    chrome_trace,
    formula,
    formula_share,
    hops,
    picture,
    stage_ms,
)


def ideal(num_stages: int, num_parts: int, step: int = 1, hop_s: float = 0.0) -> list[Span]:
    """Each part takes a second in each stage, as soon as it is there and the stage is free."""
    ended: dict[tuple[int, int], float] = {}
    spans = []
    for part in range(num_parts):
        for stage in range(num_stages):
            there = ended.get((part, stage - 1), 0.0) + (hop_s if stage else 0.0)
            began = max(there, ended.get((part - 1, stage), 0.0))
            ended[part, stage] = began + 1.0
            spans.append(Span(step, part, stage, 100.0 + began, 101.0 + began, 4, 64))
    return spans


@given(st.integers(1, 6), st.integers(1, 12))
@settings(deadline=None, max_examples=50)
def test_s108_equal_stages_have_the_formulas_bubble(num_stages: int, num_parts: int) -> None:
    spans = ideal(num_stages, num_parts)
    assert bubble_share(spans, num_stages) == pytest.approx(formula(num_stages, num_parts))
    assert formula_share(spans, num_stages) == pytest.approx(formula(num_stages, num_parts))


def test_two_stages_and_one_part_wait_half_of_the_time() -> None:
    assert formula(2, 1) == 0.5
    assert formula(3, 4) == pytest.approx(1 / 3)


def test_steps_are_weighed_by_their_time() -> None:
    """4 parts of two stages take five seconds, one part two; what lies between does not count."""
    spans = [*ideal(2, 4, step=1), *ideal(2, 1, step=2)]
    assert bubble_share(spans, 2) == pytest.approx(1 - 10 / 14)
    assert formula_share(spans, 2) == pytest.approx((0.2 * 5 + 0.5 * 2) / 7)


def test_s109_a_hop_is_what_a_free_stage_waits_for_a_part_that_is_ready() -> None:
    found = hops(ideal(2, 3, hop_s=0.25))
    assert found.ms == pytest.approx((250.0, 0.0, 0.0))  # the others are hidden
    assert found.num_bytes == 3 * 64
    assert found.mean_bytes == 64
    assert hops(ideal(1, 3)).mean_ms == 0.0


def test_the_time_of_each_stage() -> None:
    assert stage_ms(ideal(3, 2), 3) == pytest.approx([2000.0, 2000.0, 2000.0])


def test_the_picture_has_a_line_per_stage_and_dots_for_bubbles() -> None:
    assert picture(ideal(2, 3), 2, width=4) == ["stage 0  012·", "stage 1  ·012"]
    assert picture([], 2) == []


def test_the_trace_has_a_track_per_stage() -> None:
    trace = json.loads(json.dumps(chrome_trace(ideal(2, 2), 2, {"model": "m"})))
    spans = [event for event in trace["traceEvents"] if event["ph"] == "X"]
    assert [(event["tid"], event["ts"], event["dur"]) for event in spans] == [
        (1, 0.0, 1e6),
        (2, 1e6, 1e6),
        (1, 1e6, 1e6),
        (2, 2e6, 1e6),
    ]
    names = [e["args"]["name"] for e in trace["traceEvents"] if e["name"] == "thread_name"]
    assert names == ["stage 0", "stage 1"]


def test_the_steps_that_are_shown() -> None:
    spans = [*ideal(2, 4, step=1), *ideal(2, 1, step=2), *ideal(2, 1, step=3)]
    assert [title for title, _ in shown_steps(spans)] == ["step 1, 16 rows", "step 3, 4 rows"]
    assert shown_steps([]) == []
