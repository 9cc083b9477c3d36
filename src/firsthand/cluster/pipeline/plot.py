"""Stages by time as a picture: who computes which part, and the bubbles in grey.

Owns: the picture's form, and matplotlib (the extra `plots`) when it is drawn.
May not know: how anything was measured.
Read next: `timeline.py`.
"""

from __future__ import annotations

from collections.abc import Sequence
from pathlib import Path
from typing import Any

from firsthand.cluster.pipeline.timeline import Span, bubble_share

COLOURS = ("#1f77b4", "#ff7f0e", "#2ca02c", "#9467bd", "#8c564b", "#17becf")
BUBBLE = "0.88"


def write_plot(steps: Sequence[tuple[str, Sequence[Span]]], num_stages: int, path: Path) -> None:
    """Into a file of the suffix's form."""
    figure_of(steps, num_stages).savefig(path)


def figure_of(steps: Sequence[tuple[str, Sequence[Span]]], num_stages: int) -> Any:
    """One above the other, each from its first part's begin to its last one's end."""
    from matplotlib.figure import Figure

    height = (0.5 * num_stages + 1.0) * max(1, len(steps))
    figure = Figure(figsize=(9.0, height), layout="constrained")
    for axes, (title, spans) in zip(
        figure.subplots(max(1, len(steps)), 1, squeeze=False)[:, 0], steps, strict=False
    ):
        began_s = min(one.began_s for one in spans)
        whole_ms = (max(one.ended_s for one in spans) - began_s) * 1e3
        for stage in range(num_stages):
            axes.broken_barh([(0.0, whole_ms)], (stage - 0.4, 0.8), color=BUBBLE)
        for one in spans:
            colour = COLOURS[one.part % len(COLOURS)]
            at_ms = (one.began_s - began_s) * 1e3
            axes.broken_barh([(at_ms, one.ms)], (one.stage - 0.4, 0.8), color=colour)
            middle = (at_ms + one.ms / 2, one.stage)
            axes.annotate(str(one.part), middle, ha="center", va="center", fontsize=8)
        axes.set_yticks(range(num_stages), [f"stage {stage}" for stage in range(num_stages)])
        axes.invert_yaxis()
        axes.set_xlabel("ms")
        share = bubble_share(spans, num_stages)
        axes.set_title(f"{title}: bubble {share:.0%}", fontsize=10)
    return figure
