"""The room of a text on a terminal. Owns: proof of `columns.py`."""

from __future__ import annotations

from firsthand.cli.output import table
from firsthand.columns import columns, cut, padded


def test_a_wide_character_takes_two_columns() -> None:
    assert [columns(text) for text in ("", "ab…", "本系统a")] == [0, 3, 7]
    assert padded("本", 4) == "本  "
    assert padded("1", 3, to_right=True) == "  1"


def test_what_is_cut_fits() -> None:
    assert cut("abcd", 4) == "abcd"
    assert cut("abcde", 4) == "abc…"
    assert cut("本系统", 4) == "本…"


def test_columns_of_a_table_stand_under_each_other_in_any_language() -> None:
    lines = table(("做法", "b"), (("本系统", "x"), ("a", "y")))
    assert {columns(line) for line in lines} == {9}
