"""The picture of an ablation: refused before anything is measured, and drawn from the outcomes."""

from __future__ import annotations

import sys
from pathlib import Path

import pytest

from firsthand.errors import InvalidRequest
from firsthand.measure.ablation import Outcome
from firsthand.measure.ablation_plot import SUFFIXES, check_plot, figure_of, write_plot
from firsthand.measure.latency import Speed, Spread

pytestmark = pytest.mark.native

SPEED = Speed(Spread(1.0, 1.0, 1.0), Spread(1.0, 1.0, 1.0), 1.0)


def outcome(variable: str, value: str, prompt: float, decode: float) -> Outcome:
    return Outcome(variable, value, "int8", 1, SPEED, SPEED, prompt, decode)


def test_a_row_per_outcome_at_its_ratio() -> None:
    pytest.importorskip("matplotlib")
    found = [outcome("format", f"choice {ratio:g}", ratio, 1.5) for ratio in (0.5, 1.0, 2.0)]
    (axes,) = figure_of([*found, outcome("base", "again", 1.0, 0.8)], "micro").axes
    lines = {line.get_label(): line for line in axes.lines}
    assert list(lines["prompt"].get_xdata()) == [0.5, 1.0, 2.0, 1.0]
    assert list(lines["decode"].get_xdata()) == [1.5, 1.5, 1.5, 0.8]
    names = [text.get_text() for text in axes.get_yticklabels()]
    assert names == ["format choice 0.5", "format choice 1", "format choice 2", "base again"]
    half, same, twice = (axes.transData.transform((x, 0))[0] for x in (0.5, 1.0, 2.0))
    assert same - half == pytest.approx(twice - same), "half and twice are equally far"
    (band,) = axes.patches
    assert band.get_x() == pytest.approx(0.8)
    assert band.get_width() == pytest.approx(1.25 - 0.8)


@pytest.mark.parametrize("suffix", SUFFIXES)
def test_every_form_is_written(suffix: str, tmp_path: Path) -> None:
    pytest.importorskip("matplotlib")
    path = tmp_path / f"plot{suffix}"
    write_plot([outcome("base", "again", 1.0, 0.98)], "micro", path)
    assert path.stat().st_size > 1000


def test_a_plot_is_refused_by_name(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    for path in (tmp_path / "plot.jpeg", tmp_path / "plot", tmp_path / "no folder" / "plot.svg"):
        with pytest.raises(InvalidRequest, match="plot_out"):
            check_plot(path)
    monkeypatch.setitem(sys.modules, "matplotlib", None)
    with pytest.raises(InvalidRequest, match=r"firsthand\[plots\]"):
        check_plot(tmp_path / "plot.svg")
