"""Ours beside the plain way, on the generated model: both did what they are named after."""

from __future__ import annotations

from typing import Any

import pytest

from firsthand.cli.micro_model import write_micro_model
from firsthand.errors import ContextLengthExceeded, FirsthandError, InvalidRequest
from firsthand.generation.load_options import LoadOptions
from firsthand.measure.ablation_plot import figure_of
from firsthand.measure.comparison import COMPARISONS, Comparison, compare, spread_jobs

pytestmark = pytest.mark.native

SIZES: dict[str, Any] = {"concurrency": 4, "output_tokens": 32, "prefix_tokens": 256, "repeats": 1}


@pytest.fixture(scope="module")
def model(tmp_path_factory: pytest.TempPathFactory) -> str:
    return str(write_micro_model(tmp_path_factory.mktemp("micro")))


@pytest.fixture(scope="module")
def found(model: str) -> dict[str, Comparison]:
    begun: list[str] = []
    outcomes = compare(model, LoadOptions(threads=1), **SIZES, begin=begun.append)
    compared = {one.name: one for one in outcomes}
    assert tuple(compared) == tuple(begun) == COMPARISONS
    return compared


def test_s29_s30_a_static_batch_waits_for_its_longest(found: dict[str, Comparison]) -> None:
    plain, ours = found["batching"].plain, found["batching"].ours
    assert plain.facts["at_once_most"] == ours.facts["at_once_most"] == 4
    assert plain.facts["at_once_mean"] < ours.facts["at_once_mean"]
    assert plain.facts["steps"] > ours.facts["steps"]


def test_more_sequences_fit_the_same_memory_in_blocks(found: dict[str, Comparison]) -> None:
    plain, ours = found["store"].plain, found["store"].ours
    assert plain.facts["at_once_mean"] < ours.facts["at_once_mean"]
    assert plain.facts["compactions"] > 0
    assert 0 < plain.facts["fragmentation_most"] < 1
    assert "compactions" not in ours.facts


def test_a_shared_prefix_is_found_by_one_side_only(found: dict[str, Comparison]) -> None:
    plain, ours = found["prefix"].plain, found["prefix"].ours
    assert (plain.facts["found_tokens"], ours.facts["found_tokens"]) == (0, 256)
    assert found["prefix"].advantage > 1


def test_the_picture_has_a_row_for_each(found: dict[str, Comparison]) -> None:
    pytest.importorskip("matplotlib")
    (axes,) = figure_of(list(found.values()), "micro").axes
    names = [text.get_text() for text in axes.get_yticklabels()]
    assert names == ["continuous by static", "paged by contiguous", "shared prefix by none"]


def test_no_two_prompts_begin_alike() -> None:
    jobs = spread_jobs(8, 128, 257)
    assert len({prompt[0] for prompt, _ in jobs}) == len(jobs) == 24
    assert {new for _, new in jobs} == {16 * part for part in range(1, 9)}


@pytest.mark.parametrize(
    ("field", "error", "given"),
    [
        ("only", InvalidRequest, {"only": ["speed"]}),
        ("concurrency", InvalidRequest, {"concurrency": 1}),
        ("output_tokens", InvalidRequest, {"output_tokens": 7}),
        ("prefix_tokens", InvalidRequest, {"prefix_tokens": 15}),
        ("repeats", InvalidRequest, {"repeats": 0}),
        ("prefix_tokens", ContextLengthExceeded, {"prefix_tokens": 500}),
    ],
)
def test_bad_sizes_are_refused_by_name(
    model: str, field: str, error: type[FirsthandError], given: dict[str, Any]
) -> None:
    with pytest.raises(error, match=field):
        next(compare(model, LoadOptions(), **SIZES | given))


def test_what_is_compared_cannot_be_chosen(model: str) -> None:
    with pytest.raises(InvalidRequest, match="kv_store"):
        next(compare(model, LoadOptions(kv_store="contiguous"), **SIZES))
