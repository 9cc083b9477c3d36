"""Figures of a load, by hand; and the picture of a curve."""

from __future__ import annotations

from pathlib import Path

import pytest

from firsthand.loadtest.curve_plot import figure_of, write_plot
from firsthand.loadtest.outcomes import Outcome
from firsthand.loadtest.summary import details, summary
from firsthand.percentile import percentile
from tests.loadtest.test_curve import curve

FIRST = Outcome(0.0, 0.0, 1.0, (0.4, 0.6, 1.0), 10, 4)
SECOND = Outcome(0.5, 0.7, 2.0, (1.5, 2.0), 10, 2)
FAILED = Outcome(0.6, 0.6, 0.7, fault="status 503")


def test_each_figure_by_hand() -> None:
    found = summary([FIRST, SECOND, FAILED], goodput={"ttft": 500})
    assert (found["completed"], found["failed"], found["duration"]) == (2, 1, 2.0)
    assert found["request_throughput"] == 1.0
    assert found["request_goodput"] == 0.5
    assert found["output_throughput"] == 3.0
    assert found["total_token_throughput"] == 13.0
    assert found["mean_ttft_ms"] == pytest.approx(700)  # 400, and 1000 from when it was due
    assert found["median_e2el_ms"] == pytest.approx(1250)
    assert found["mean_tpot_ms"] == pytest.approx(350)  # 600 / 3, 500 / 1
    assert found["mean_itl_ms"] == pytest.approx(1100 / 3)
    assert found["std_e2el_ms"] == pytest.approx(250)
    assert found["max_concurrent_requests"] == 2
    assert found["p99_send_delay_ms"] == pytest.approx(196)
    assert details([FIRST, FAILED])["errors"] == ["", "status 503"]


def test_percentiles_are_interpolated() -> None:
    assert percentile([4, 1, 3, 2], 0.5) == 2.5
    assert percentile([4, 1, 3, 2], 1) == 4
    assert percentile([], 0.5) == 0


def test_the_picture_has_the_knee_and_every_step(tmp_path: Path) -> None:
    pytest.importorskip("matplotlib")
    found = curve()
    above, below = figure_of(found).axes
    lines = {line.get_label(): line for line in (*above.lines, *below.lines)}
    assert list(lines["answered"].get_xdata()) == [4, 8, 12]
    assert list(lines["first token, P99"].get_ydata()) == [30, 60, 660]
    for axes in (above, below):
        (band,) = axes.patches
        assert (band.get_x(), band.get_width()) == (8, 2)
    write_plot(found, tmp_path / "knee.svg")
    assert (tmp_path / "knee.svg").stat().st_size > 1000
