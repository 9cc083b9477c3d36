"""The report of an ablation over the whole system: one file of HTML, its plots drawn here.

Owns: the page, the plots, their tables, and which words stand beside them.
May not know: how anything was measured.
Read next: `system_ablation.py`.

Nothing is loaded from anywhere: no script, no font, no picture. A plot is an SVG, and the table
below it has the same numbers for whoever cannot see it. Half and twice are equally far from 1, and
the grey band is how far the base was from itself.
"""

from __future__ import annotations

import html
import math
from collections.abc import Sequence

from firsthand.measure.system_ablation import BASE, SystemOutcome

COLOURS = {
    "tokens_per_second": "#2f7d4f",
    "ttft_ms": "#c2691c",
    "p95_answer_ms": "#2f62a8",
    "texts_per_second": "#7a4fa3",
    "text_ms": "#a33b4a",
}
NAMES = {
    "tokens_per_second": "tokens per second",
    "ttft_ms": "first token, median ms",
    "p95_answer_ms": "answer, P95 ms",
    "texts_per_second": "texts per second",
    "text_ms": "text, median ms",
}
ABOUT = {
    "batch": "How many sequences run at once.",
    "chunk": "Tokens that one step computes at most; a longer prompt takes several.",
    "window": "Seconds that a text to embed waits for company, for a batch of eight.",
    "prefix": "Whether prompts that begin alike share what was computed.",
    "format": "What the weights are held in.",
    "kv": "The type of keys and values in the cache.",
    "layout": "How keys lie in memory.",
    "store": "Blocks, or one region per sequence.",
    "block": "Tokens per block of the cache.",
    "scheduler": "Whether requests join a running batch.",
    "speculation": "Whether tokens are guessed by prompt lookup; the right ones are kept.",
    "profile": "Several settings together, as serve --profile has them.",
    "base": "The base, loaded a second time: as far as this is from 1, a ratio says nothing.",
}
WIDTH, LEFT, RIGHT, TOP, BAR, GAP = 860, 130, 70, 18, 11, 9
LEAST_REACH = 1.25  # a plot shows at least this factor to both sides
STYLE = """
body { font: 16px/1.55 system-ui, sans-serif; color: #1d2a30; background: #fff; margin: 2rem auto;
  max-width: 60rem; padding: 0 1rem }
h1 { font-size: 1.5rem } h2 { font-size: 1.1rem; margin: 2.2rem 0 0 } p { margin: 0.3rem 0 0.6rem }
svg { width: 100%; height: auto; font: 12px system-ui, sans-serif }
.wide { overflow-x: auto }
table { border-collapse: collapse; font-size: 0.85rem; font-variant-numeric: tabular-nums }
td, th { text-align: right; padding: 0.15rem 0.7rem; border-bottom: 1px solid #e6e3db }
td:first-child, th:first-child { text-align: left }
.key span { white-space: nowrap; margin-right: 1.2rem }
.key i { display: inline-block; width: 0.8em; height: 0.8em; margin-right: 0.35em }
""".strip()


def page_of(title: str, facts: Sequence[str], outcomes: Sequence[SystemOutcome]) -> str:
    """The whole file. `facts` are said below the title: what was measured, and on what."""
    variables = list(dict.fromkeys(one.variable for one in outcomes))
    off = {
        name: max(ratio, 1 / ratio)
        for one in outcomes
        if one.variable == BASE
        for name, ratio in one.ratios.items()
    }
    parts = [
        _section(variable, [one for one in outcomes if one.variable == variable], off)
        for variable in variables
    ]
    key = "".join(
        f'<span><i style="background:{colour}"></i>{NAMES[name]}</span>'
        for name, colour in COLOURS.items()
    )
    lines = "".join(f"<p>{html.escape(fact)}</p>" for fact in facts)
    return (
        f'<!doctype html>\n<html lang="en"><head><meta charset="utf-8">\n'
        f'<meta name="viewport" content="width=device-width">\n'
        f"<title>{html.escape(title)}</title><style>\n{STYLE}\n</style></head><body>\n"
        f"<h1>{html.escape(title)}</h1>\n{lines}\n"
        "<p>One thing is changed at a time. A bar is the ratio to the base, and to the right is "
        "always better: more a second, or fewer milliseconds. The grey band is how far the base "
        f'was from itself.</p>\n<p class="key">{key}</p>\n'
        + "\n".join(parts)
        + "\n</body></html>\n"
    )


