"""Throughput and latency by rate, with the knee, as a picture.

Owns: the picture's form, and matplotlib (the extra `plots`) when it is drawn.
May not know: how anything was measured.
Read next: `curve.py`.
"""

from __future__ import annotations

from pathlib import Path
from typing import Any

from firsthand.loadtest.curve import BURSTS, FIT, Curve

LATENCIES = {
    "p99_e2el_ms": ("answer, P99", "#1f77b4", "-"),
    "median_e2el_ms": ("answer, median", "#1f77b4", "--"),
    "p99_ttft_ms": ("first token, P99", "#ff7f0e", "-"),
    "median_ttft_ms": ("first token, median", "#ff7f0e", "--"),
}
THROUGHPUT = "#2ca02c"
LEAST_MS = 0.01  # on the logarithmic scale


def write_plot(curve: Curve, path: Path) -> None:
    """Into a file of the suffix's form."""
    figure_of(curve).savefig(path)


def figure_of(curve: Curve) -> Any:
    """Above answers per second beside what was asked, below the latencies; the knee is a line in
    the band of its interval."""
    from matplotlib.figure import Figure

    figure = Figure(figsize=(8.0, 7.0), layout="constrained")
    above, below = figure.subplots(2, 1, sharex=True)
    steps = curve.of(FIT)
    rates = [one.rate for one in steps]
    knee = curve.knee
    above.plot(rates, rates, color="0.7", linewidth=1, label="asked for")
    throughput = [one.request_throughput for one in steps]
    above.plot(rates, throughput, "o-", color=THROUGHPUT, markersize=4, label="answered")
    above.set_ylabel("requests per second")
    for name, (label, colour, style) in LATENCIES.items():
        values = [max(LEAST_MS, getattr(one, name)) for one in steps]
        below.plot(rates, values, "o" + style, color=colour, markersize=4, label=label)
    bursts = curve.of(BURSTS)
    below.plot(
        [one.rate for one in bursts],
        [max(LEAST_MS, one.p99_ttft_ms) for one in bursts],
        "x:",
        color="#d62728",
        label="first token with bursts, P99",
    )
    below.set_yscale("log")
    below.set_ylabel("ms from the intended send time")
    below.set_xlabel("requests per second asked for")
    for axes in (above, below):
        axes.axvspan(knee.low, knee.high, color="0.9", zorder=0)
        axes.axvline(knee.rate, color="0.4", linewidth=1, zorder=1)
        axes.grid(color="0.93")
        axes.legend(loc="best", fontsize=8)
    above.set_title(
        f"{Path(curve.model).name}: the knee is at {knee.rate:.3g} requests a second "
        f"({knee.low:.3g} to {knee.high:.3g})"
    )
    return figure
