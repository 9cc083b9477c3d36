"""Which stage has how many layers: against all splits there are."""

from __future__ import annotations

from itertools import combinations, pairwise

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from firsthand.cluster.pipeline.splits import (
    Costs,
    check_split,
    choose_split,
    even_split,
    read_split,
)
from firsthand.errors import InvalidRequest

costs = st.builds(
    Costs,
    st.lists(st.floats(0.0, 100.0), min_size=1, max_size=9).map(tuple),
    st.floats(0.0, 300.0),
    st.floats(0.0, 300.0),
)


def splits_of(num_layers: int, num_stages: int) -> list[tuple[int, ...]]:
    found = []
    for cuts in combinations(range(1, num_layers), num_stages - 1):
        bounds = (0, *cuts, num_layers)
        found.append(tuple(b - a for a, b in pairwise(bounds)))
    return found


@given(costs, st.integers(1, 5))
@settings(deadline=None, max_examples=200)
def test_s107_no_split_has_a_quicker_slowest_stage(costs: Costs, num_stages: int) -> None:
    num_layers = len(costs.layers)
    num_stages = min(num_stages, num_layers)
    chosen = choose_split(costs, num_stages)
    assert sum(chosen) == num_layers
    assert len(chosen) == num_stages
    assert min(chosen) >= 1
    best = min(max(costs.of_stages(split)) for split in splits_of(num_layers, num_stages))
    assert max(costs.of_stages(chosen)) == pytest.approx(best)


def test_a_large_head_takes_layers_from_the_last_stage() -> None:
    """SmolLM2: the head costs as much as eight of its thirty layers."""
    assert choose_split(Costs((1.0,) * 30, 0.0, 8.0), 2) == (19, 11)
    assert choose_split(Costs((1.0,) * 30), 3) == (10, 10, 10)


@given(st.integers(1, 40), st.integers(1, 40))
@settings(deadline=None, max_examples=50)
def test_an_even_split_differs_by_one(num_layers: int, num_stages: int) -> None:
    num_stages = min(num_stages, num_layers)
    split = even_split(num_layers, num_stages)
    assert sum(split) == num_layers
    assert max(split) - min(split) <= 1
    check_split(split, num_layers)


def test_a_split_is_read() -> None:
    assert read_split("auto", 3) is None
    assert read_split("18,12", 2) == (18, 12)


@pytest.mark.parametrize("text", ["", "10", "1,2,3", "10,x", "-1,31", "0,30", "³,27", "1.5,2"])
def test_a_wrong_split_is_refused(text: str) -> None:
    with pytest.raises(InvalidRequest, match="split"):
        read_split(text, 2)


def test_a_split_of_other_layers_is_refused() -> None:
    with pytest.raises(InvalidRequest, match="31 layers together, and the model 30"):
        check_split((20, 11), 30)
    with pytest.raises(InvalidRequest, match="stages"):
        choose_split(Costs((1.0, 1.0)), 3)
