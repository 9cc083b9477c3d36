"""Small vocabularies for the tests of `text`: made on the spot.

Owns: `byte_level_json`, `write_folder`. May not know: any single test.
Read next: `test_tokenizer.py`.
"""

from __future__ import annotations

import copy
import json
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest

CORPUS = (
    "The quick brown fox counts 1234 jars of blue glass. def f(x):\n    return x + 1\n"
    "今天天气很好，我们去公园。 Ça va, naïve café? 👩‍🚀 rocket 🚀 and 日本語 text.\n"
    "\n\n\t{'a': [1, 2]}\n"
) * 4
SPECIALS = ("<s>", "</s>", "<|im_start|>", "<|im_end|>", "<unk>")
WriteFolder = Callable[..., Path]


@pytest.fixture(scope="session")
def byte_level_json() -> dict[str, Any]:
    """A tokenizer.json of the byte-level family: 5 control tokens, one tool marker, spaces."""
    from tokenizers import AddedToken, Tokenizer, decoders, models, pre_tokenizers, trainers

    tokenizer = Tokenizer(models.BPE())
    tokenizer.pre_tokenizer = pre_tokenizers.ByteLevel(add_prefix_space=False)
    tokenizer.decoder = decoders.ByteLevel()
    trainer = trainers.BpeTrainer(
        vocab_size=420,
        special_tokens=list(SPECIALS),
        initial_alphabet=pre_tokenizers.ByteLevel.alphabet(),
        show_progress=False,
    )
    tokenizer.train_from_iterator([CORPUS], trainer)
    tokenizer.add_tokens([AddedToken("<tool_call>", special=False, normalized=False)])
    tokenizer.add_tokens([AddedToken("   ", special=False, normalized=False)])
    content: dict[str, Any] = json.loads(tokenizer.to_str())
    return content


@pytest.fixture
def write_folder(tmp_path: Path, byte_level_json: dict[str, Any]) -> WriteFolder:
    """Writes a model folder: `change` edits tokenizer.json's content; the others are files."""

    def write(
        change: Callable[[dict[str, Any]], object] | None = None,
        config: dict[str, Any] | None = None,
        **files: Any,
    ) -> Path:
        content = copy.deepcopy(byte_level_json)
        if change is not None:
            change(content)
        names = {"bos_token": "<s>", "eos_token": "</s>", "unk_token": "<unk>"}
        (tmp_path / "tokenizer.json").write_text(json.dumps(content), encoding="utf-8")
        (tmp_path / "tokenizer_config.json").write_text(json.dumps(names | (config or {})))
        for name, value in files.items():
            (tmp_path / f"{name}.json").write_text(json.dumps(value))
        return tmp_path

    return write
