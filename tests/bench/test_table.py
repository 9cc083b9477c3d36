"""The READMEs' comparison is what the committed lines give.

Owns: lines made up for it. May not know: how anything is measured.
Read next: `bench/table.py`.
"""

from __future__ import annotations

from pathlib import Path
from typing import Any

import pytest

from bench.table import ENGLISH, LINES, MARKS, READMES, read_lines, replaced, section

ROOT = Path(__file__).resolve().parents[2]


def line(engine: str, weights: str, median: float | None, **more: Any) -> dict[str, Any]:
    found: dict[str, Any] = {
        "at": "2026-01-02T03:04:05+00:00",
        "commit": "abc",
        "cpu": "2 × a core",
        "model": "a.gguf",
        "threads": 2,
        "load": 0.5,
        "workload": "decode",
        "engine": engine,
        "weights": weights,
    }
    if median is None:
        return {**found, "missing": "not installed", **more}
    over = {"auto": {"median": 200 / median}, "int8": {"median": 100 / median}}
    return {**found, "repeats": 5, "median": median, "ours_over": over, **more}


MADE_UP = [
    line("firsthand", "auto", 200.0),
    line("firsthand", "int8", 100.0),
    line("llama.cpp", "Q8_0", 80.0),
    line("llama.cpp", "Q4_1", None),
    line("CTranslate2", "int8", 25.0),
]


@pytest.mark.parametrize("name", READMES)
def test_the_readme_says_what_the_lines_give(name: str) -> None:
    text = (ROOT / name).read_text(encoding="utf-8")
    assert replaced(text, section(read_lines(LINES), READMES[name])) == text, (
        "run `python bench/table.py --write`"
    )


def test_a_missing_rival_is_red_and_explained() -> None:
    text = section(MADE_UP, ENGLISH)
    assert "| llama.cpp Q4_1 | 🔴 |" in text
    assert f"🔴 {ENGLISH.missing}" in text
    assert "🔴" not in section([each for each in MADE_UP if "missing" not in each], ENGLISH)


def test_ratios_are_taken_from_the_fastest_rival_and_the_named_ones() -> None:
    rows = [row for row in section(MADE_UP, ENGLISH).splitlines() if row.startswith("| one")]
    assert rows == [
        "| one sequence | llama.cpp Q8_0, the fastest rival | 2.50 | 1.25 |",
        "| one sequence | llama.cpp Q8_0 | 2.50 | 1.25 |",
    ]


def test_a_column_is_of_one_run_only() -> None:
    later = line("firsthand", "auto", 300.0, at="2026-01-03T00:00:00+00:00")
    text = section([*MADE_UP, later], ENGLISH)
    assert "| firsthand auto | 300 |" in text
    assert "CTranslate2" not in text, "it was not in the newer run"


def test_a_smaller_start_is_the_faster_one() -> None:
    starts = [
        line("firsthand", "auto", 1.0, workload="start"),
        line("a", "x", 0.5, workload="start"),
        line("b", "x", 0.4, workload="start"),
    ]
    assert "| b x, the fastest rival |" in section([*MADE_UP, *starts], ENGLISH)


def test_only_what_is_between_the_marks_is_replaced() -> None:
    begin, end = MARKS
    assert replaced(f"a\n{begin}old\n{end}\nb", "new\n") == f"a\n{begin}new\n{end}\nb"
    with pytest.raises(ValueError, match="no marks"):
        replaced("nothing", "new")
