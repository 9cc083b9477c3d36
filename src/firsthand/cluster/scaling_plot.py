"""A load and how many replicas there were, as a picture.

Owns: the picture's form, and matplotlib (the extra `plots`) when it is drawn.
May not know: how anything was simulated or decided.
Read next: `autoscaling/simulator.py`.
"""

from __future__ import annotations

from collections.abc import Mapping
from pathlib import Path

from firsthand.cluster.autoscaling.simulator import Outcome

COLOURS = {"ours": "#1f77b4", "naive": "#ff7f0e"}
LABELS = {"ours": "this policy", "naive": "without patience"}


def write_plot(found: Mapping[str, Outcome], tick_s: float, path: Path) -> None:
    """Above the load, in the middle replicas, below what waits. A file of the suffix's form."""
    from matplotlib.figure import Figure

    figure = Figure(figsize=(9.0, 7.0), layout="constrained")
    load, replicas, queue = figure.subplots(3, 1, sharex=True)
    moments = found["ours"].moments
    minutes = [one.at_s / 60 for one in moments]
    load.plot(minutes, [one.arrived / tick_s for one in moments], color="0.5", linewidth=0.8)
    load.set_ylabel("requests per second")
    for name, outcome in reversed(list(found.items())):
        style = {"color": COLOURS[name], "label": LABELS[name]}
        targets = [one.target for one in outcome.moments]
        replicas.step(minutes, targets, where="post", linewidth=1, **style)
        queue.plot(minutes, [one.waiting for one in outcome.moments], linewidth=1, **style)
    replicas.set_ylabel("replicas")
    replicas.set_ylim(bottom=0)
    queue.set_ylabel("requests that wait")
    queue.set_xlabel("minutes")
    for axes in (load, replicas, queue):
        axes.grid(color="0.93")
    replicas.legend(loc="best", fontsize=8)
    figure.savefig(path)
