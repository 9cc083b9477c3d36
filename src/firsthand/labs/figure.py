"""Charts as an image.

Owns: how each kind looks as a figure, and matplotlib (the extra `plots`) when one is drawn.
May not know: labs.
Read next: `charts.py`; `measure/ablation_plot.py`, whose check of a file's name is used.

Chinese is written where a font has it; without one the figure speaks English.
"""

from __future__ import annotations

from collections.abc import Sequence
from pathlib import Path
from typing import Any

from firsthand.labs.charts import Bars, Cells, Chart, Lanes, Lines
from firsthand.labs.words import text_of

WIDTH_INCHES, HEIGHT_INCHES = 8.0, 3.2
IDLE = "."
CHINESE_FONTS = ("Noto Sans CJK SC", "Noto Sans CJK JP", "Source Han Sans SC", "WenQuanYi Zen Hei")


def write_figure(charts: Sequence[Chart], language: str, path: Path) -> None:
    """Into a file of the suffix's form."""
    from matplotlib import rc_context

    families, spoken = fonts_for(language)
    with rc_context({"font.family": families, "svg.hashsalt": "firsthand"}):
        stable = {"Date": None} if path.suffix == ".svg" else None
        figure_of(charts, spoken).savefig(path, metadata=stable)


def fonts_for(language: str) -> tuple[list[str], str]:
    """Which fonts to write with, and the language that they can write."""
    from matplotlib.font_manager import fontManager

    known = {font.name for font in fontManager.ttflist}
    chinese = [name for name in CHINESE_FONTS if name in known]
    if language == "zh" and chinese:
        return [chinese[0], "DejaVu Sans"], "zh"
    return ["DejaVu Sans"], "en"


def figure_of(charts: Sequence[Chart], language: str) -> Any:
    """One chart below the other."""
    from matplotlib.figure import Figure

    size = (WIDTH_INCHES, HEIGHT_INCHES * max(1, len(charts)))
    figure = Figure(figsize=size, layout="constrained")
    for chart, axes in zip(
        charts, figure.subplots(max(1, len(charts)), 1, squeeze=False).flat, strict=False
    ):
        axes.set_title(chart.title.of(language), fontsize=10)
        match chart:
            case Lines():
                _lines(axes, chart, language)
            case Bars():
                _bars(axes, chart, language)
            case Lanes():
                _lanes(axes, chart, language)
            case Cells():
                axes.imshow(chart.rows, cmap="Blues", vmin=0, vmax=1)
    return figure


def _lines(axes: Any, chart: Lines, language: str) -> None:
    for one in chart.series:
        axes.plot(one.xs, one.ys, "o-", markersize=3, label=text_of(one.label, language))
    if chart.log:
        axes.set_yscale("log")
    axes.set_xlabel(chart.x.of(language))
    axes.set_ylabel(chart.y.of(language))
    axes.grid(color="0.93")
    axes.legend(fontsize=8)


def _bars(axes: Any, chart: Bars, language: str) -> None:
    labels = [text_of(label, language) for label, _ in chart.bars]
    axes.barh(range(len(labels)), [value for _, value in chart.bars], color="#1f77b4")
    axes.set_yticks(range(len(labels)), labels)
    axes.invert_yaxis()
    axes.set_xlabel(chart.unit.of(language))
    axes.grid(axis="x", color="0.93")


def _lanes(axes: Any, chart: Lanes, language: str) -> None:
    marks = sorted({span.mark for _, spans in chart.lanes for span in spans} - {IDLE})
    colours = {mark: f"C{number % 10}" for number, mark in enumerate(marks)} | {IDLE: "0.9"}
    for row, (_, spans) in enumerate(chart.lanes):
        for span in spans:
            length = span.stop - span.start
            axes.barh(row, length, left=span.start, color=colours[span.mark], edgecolor="white")
    axes.set_yticks(range(len(chart.lanes)), [text_of(label, language) for label, _ in chart.lanes])
    axes.set_xlim(0, chart.end)
    axes.invert_yaxis()
    axes.set_xlabel(chart.unit.of(language))
