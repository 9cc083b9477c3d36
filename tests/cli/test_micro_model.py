"""The generated model is what the formats' own libraries take it for."""

from __future__ import annotations

import json
from pathlib import Path

import pytest

from firsthand.cli.micro_model import END_TOKEN, VOCAB_SIZE, write_micro_model


def test_the_same_seed_gives_the_same_bytes(tmp_path: Path) -> None:
    folders = [tmp_path / name for name in "abc"]
    for folder, seed in zip(folders, (1, 1, 2), strict=True):
        folder.mkdir()
        write_micro_model(folder, seed)
    first, again, other = ((folder / "model.safetensors").read_bytes() for folder in folders)
    assert first == again != other


@pytest.mark.oracle
def test_safetensors_reads_it(tmp_path: Path) -> None:
    from safetensors.numpy import load_file

    tensors = load_file(write_micro_model(tmp_path) / "model.safetensors")
    config = json.loads((tmp_path / "config.json").read_text(encoding="utf-8"))
    assert len(tensors) == 2 + 9 * config["num_hidden_layers"]
    assert tensors["model.embed_tokens.weight"].shape == (VOCAB_SIZE, config["hidden_size"])
    gain = tensors["model.norm.weight"]
    assert abs(gain - 1).max() < 0.2


def test_tokenizers_reads_it(tmp_path: Path) -> None:
    from tokenizers import Tokenizer

    tokenizer = Tokenizer.from_file(str(write_micro_model(tmp_path) / "tokenizer.json"))
    text = "Hello, 世界 🙂\n"
    ids = tokenizer.encode(text + END_TOKEN).ids
    assert ids == [*text.encode(), VOCAB_SIZE - 1]
    assert tokenizer.decode(ids) == text
