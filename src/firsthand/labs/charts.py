"""What a lab draws, as values: lines, bars, lanes of time, cells.

Owns: the four kinds of picture, and their form as plain values.
May not know: terminals, image files.
Read next: `drawing.py` (as text), `figure.py` (as PNG or SVG).
"""

from __future__ import annotations

from typing import Any

from firsthand.labs.words import Text, Words, said
from firsthand.values import dataclass


@dataclass(frozen=True, slots=True)
class Series:
    label: Text
    xs: tuple[float, ...]
    ys: tuple[float, ...]


@dataclass(frozen=True, slots=True)
class Lines:
    """Curves over one axis; with `log` the upright axis is logarithmic, and what is not above zero
    is left out."""

    title: Words
    x: Words
    y: Words
    series: tuple[Series, ...]
    log: bool = False

    def to_dict(self, language: str) -> dict[str, Any]:
        return {
            "kind": "lines",
            "title": self.title.of(language),
            "x": self.x.of(language),
            "y": self.y.of(language),
            "series": [
                {"label": said(one.label, language), "xs": list(one.xs), "ys": list(one.ys)}
                for one in self.series
            ],
        }


@dataclass(frozen=True, slots=True)
class Bars:
    title: Words
    unit: Words
    bars: tuple[tuple[Text, float], ...]

    def to_dict(self, language: str) -> dict[str, Any]:
        return {
            "kind": "bars",
            "title": self.title.of(language),
            "unit": self.unit.of(language),
            "bars": [[said(label, language), value] for label, value in self.bars],
        }


@dataclass(frozen=True, slots=True)
class Span:
    """From `start` to `stop` on a lane; drawn with the first character of `mark`, and spans of one
    mark have one colour. A mark of "." is idle."""

    start: float
    stop: float
    mark: str


@dataclass(frozen=True, slots=True)
class Lanes:
    """Who did what when: one lane above the other, over one axis from 0 to `until`; None: to the
    last end."""

    title: Words
    unit: Words
    lanes: tuple[tuple[Text, tuple[Span, ...]], ...]
    until: float | None = None

    @property
    def end(self) -> float:
        ends = [span.stop for _, spans in self.lanes for span in spans]
        return self.until or max(ends, default=0.0) or 1.0

    def to_dict(self, language: str) -> dict[str, Any]:
        return {
            "kind": "lanes",
            "title": self.title.of(language),
            "unit": self.unit.of(language),
            "lanes": [
                [said(label, language), [[one.start, one.stop, one.mark] for one in spans]]
                for label, spans in self.lanes
            ],
        }


@dataclass(frozen=True, slots=True)
class Cells:
    """A matrix of 0 … 1, the first row above."""

    title: Words
    rows: tuple[tuple[float, ...], ...]

    def to_dict(self, language: str) -> dict[str, Any]:
        return {
            "kind": "cells",
            "title": self.title.of(language),
            "rows": [list(row) for row in self.rows],
        }


Chart = Lines | Bars | Lanes | Cells
