"""Charts as text and as images.

Owns: proof of `drawing.py` and `figure.py`.
"""

from __future__ import annotations

from pathlib import Path

import pytest

from firsthand.columns import columns
from firsthand.labs.charts import Bars, Cells, Chart, Lanes, Lines, Series, Span
from firsthand.labs.drawing import WIDTH, draw
from firsthand.labs.words import OURS, Words, rounded, said

TITLE = Words("title", "标题")
UNIT = Words("ms", "毫秒")
CHARTS: tuple[Chart, ...] = (
    Lines(TITLE, UNIT, UNIT, (Series(OURS, (1.0, 2.0, 4.0), (1.0, 10.0, 0.0)),), log=True),
    Lines(TITLE, UNIT, UNIT, (Series("a", (0.0,), (0.0,)), Series("b", (), ()))),
    Bars(TITLE, UNIT, ((OURS, 2.0), ("x", 1.0), ("none", 0.0))),
    Lanes(TITLE, UNIT, ((OURS, (Span(0, 2, "A"), Span(2, 4, "."))), ("x", (Span(3, 4, "B"),)))),
    Cells(TITLE, ((1.0, 0.0), (0.5, 1.0))),
)


@pytest.mark.parametrize("chart", CHARTS)
def test_every_kind_is_drawn_in_both_languages(chart: Chart) -> None:
    for language in ("en", "zh"):
        lines = draw(chart, language)
        assert lines[0] == TITLE.of(language)
        assert len(lines) > 1
        assert max(map(columns, lines)) < WIDTH + 40


def test_bars_and_lanes_are_as_long_as_their_values() -> None:
    bars = draw(CHARTS[2], "en")
    assert bars[1].count("█") == 2 * bars[2].count("█") > 0
    assert bars[3].count("█") == 0
    lanes = draw(CHARTS[3], "en")
    assert lanes[1].count("A") == lanes[1].count(".") == WIDTH // 2
    assert lanes[2].count("B") == WIDTH // 4


def test_labels_of_wide_characters_stand_under_each_other() -> None:
    bars = draw(CHARTS[2], "zh")[1:]
    assert {columns(line.partition("█")[0]) for line in bars[:2]} == {columns("  本系统  ")}


@pytest.mark.oracle
def test_every_kind_becomes_an_image(tmp_path: Path) -> None:
    pytest.importorskip("matplotlib")
    from firsthand.labs.figure import write_figure

    for language, suffix in (("en", ".png"), ("zh", ".svg")):
        path = tmp_path / f"{language}{suffix}"
        write_figure(CHARTS, language, path)
        assert path.stat().st_size > 2_000


def test_what_is_no_number_is_told_as_text() -> None:
    """JSON has no form for it."""
    assert [said(one, "en") for one in (float("inf"), float("nan"), 1.5, OURS)] == [
        "inf",
        "nan",
        1.5,
        "ours",
    ]


@pytest.mark.parametrize(
    ("value", "shown"),
    [
        (10_656.0, "10,656"),
        (9999.6, "10,000"),
        (9999.4, "9999"),
        (-17_450.2, "-17,450"),
        (1.619, "1.619"),
        (1.125e-6, "1.125e-06"),
        (2e12, "2e+12"),
        (float("inf"), "inf"),
    ],
)
def test_a_figure_is_read_at_a_glance(value: float, shown: str) -> None:
    assert rounded(value) == shown
