"""Quality against cost, as a picture.

Owns: the picture's form, and matplotlib (the extra `plots`) when it is drawn.
May not know: how anything was measured.
Read next: `../cascade/tradeoff.py`.
"""

from __future__ import annotations

from collections.abc import Sequence
from pathlib import Path
from typing import Any

from firsthand.cascade.tradeoff import Point


def write_plot(points: Sequence[Point], chosen: Point, path: Path) -> None:
    """Into a file of the suffix's form."""
    figure_of(points, chosen).savefig(path)


def figure_of(points: Sequence[Point], chosen: Point) -> Any:
    """The curve; below it what as many escalations at random would give at the same cost."""
    from matplotlib.figure import Figure

    figure = Figure(figsize=(8.0, 5.0), layout="constrained")
    axes = figure.subplots()
    costs = [100 * one.cost for one in points]
    axes.plot(costs, [one.quality for one in points], "o-", label="the cascade")
    axes.plot(costs, [one.chance_quality for one in points], "--", label="by chance")
    axes.plot([100 * chosen.cost], [chosen.quality], "s", markersize=10, label="chosen")
    axes.axvline(100.0, color="0.6", linewidth=1)
    axes.set_xlabel("cost by that of the large model alone, %")
    axes.set_ylabel("quality")
    axes.set_title("quality against cost")
    axes.legend()
    axes.grid(color="0.9")
    return figure
