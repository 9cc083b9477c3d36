"""The table of what each way of rounding costs, made of the lines that `quantization.py` wrote.

Owns: which figure stands where; no figure is typed.
May not know: how anything was measured.
Read next: `quantization.py`.

    python bench/quantization_table.py            print it
    python bench/quantization_table.py --write    put it between the marks in docs/quantize.md

Of several lines for one scheme of one model the last counts.
"""

from __future__ import annotations

import json
import re
import sys
from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import Any

ROOT = Path(__file__).resolve().parents[1]
LINES = ROOT / "bench" / "results" / "quantization.jsonl"
PAGE = ROOT / "docs" / "quantize.md"
MARKS = ("<!-- costs: made by bench/quantization_table.py -->\n", "<!-- end of costs -->")
HEADINGS = (
    "weights", "bits per weight", "perplexity", "change, %", "divergence, 10⁻⁶ nats", "same top, %"
)  # fmt: skip

Line = Mapping[str, Any]


def name_of(line: Line) -> str:
    if line["by"] != "firsthand":
        return f"{line['by']} {line['label']}"
    group = f" in {line['group']}s" if line.get("group") else " per row"
    zeros = " with zeros" if line.get("zeros") else ""
    mixed = ", mixed with int8" if line.get("mixed") else ""
    return f"{line['label']}{group}{zeros}, {line['method']}{mixed}"


def newest(lines: Sequence[Line]) -> dict[str, dict[str, Line]]:
    """The last line of each scheme, by model."""
    found: dict[str, dict[str, Line]] = {}
    for line in lines:
        found.setdefault(line["model"], {})[name_of(line)] = line
    return found


def section(lines: Sequence[Line]) -> str:
    parts = []
    for model, rows in newest(lines).items():
        first = next(iter(rows.values()))
        parts.append(
            f"Model `{model}`: perplexity {first['reference_perplexity']:.3f} as floats, over "
            f"{first['tokens']} tokens, {first['at']}.\n"
        )
        parts.append(f"| {' | '.join(HEADINGS)} |")
        parts.append("|---" * len(HEADINGS) + "|")
        ordered = sorted(rows.items(), key=lambda row: (-row[1]["bits_per_weight"], row[0]))
        parts += [f"| {' | '.join((name, *cells(line)))} |" for name, line in ordered]
        parts.append("")
    return "\n".join(parts)


def cells(line: Line) -> tuple[str, ...]:
    change = 100 * (line["perplexity"] / line["reference_perplexity"] - 1)
    return (
        f"{line['bits_per_weight']:.3f}",
        f"{line['perplexity']:.3f}",
        f"{change:+.3f}",
        f"{1e6 * line['divergence']:.1f} ± {1e6 * line['divergence_standard_error']:.1f}",
        f"{100 * line['same_top_share']:.2f}",
    )


def replaced(document: str, text: str) -> str:
    """The document with the section between its marks."""
    begin, end = (re.escape(mark) for mark in MARKS)
    found = re.search(f"(?<={begin}).*?(?={end})", document, re.DOTALL)
    if found is None:
        raise ValueError("the document has no marks for the costs")
    return document[: found.start()] + text + document[found.end() :]


def main(arguments: Sequence[str]) -> int:
    lines = [json.loads(line) for line in LINES.read_text(encoding="utf-8").splitlines()]
    if list(arguments) == ["--write"]:
        PAGE.write_text(
            replaced(PAGE.read_text(encoding="utf-8"), section(lines)), encoding="utf-8"
        )
        return 0
    print(section(lines))
    return 0


if __name__ == "__main__":
    sys.exit(main(sys.argv[1:]))
