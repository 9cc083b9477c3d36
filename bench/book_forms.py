"""What every figure of the book has in common: lines, a table in either language, what is missing.

Owns: where a line is found, and what stands below a table.
May not know: any one figure.
Read next: `book_tables.py`.
"""

from __future__ import annotations

from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass
from typing import Any

Line = Mapping[str, Any]
Heads = tuple[str, str]  # in English and in Chinese, columns parted by bars


class NotMeasured(Exception):
    """There is no line of this name yet."""


@dataclass(frozen=True, slots=True)
class Lines:
    """`own` by name, of the book's own measurements; `others` by the file's name."""

    own: Mapping[str, Line]
    others: Mapping[str, Sequence[Line]]

    def found(self, name: str) -> Any:
        return self.of(name)["found"]

    def of(self, name: str) -> Line:
        if name not in self.own:
            raise NotMeasured(name)
        return self.own[name]


def table(heads: Heads, rows: Iterable[Sequence[object]], language: str, line: Line) -> str:
    """With the day, the commit and the machine below it."""
    head = heads[language == "zh"]
    parts = [f"| {head} |", "|---" * (head.count("|") + 1) + "|"]
    parts += [f"| {' | '.join(map(str, row))} |" for row in rows]
    day, where = line["at"][:10], (line.get("commit", ""), line.get("cpu", ""), line.get("load"))
    commit, cpu, load = where
    english = [f"Measured {day}", commit and f"commit {commit}", cpu, load and f"load {load}"]
    chinese = [f"测于 {day}", commit and f"提交 {commit}", cpu, load and f"系统负载 {load}"]
    said = (
        "，".join(filter(None, chinese)) if language == "zh" else ", ".join(filter(None, english))
    )
    return "\n".join(parts) + f"\n\n*{said}{'。' if language == 'zh' else '.'}*\n"


def missing(name: str, language: str) -> str:
    command = f"`python -m bench.book --measure MODEL {name}`"
    return words(language, f"*Not measured yet: {command}.*\n", f"*尚未测量：{command}。*\n")


def words(language: str, english: str, chinese: str) -> str:
    return chinese if language == "zh" else english


def lab(name: str, lines: Lines, language: str) -> str:
    """What a lab has shown, as it shows it itself."""
    found = lines.found("labs")[name][language]
    head = " | ".join(found["headings"])
    rows = [[shown(cell) for cell in row] for row in found["rows"]]
    below = words(language, f"`firsthand lab {name}`:", f"`firsthand lab {name}`：")
    return below + "\n\n" + table((head, head), rows, language, lines.of("labs"))


def shown(cell: str | float) -> str:
    if isinstance(cell, str):
        return cell
    return f"{cell:,.0f}" if cell == int(cell) else f"{cell:.2f}"
