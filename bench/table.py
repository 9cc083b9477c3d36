"""The README's comparison, made of the lines that `compare.py` wrote; no figure is typed.

Owns: which figure stands where, and how it is rounded.
May not know: how anything was measured.
Read next: `compare.py`.

    python bench/table.py [LINES]      print what LINES gives (default: the committed ones)
    python bench/table.py --write      put it between the marks in both READMEs

Of each workload only the lines of its newest run count, so that no row of a column comes from
another run than its neighbours.
"""

from __future__ import annotations

import json
import re
import sys
from collections.abc import Collection, Iterator, Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any

ROOT = Path(__file__).resolve().parents[1]
LINES = ROOT / "bench" / "results" / "rivals.jsonl"
MARKS = ("<!-- comparison: made by bench/table.py -->\n", "<!-- end of comparison -->")
OURS = "firsthand"
RATIO_WORKLOADS = ("prompt512", "prompt1900", "decode", "concurrent16", "serving16", "start")
PAIRS = (("decode", "llama.cpp", "Q4_1"), ("decode", "llama.cpp", "Q8_0"))
RED = "🔴"


@dataclass(frozen=True, slots=True)
class Words:
    """One language's words. `setting` is filled in with the fields of a line."""

    setting: str
    engine: str
    columns: Mapping[str, str]
    ratios: str
    against: str
    fastest: str
    missing: str


ENGLISH = Words(
    setting=(
        "{date}, commit {commit}: {cpu}, {threads} threads, load {load}, {model}; medians of "
        "{repeats} rounds in which every engine had its turn. Tokens per second; formats differ "
        "in quality, see the last column."
    ),
    engine="engine, weights",
    columns={
        "prompt512": "prompt of 512",
        "prompt1900": "prompt of 1900",
        "decode": "one sequence",
        "concurrent16": "16 at once",
        "serving16": "16 over HTTP",
        "start": "start to first token, s",
        "memory": "peak memory, MiB",
        "perplexity": "perplexity",
    },
    ratios="ours ÷ theirs, speed",
    against="against",
    fastest=", the fastest rival",
    missing="missing or failed in this run",
)
CHINESE = Words(
    setting=(
        "{date}，提交 {commit}：{cpu}，{threads} 个线程，系统负载 {load}，{model}；"
        "取 {repeats} 轮的中位数，每轮中各引擎依次运行。"
        "单位为每秒 token 数；各种格式的质量不同，见最后一列。"
    ),
    engine="引擎，权重格式",
    columns={
        "prompt512": "提示 512",
        "prompt1900": "提示 1900",
        "decode": "单序列",
        "concurrent16": "16 路并发",
        "serving16": "16 路 HTTP",
        "start": "启动到首 token，秒",
        "memory": "内存峰值，MiB",
        "perplexity": "困惑度",
    },
    ratios="速度之比：我们 ÷ 对方",
    against="对手",
    fastest="，最快的对手",
    missing="本轮缺失或失败",
)
READMES = {"README.md": ENGLISH, "README.zh-CN.md": CHINESE}

Line = Mapping[str, Any]
Row = tuple[str, str]  # engine, weights


def newest(lines: Sequence[Line]) -> dict[str, dict[Row, Line]]:
    """Of each workload the lines of its newest run, in the run's order."""
    found: dict[str, dict[Row, Line]] = {}
    for workload in {line["workload"]: None for line in lines}:
        of_it = [line for line in lines if line["workload"] == workload]
        at = max(line["at"] for line in of_it)
        found[workload] = {
            (line["engine"], line["weights"]): line for line in of_it if line["at"] == at
        }
    return found


def figure(workload: str, value: float) -> str:
    if workload == "perplexity":
        return f"{value:.3f}"
    if workload == "start":
        return f"{value:.2f}"
    return f"{value:.0f}"


def cell(workload: str, line: Line | None) -> str:
    if line is None:
        return ""
    return RED if "missing" in line else figure(workload, line["median"])


