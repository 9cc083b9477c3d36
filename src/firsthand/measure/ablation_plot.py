"""What each choice is worth, and what ours is beside the plain way, as a picture.

Owns: the picture's form, and the only import of matplotlib (the extra `plots`), when one is drawn.
May not know: how a ratio was measured.
Read next: `ablation.py`, `comparison.py`.
"""

from __future__ import annotations

from collections.abc import Sequence
from pathlib import Path
from typing import Any

from firsthand.errors import InvalidRequest
from firsthand.files import check_writable
from firsthand.measure.ablation import Outcome
from firsthand.measure.comparison import Comparison

SUFFIXES = (".svg", ".png", ".pdf")
PROMPT_COLOUR, DECODE_COLOUR = "#1f77b4", "#ff7f0e"
TICKS = (0.125, 0.25, 0.35, 0.5, 0.7, 0.85, 1.0, 1.2, 1.4, 2.0, 2.8, 4.0, 8.0, 16.0, 32.0)
ROW_INCHES, WIDTH_INCHES = 0.34, 8.0


def check_plot(path: Path) -> None:
    """Refuse before anything is measured: InvalidRequest for a suffix, a folder, the library."""
    if path.suffix not in SUFFIXES:
        raise InvalidRequest("plot_out", f"must end in {', '.join(SUFFIXES)}, not {path.name!r}")
    check_writable("plot_out", path)
    try:
        import matplotlib  # noqa: F401
    except ImportError:
        message = "a plot needs the extra: pip install 'firsthand[plots]'"
        raise InvalidRequest("plot_out", message) from None


def write_plot(outcomes: Sequence[Outcome | Comparison], title: str, path: Path) -> None:
    """Draw them into a file of the suffix's form."""
    figure_of(outcomes, title).savefig(path)


def figure_of(outcomes: Sequence[Outcome | Comparison], title: str) -> Any:
    """One row each, on a scale where half and twice are equally far. Of a variation its prompt and
    its decode speed by those of the base; the grey band is what the base itself, loaded again, was
    off. Of a comparison, how many times better ours is."""
    from matplotlib.figure import Figure

    figure = Figure(figsize=(WIDTH_INCHES, 1.6 + ROW_INCHES * len(outcomes)), layout="constrained")
    axes = figure.subplots()
    ablated = [one for one in outcomes if isinstance(one, Outcome)]
    noise = max((_off(one) for one in ablated if one.variable == "base"), default=1.0)
    axes.axvspan(1 / noise, noise, color="0.9", zorder=0)
    axes.axvline(1.0, color="0.4", linewidth=1, zorder=1)
    ratios = [_ratios(one) for one in outcomes]
    for name, colour, shift in (
        ("prompt", PROMPT_COLOUR, -0.14),
        ("decode", DECODE_COLOUR, 0.14),
        ("ours by plain", PROMPT_COLOUR, 0.0),
    ):
        rows = [place + shift for place, values in enumerate(ratios) if name in values]
        reached = [values[name] for values in ratios if name in values]
        if rows:
            axes.hlines(rows, 1.0, reached, color=colour, linewidth=2)
            axes.plot(reached, rows, "o", color=colour, markersize=5, label=name)
    axes.set_xscale("log", base=2)
    reach = [1.0, *(ratio for values in ratios for ratio in values.values())]
    shown = [tick for tick in TICKS if min(reach) * 0.9 <= tick <= max(reach) * 1.1]
    axes.set_xticks(shown, [f"{tick:g}" for tick in shown])
    axes.set_xticks([], minor=True)
    axes.set_yticks(list(range(len(outcomes))), [_label(one) for one in outcomes])
    axes.invert_yaxis()
    axes.set_xlabel("by that of the base (above 1 is better)")
    axes.set_title(title)
    axes.grid(axis="x", color="0.9")
    axes.legend(loc="best")
    return figure


def _ratios(one: Outcome | Comparison) -> dict[str, float]:
    if isinstance(one, Outcome):
        return {"prompt": one.prompt_ratio, "decode": one.decode_ratio}
    return {"ours by plain": one.advantage}


def _label(one: Outcome | Comparison) -> str:
    if isinstance(one, Outcome):
        return f"{one.variable} {one.value}".rstrip()
    return f"{one.ours.name} by {one.plain.name}"


def _off(outcome: Outcome) -> float:
    ratios = (outcome.prompt_ratio, outcome.decode_ratio)
    return max(*ratios, *(1 / ratio for ratio in ratios))
