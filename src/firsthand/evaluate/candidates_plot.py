"""Size against loss, as a picture.

Owns: the picture's form, and matplotlib (the extra `plots`) when it is drawn.
May not know: how anything was measured.
Read next: `candidates.py`.
"""

from __future__ import annotations

from collections.abc import Sequence
from pathlib import Path
from typing import Any

from firsthand.evaluate.candidates import Candidate

LEAST = 1e-6  # of a divergence, on the logarithmic scale


def write_plot(rows: Sequence[Candidate], path: Path) -> None:
    """Into a file of the suffix's form."""
    figure_of(rows).savefig(path)


def figure_of(rows: Sequence[Candidate]) -> Any:
    """Each candidate by the size of its weights and its divergence; the reference has none."""
    from matplotlib.figure import Figure

    figure = Figure(figsize=(8.0, 5.0), layout="constrained")
    axes = figure.subplots()
    shown = [row for row in rows if row.divergence_mean > 0]
    sizes = [row.held_bytes / 2**20 for row in shown]
    away = [max(row.divergence_mean, LEAST) for row in shown]
    spread = [row.divergence_standard_error for row in shown]
    axes.errorbar(sizes, away, yerr=spread, fmt="o")
    for row, x, y in zip(shown, sizes, away, strict=True):
        name = f"{Path(row.model).name}@{row.quantization}"
        axes.annotate(name, (x, y), textcoords="offset points", xytext=(6, 4), fontsize=8)
    if shown:
        axes.set_yscale("log")
    axes.set_xlabel("weights in memory, MiB")
    axes.set_ylabel("mean divergence, nats per token")
    axes.set_title(f"size against loss, by {Path(rows[0].model).name} as floats")
    axes.grid(color="0.9")
    return figure
