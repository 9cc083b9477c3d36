"""What is remembered is what was made, or it is made again."""

from __future__ import annotations

from pathlib import Path

import pytest

from firsthand.generation.remembered import Remembered
from firsthand.text import scored_merges
from firsthand.text.gguf_vocab import vocabulary_from_gguf


class Maker:
    def __init__(self) -> None:
        self.num_calls = 0

    def __call__(self) -> bytes:
        self.num_calls += 1
        return b"made %d" % self.num_calls


def test_it_is_made_once_for_the_same_inputs(tmp_path: Path) -> None:
    make = Maker()
    memory = Remembered(tmp_path / "kept")
    assert [memory([b"ab", b"c"], make) for _ in range(3)] == [b"made 1"] * 3
    assert Remembered(tmp_path / "kept")([b"ab", b"c"], make) == b"made 1"
    assert memory([b"a", b"bc"], make) == b"made 2"  # where one input ends counts too


def test_a_damaged_file_is_made_anew(tmp_path: Path) -> None:
    make = Maker()
    memory = Remembered(tmp_path)
    memory([b"x"], make)
    (path,) = tmp_path.iterdir()
    for wrong in (b"", b"abc", path.read_bytes()[:-1], path.read_bytes()[:-1] + b"9"):
        path.write_bytes(wrong)
        num_before = make.num_calls
        assert memory([b"x"], make) == b"made %d" % (num_before + 1)
        assert memory([b"x"], make) == b"made %d" % (num_before + 1)


def test_a_folder_that_cannot_be_written_is_no_error(tmp_path: Path) -> None:
    (tmp_path / "file").write_bytes(b"")
    assert Remembered(tmp_path / "file")([b"x"], Maker()) == b"made 1"


def test_merges_out_of_scores_are_the_same_remembered(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    metadata = {
        "tokenizer.ggml.model": "llama",
        "tokenizer.ggml.tokens": ["a", "b", "ab", "ba", "aba", "abab"],
        "tokenizer.ggml.scores": [0.0, 0.0, -1.0, -1.0, -2.0, -0.5],
    }
    plain = vocabulary_from_gguf(metadata, "file")
    assert plain.merges == [
        ("ab", "ab"), ("aba", "b"), ("a", "b"), ("b", "a"), ("a", "ba"), ("ab", "a")
    ]  # fmt: skip
    monkeypatch.setattr(scored_merges, "LEAST_REMEMBERED", 0)
    for _ in range(2):
        assert vocabulary_from_gguf(metadata, "file", Remembered(tmp_path)) == plain
    assert len(list(tmp_path.iterdir())) == 1
    metadata["tokenizer.ggml.scores"] = [0.0] * 6
    assert vocabulary_from_gguf(metadata, "file", Remembered(tmp_path)) != plain
    assert len(list(tmp_path.iterdir())) == 2
