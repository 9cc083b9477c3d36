"""Charts as lines of text, for a terminal.

Owns: how each kind looks in characters.
May not know: labs, files, colours.
Read next: `figure.py`, the same as an image.
"""

from __future__ import annotations

import math
from collections.abc import Iterator, Sequence

from firsthand.columns import columns, padded
from firsthand.labs.charts import Bars, Cells, Chart, Lanes, Lines, Span
from firsthand.labs.words import rounded, text_of

WIDTH, HEIGHT = 64, 12
MARKS = "o+x*#@"
SHADES = " ░▒▓█"


def draw(chart: Chart, language: str) -> list[str]:
    """The title, then the picture."""
    match chart:
        case Lines():
            body = _lines(chart, language)
        case Bars():
            body = _bars(chart, language)
        case Lanes():
            body = _lanes(chart, language)
        case Cells():
            body = _cells(chart)
    return [chart.title.of(language), *(line.rstrip() for line in body)]


def _labelled(labels: Sequence[str], bodies: Sequence[str]) -> Iterator[str]:
    width = max(map(columns, labels), default=0)
    for label, body in zip(labels, bodies, strict=True):
        yield f"  {padded(label, width)}  {body}"


def _bars(chart: Bars, language: str) -> Iterator[str]:
    longest = max((value for _, value in chart.bars), default=0.0) or 1.0
    bodies = [
        "█" * round(value / longest * WIDTH * 0.6) + f" {rounded(value)} {chart.unit.of(language)}"
        for _, value in chart.bars
    ]
    yield from _labelled([text_of(label, language) for label, _ in chart.bars], bodies)


def _lanes(chart: Lanes, language: str) -> Iterator[str]:
    end = chart.end
    labels = [text_of(label, language) for label, _ in chart.lanes]
    bodies = [_lane(spans, end) for _, spans in chart.lanes]
    axis = "0".ljust(WIDTH - 8) + rounded(end).rjust(8) + f" {chart.unit.of(language)}"
    yield from _labelled([*labels, ""], [*bodies, axis])


def _lane(spans: Sequence[Span], end: float) -> str:
    row = [" "] * WIDTH
    for span in spans:
        first = math.floor(span.start / end * WIDTH)
        stop = max(first + 1, math.floor(span.stop / end * WIDTH))
        row[first:stop] = (span.mark[:1] or "█") * (min(stop, WIDTH) - first)
    return "".join(row[:WIDTH])


def _cells(chart: Cells) -> Iterator[str]:
    for row in chart.rows:
        shades = (SHADES[round(min(1.0, max(0.0, value)) * (len(SHADES) - 1))] for value in row)
        yield "  │" + "".join(2 * shade for shade in shades) + "│"


def _lines(chart: Lines, language: str) -> Iterator[str]:
    points = [
        (MARKS[number % len(MARKS)], x, _height(y, chart.log))
        for number, one in enumerate(chart.series)
        for x, y in zip(one.xs, one.ys, strict=True)
        if math.isfinite(y) and (y > 0 or not chart.log)
    ]
    if not points:
        return
    left, right = min(x for _, x, _ in points), max(x for _, x, _ in points)
    low, high = min(y for _, _, y in points), max(y for _, _, y in points)
    low = low if chart.log else min(0.0, low)
    rows = [[" "] * WIDTH for _ in range(HEIGHT)]
    for mark, x, y in points:
        across = round((x - left) / ((right - left) or 1.0) * (WIDTH - 1))
        up = round((y - low) / ((high - low) or 1.0) * (HEIGHT - 1))
        rows[HEIGHT - 1 - up][across] = mark
    labels = [""] * HEIGHT
    labels[0], labels[-1] = (rounded(10**y if chart.log else y) for y in (high, low))
    yield from _labelled(labels, ["│" + "".join(row) for row in rows])
    indent = " " * (max(map(len, labels)) + 4)
    yield indent + "└" + "─" * WIDTH
    yield f"{indent} {rounded(left).ljust(WIDTH - 10)}{rounded(right).rjust(10)}"
    log = {"en": ", logarithmic", "zh": "（对数）"}[language] if chart.log else ""
    yield f"{indent} {chart.y.of(language)}{log} / {chart.x.of(language)}"
    for number, one in enumerate(chart.series):
        yield f"{indent} {MARKS[number % len(MARKS)]} {text_of(one.label, language)}"


def _height(y: float, log: bool) -> float:
    return math.log10(y) if log and y > 0 else y