def speeds(found: Mapping[str, Mapping[Row, Line]], words: Words) -> Iterator[str]:
    columns = [name for name in words.columns if name in found]
    yield f"| {words.engine} | {' | '.join(words.columns[name] for name in columns)} |"
    yield "|---" * (1 + len(columns)) + "|"
    rows = {row: None for name in columns for row in found[name]}
    for row in rows:
        cells = [cell(name, found[name].get(row)) for name in columns]
        yield f"| {row[0]} {row[1]} | {' | '.join(cells)} |"


def is_faster(line: Line, than: Line) -> bool:
    if line["workload"] == "start":
        return bool(line["median"] < than["median"])
    return bool(line["median"] > than["median"])


def fastest_rival(lines: Mapping[Row, Line]) -> Line | None:
    best: Line | None = None
    for line in lines.values():
        if line["engine"] != OURS and "missing" not in line:
            best = line if best is None or is_faster(line, best) else best
    return best


def ratios(found: Mapping[str, Mapping[Row, Line]], words: Words) -> Iterator[str]:
    """Ratios of neighbours in time, round by round; their median."""
    formats = [row[1] for row in found.get("decode", {}) if row[0] == OURS]
    yield f"| {words.ratios} | {words.against} | {' | '.join(formats)} |"
    yield "|---" * (2 + len(formats)) + "|"
    compared: list[tuple[str, Line | None, str]] = []
    for workload in RATIO_WORKLOADS:
        if workload in found:
            compared.append((workload, fastest_rival(found[workload]), words.fastest))
    for workload, engine, weights in PAIRS:
        compared.append((workload, found.get(workload, {}).get((engine, weights)), ""))
    for workload, line, note in compared:
        if line is None or "missing" in line:
            continue
        values = [f"{line['ours_over'][weights]['median']:.2f}" for weights in formats]
        against = f"{line['engine']} {line['weights']}{note}"
        yield f"| {words.columns[workload]} | {against} | {' | '.join(values)} |"


def span(values: Collection[float]) -> str:
    return "–".join(f"{value:g}" for value in sorted({min(values), max(values)}))


def section(lines: Sequence[Line], words: Words) -> str:
    """All that stands between the marks."""
    found = newest([line for line in lines if line["workload"] in words.columns])
    used = [line for of_it in found.values() for line in of_it.values()]
    # A perplexity has no rounds: it comes out the same each time.
    rounds = {line["repeats"] for line in used if line.get("repeats", 1) > 1}
    values = {
        **used[0],
        "date": max(line["at"] for line in used)[:10],
        "commit": ", ".join(sorted({line["commit"] for line in used})),
        "load": span([line["load"] for line in used]),
        "repeats": span(rounds),
    }
    parts = [words.setting.format_map(values), "", *speeds(found, words), ""]
    if any("missing" in line for line in used):
        parts += [f"{RED} {words.missing}", ""]
    return "\n".join([*parts, *ratios(found, words), ""])


def read_lines(path: Path) -> list[Line]:
    return [json.loads(line) for line in path.read_text(encoding="utf-8").splitlines()]


def replaced(document: str, text: str) -> str:
    """The document with `text` between the marks."""
    begin, end = (re.escape(mark) for mark in MARKS)
    found = re.search(f"(?<={begin}).*?(?={end})", document, re.DOTALL)
    if found is None:
        raise ValueError("the document has no marks for the comparison")
    return document[: found.start()] + text + document[found.end() :]


def main(arguments: Sequence[str]) -> int:
    if list(arguments) == ["--write"]:
        for name, words in READMES.items():
            path = ROOT / name
            text = section(read_lines(LINES), words)
            path.write_text(replaced(path.read_text(encoding="utf-8"), text), encoding="utf-8")
        return 0
    print(section(read_lines(Path(arguments[0]) if arguments else LINES), ENGLISH))
    return 0


if __name__ == "__main__":
    sys.exit(main(sys.argv[1:]))
