"""Quality against cost as facts, as rows and as Markdown.

Owns: the three forms. May not know: how anything was measured, where it goes.
Read next: `../cascade/tradeoff.py`; `cascade_plot.py`, the picture.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import asdict
from typing import Any

from firsthand.cascade.calibration import Calibration
from firsthand.cascade.tradeoff import Point, Sample, curve, point

HEADINGS = (
    "confidence", "escalated, %", "quality", "by chance", "cost, %", "time, %", ""
)  # fmt: skip


def as_facts(made: Calibration, samples: Sequence[Sample]) -> dict[str, Any]:
    chosen = point(made, samples, made.confidence)
    return {
        "metric": "cascade",
        "small": asdict(made.small),
        "large": asdict(made.large),
        "measure": made.measure,
        "window": made.window,
        "error": made.error,
        "prompts": len(samples),
        "calibration": made.sha256,
        "chosen": asdict(chosen),
        "warning": warning_of(chosen),
        "points": [asdict(one) for one in curve(made, samples)],
    }


def warning_of(chosen: Point) -> str | None:
    """What speaks against the chosen threshold, if anything does."""
    if chosen.escalated < 1 and chosen.cost <= 1:
        return None
    who = "every answer" if chosen.escalated == 1 else f"{chosen.escalated:.0%} of the answers"
    return (
        f"confidence {chosen.confidence:g} sends {who} on to the large model, and costs "
        f"{chosen.cost:.0%} of what that costs alone: choose a lower one, or serve it alone"
    )


def as_rows(made: Calibration, samples: Sequence[Sample]) -> list[tuple[str, ...]]:
    """The curve, with the chosen threshold at its place."""
    points = [one for one in curve(made, samples) if one.confidence != made.confidence]
    points.append(point(made, samples, made.confidence))
    return [_cells(one, made.confidence) for one in sorted(points, key=lambda one: one.confidence)]


def as_lines(made: Calibration) -> str:
    return (
        f"small  {made.small}\nlarge  {made.large}\n"
        f"asked  {made.measure} of the first {made.window} log-probabilities; "
        f"error {made.error:.3f} on {made.num_prompts} prompts\n"
    )


def as_markdown(made: Calibration, samples: Sequence[Sample]) -> str:
    lines = [f"| {' | '.join(HEADINGS)} |", "|---" * len(HEADINGS) + "|"]
    lines += [f"| {' | '.join(row)} |" for row in as_rows(made, samples)]
    return "\n".join(lines) + "\n"


def _cells(one: Point, chosen: float) -> tuple[str, ...]:
    return (
        f"{one.confidence:.3f}",
        f"{100 * one.escalated:.1f}",
        f"{one.quality:.4f}",
        f"{one.chance_quality:.4f}",
        f"{100 * one.cost:.1f}",
        f"{100 * one.time:.1f}",
        "chosen" if one.confidence == chosen else "",
    )
