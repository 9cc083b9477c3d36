"""The files made of the catalogue are those that it makes now.

Owns: the comparison. May not know: what stands in them. Read next: `test_catalogue.py`.
"""

from __future__ import annotations

from pathlib import Path

import pytest

from firsthand.observe.exports import generated, write

ROOT = Path(__file__).resolve().parents[2]


@pytest.mark.parametrize("path", generated())
def test_a_generated_file_is_what_would_be_written_now(path: str) -> None:
    assert (ROOT / path).read_text(encoding="utf-8") == generated()[path], "run `make generated`"


def test_folders_are_made(tmp_path: Path) -> None:
    write({"a/b/c.txt": "x\n"}, tmp_path)
    assert (tmp_path / "a/b/c.txt").read_text() == "x\n"