def _section(variable: str, outcomes: Sequence[SystemOutcome], off: dict[str, float]) -> str:
    about = ABOUT.get(variable, "")
    return (
        f"<h2>{html.escape(variable)}</h2><p>{html.escape(about)}</p>\n"
        f"{_plot(variable, outcomes, off)}\n{_table(outcomes)}"
    )


def _plot(variable: str, outcomes: Sequence[SystemOutcome], off: dict[str, float]) -> str:
    ratios = [ratio for one in outcomes for ratio in one.ratios.values()]
    reach = max(LEAST_REACH, *(max(ratio, 1 / ratio) for ratio in ratios)) * 1.05
    noise = max([1.0, *(off[name] for one in outcomes for name in one.ratios if name in off)])

    def x(ratio: float) -> float:
        share = (math.log(ratio) / math.log(reach) + 1) / 2
        return LEFT + share * (WIDTH - LEFT - RIGHT)

    rows, y = [], float(TOP)
    for one in outcomes:
        rows.append(
            f'<text x="{LEFT - 10}" y="{y + BAR * len(one.ratios) / 2 + 4:.1f}" '
            f'text-anchor="end">{html.escape(one.value)}</text>'
        )
        for name, ratio in one.ratios.items():
            left, right = sorted((x(1), x(ratio)))
            rows.append(
                f'<rect x="{left:.1f}" y="{y:.1f}" width="{max(1.0, right - left):.1f}" '
                f'height="{BAR - 2}" fill="{COLOURS[name]}"/>'
                f'<text x="{max(x(1), x(ratio)) + 4:.1f}" y="{y + BAR - 2:.1f}" font-size="10">'
                f"{ratio:.2f}</text>"
            )
            y += BAR
        y += GAP
    ticks = [tick for tick in (0.125, 0.25, 0.5, 0.8, 1, 1.25, 2, 4, 8, 16) if 1 / reach <= tick]
    grid = "".join(
        f'<line x1="{x(tick):.1f}" x2="{x(tick):.1f}" y1="{TOP - 4}" y2="{y:.1f}" stroke="#ddd"/>'
        f'<text x="{x(tick):.1f}" y="11" text-anchor="middle" fill="#667278">{tick:g}</text>'
        for tick in ticks
        if tick <= reach
    )
    low, high = max(1 / noise, 1 / reach), min(noise, reach)
    band = (
        f'<rect x="{x(low):.1f}" y="{TOP - 4}" width="{x(high) - x(low):.1f}" '
        f'height="{y - TOP + 4:.1f}" fill="#eee"/>'
    )
    return (
        f'<svg viewBox="0 0 {WIDTH} {y:.0f}" role="img" aria-label="{html.escape(variable)}: '
        f'ratios to the base, as in the table below">{band}{grid}{"".join(rows)}</svg>'
    )


def _table(outcomes: Sequence[SystemOutcome]) -> str:
    names = list(outcomes[0].ratios)
    head = "".join(f"<th>{NAMES[name]}</th><th>base</th><th>ratio</th>" for name in names)
    rows = "".join(
        f"<tr><td>{html.escape(one.value)}</td>"
        + "".join(
            f"<td>{_figure(one.values[name])}</td><td>{_figure(one.base_values[name])}</td>"
            f"<td>{one.ratios[name]:.2f}</td>"
            for name in names
        )
        + "</tr>"
        for one in outcomes
    )
    table = f"<table><thead><tr><th></th>{head}</tr></thead><tbody>{rows}</tbody></table>"
    return f'<div class="wide">{table}</div>'


def _figure(value: float) -> str:
    return f"{value:,.0f}" if value >= 1000 else f"{value:.4g}"
