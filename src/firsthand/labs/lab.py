"""What a lab is: a question, two ways to answer it, and what was seen.

Owns: `Lab` and `Evidence`, the rule by which a lab holds, their form as plain values.
May not know: any one lab; how anything is drawn.
Read next: `charts.py`; `registry.py`.
"""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

from firsthand.labs.charts import Chart
from firsthand.labs.words import Text, Words, said
from firsthand.labs.workbench import Workbench
from firsthand.values import dataclass

Cell = Text | float


@dataclass(frozen=True, slots=True)
class Passage:
    """Text that somebody would have read; `what` says whose it is."""

    what: Words
    text: str


@dataclass(frozen=True, slots=True)
class Evidence:
    """What one run has seen. `measure` is one number that tells a fault: the faulty way reaches
    `limit`, ours stays below it. All numbers were measured in that run."""

    measure: Words
    fault_shows: float
    ours_does_not: float
    limit: float
    headings: tuple[Words, ...]
    rows: tuple[tuple[Cell, ...], ...]
    charts: tuple[Chart, ...] = ()
    passages: tuple[Passage, ...] = ()

    @property
    def holds(self) -> bool:
        return self.fault_shows >= self.limit > self.ours_does_not

    def to_dict(self, language: str) -> dict[str, Any]:
        return {
            "measure": self.measure.of(language),
            "fault_shows": self.fault_shows,
            "ours_does_not": self.ours_does_not,
            "limit": self.limit,
            "holds": self.holds,
            "headings": [one.of(language) for one in self.headings],
            "rows": [[said(cell, language) for cell in row] for row in self.rows],
            "charts": [chart.to_dict(language) for chart in self.charts],
            "passages": [
                {"what": one.what.of(language), "text": one.text} for one in self.passages
            ],
        }


@dataclass(frozen=True, slots=True)
class Lab:
    """One lesson. `sources` are sections of the two source texts, `places` dotted names of the code
    that is the cure, `seconds` about what a run takes on two cores."""

    name: str
    title: Words
    question: Words
    run: Callable[[Workbench], Evidence]
    cause: Words
    cure: Words
    places: tuple[str, ...]
    sources: tuple[str, ...]
    seconds: int
    needs_model: bool = False

    def to_dict(self, language: str) -> dict[str, Any]:
        return {
            "name": self.name,
            "title": self.title.of(language),
            "question": self.question.of(language),
            "cause": self.cause.of(language),
            "cure": self.cure.of(language),
            "places": list(self.places),
            "sources": list(self.sources),
            "seconds": self.seconds,
            "needs_model": self.needs_model,
        }
