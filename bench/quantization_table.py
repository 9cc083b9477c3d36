"""The tables of what each way of rounding costs, made of the lines that were measured.

Owns: which figure stands where; no figure is typed.
May not know: how anything was measured.
Read next: `quantization.py`, `judge.py`.

    python bench/quantization_table.py            print them
    python bench/quantization_table.py --write    put them between the marks in docs/

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
RESULTS = ROOT / "bench" / "results"
DOCS = ROOT / "docs"
MARKS = ("<!-- costs: made by bench/quantization_table.py -->\n", "<!-- end of costs -->")
JUDGE_MARKS = ("<!-- judge: made by bench/quantization_table.py -->\n", "<!-- end of judge -->")
SUFFIXES = {"en": ".md", "zh": ".zh-CN.md"}
JUDGE_HEADINGS = {
    "en": ("model, weights", "right endings, %", "perplexity of a word", "bits of a byte"),
    "zh": ("模型，权重", "结尾选对，%", "每词困惑度", "每字节位数"),
}
HEADINGS = {
    "en": (
        "weights", "bits per weight", "perplexity", "change, %", "divergence, 10⁻⁶ nats",
        "same top, %",
    ),
    "zh": ("权重", "每权重位数", "困惑度", "变化，%", "散度，10⁻⁶ 奈特", "首选相同，%"),
}  # fmt: skip
MODELS = {
    "en": "Model `{}`: perplexity {:.3f} as floats, over {} tokens, {}.\n",
    "zh": "模型 `{}`：浮点时困惑度 {:.3f}，共 {} 个 token，{}。\n",
}
FLOATS = {"en": "floats", "zh": "浮点"}
SCHEME_WORDS = (
    (r" in (\d+)s", r" 每 \1 个一组"),
    (r" with zeros", "带零点"),
    (r" per row", " 逐行"),
    (r", nearest", "，取最近"),
    (r", searched", "，搜索缩放因子"),
    (r", compensated", "，误差补偿"),
    (r", scaled", "，激活感知缩放"),
    (r", mixed with int8", "，与 int8 混合"),
    (r", the least sensitive in int8", "，最不敏感的用 int8"),
    (r"^floats, int8 keys and values", "浮点，int8 键和值"),
)

Line = Mapping[str, Any]


def name_of(line: Line) -> str:
    if line["by"] != "firsthand":
        return f"{line['by']} {line['label']}"
    if "method" not in line:
        return str(line["label"])
    group = f" in {line['group']}s" if line.get("group") else " per row"
    zeros = " with zeros" if line.get("zeros") else ""
    mixed = ", mixed with int8" if line.get("mixed") else ""
    if line.get("least_sensitive"):
        mixed = ", the least sensitive in int8"
    return f"{line['label']}{group}{zeros}, {line['method']}{mixed}"


def shown(name: str, language: str) -> str:
    for english, chinese in SCHEME_WORDS if language == "zh" else ():
        name = re.sub(english, chinese, name)
    return name


def newest(lines: Sequence[Line]) -> dict[str, dict[str, Line]]:
    """The last line of each scheme, by model."""
    found: dict[str, dict[str, Line]] = {}
    for line in lines:
        found.setdefault(line["model"], {})[name_of(line)] = line
    return found


def section(lines: Sequence[Line], language: str) -> str:
    parts = []
    for model, rows in newest(lines).items():
        first = next(iter(rows.values()))
        parts.append(
            MODELS[language].format(
                model, first["reference_perplexity"], first["tokens"], first["at"]
            )
        )
        parts.append(f"| {' | '.join(HEADINGS[language])} |")
        parts.append("|---" * len(HEADINGS[language]) + "|")
        ordered = sorted(rows.items(), key=lambda row: (-row[1]["bits_per_weight"], row[0]))
        parts += [
            f"| {' | '.join((shown(name, language), *cells(line)))} |" for name, line in ordered
        ]
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


def judge_section(lines: Sequence[Line], language: str) -> str:
    found = {(line["model"], line["weights"]): line for line in lines}
    headings = JUDGE_HEADINGS[language]
    rows = [headings, ("---",) * len(headings)]
    for (model, weights), line in found.items():
        accuracy, error = line["accuracy"], line["accuracy_standard_error"]
        rows.append(
            (
                f"{model}, {FLOATS[language] if weights == 'none' else weights}",
                f"{100 * accuracy:.1f} ± {100 * error:.1f}",
                f"{line['word_perplexity']:.2f}",
                f"{line['bits_per_byte']:.4f}",
            )
        )
    return "\n".join(f"| {' | '.join(row)} |" for row in rows) + "\n"


def replaced(document: str, text: str, marks: Sequence[str] = MARKS) -> str:
    """The document with the section between its marks."""
    begin, end = (re.escape(mark) for mark in marks)
    found = re.search(f"(?<={begin}).*?(?={end})", document, re.DOTALL)
    if found is None:
        raise ValueError("the document has no marks for the table")
    return document[: found.start()] + text + document[found.end() :]


def read_lines(name: str) -> list[dict[str, Any]]:
    path = RESULTS / f"{name}.jsonl"
    text = path.read_text(encoding="utf-8") if path.exists() else ""
    return [json.loads(line) for line in text.splitlines()]


def pages() -> dict[Path, str]:
    """The pages as the lines would have them."""
    found = {}
    for language, suffix in SUFFIXES.items():
        costs, judge = DOCS / f"quantize{suffix}", DOCS / f"evaluate{suffix}"
        made = section(read_lines("quantization"), language)
        found[costs] = replaced(costs.read_text(encoding="utf-8"), made)
        made = judge_section(read_lines("judge"), language)
        found[judge] = replaced(judge.read_text(encoding="utf-8"), made, JUDGE_MARKS)
    return found


def main(arguments: Sequence[str]) -> int:
    if list(arguments) == ["--write"]:
        for page, text in pages().items():
            page.write_text(text, encoding="utf-8")
        return 0
    costs, judge = read_lines("quantization"), read_lines("judge")
    print(section(costs, "en"), judge_section(judge, "en"), sep="\n")
    return 0


if __name__ == "__main__":
    sys.exit(main(sys.argv[1:]))
