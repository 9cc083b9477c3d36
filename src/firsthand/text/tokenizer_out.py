"""A vocabulary as the files that other programs read: tokenizer.json and its companion.

Owns: what those files say.
May not know: where they are written, models.
Read next: `tokenizer_json.py`, which reads them back.

Byte-level vocabularies only: what a SentencePiece model does with spaces has more than one reading.
"""

from __future__ import annotations

from typing import Any

from firsthand.errors import UnsupportedModel
from firsthand.text.vocabulary import Vocabulary


def tokenizer_files(vocabulary: Vocabulary) -> dict[str, dict[str, Any]]:
    """The contents by the names of the files. Raises UnsupportedModel."""
    if not vocabulary.byte_level:
        raise UnsupportedModel(
            f"{vocabulary.source}: a SentencePiece vocabulary cannot be written as tokenizer.json"
        )
    added = [
        {
            "id": token.token_id,
            "content": token.text,
            "special": token.is_control,
            "single_word": token.single_word,
            "lstrip": token.strip_left,
            "rstrip": token.strip_right,
            "normalized": token.normalized,
        }
        for token in sorted(vocabulary.added, key=lambda one: one.token_id)
    ]
    known = vocabulary.pieces | {one["content"]: one["id"] for one in added}
    model = {
        "type": "BPE",
        "dropout": None,
        "unk_token": vocabulary.unknown_piece,
        "continuing_subword_prefix": None,
        "end_of_word_suffix": None,
        "fuse_unk": vocabulary.fuse_unknown,
        "byte_fallback": vocabulary.byte_fallback,
        "ignore_merges": vocabulary.ignore_merges,
        "vocab": known,
        "merges": [f"{left} {right}" for left, right in vocabulary.merges],
    }
    byte_level = {
        "type": "ByteLevel",
        "add_prefix_space": False,
        "trim_offsets": True,
        "use_regex": False,
    }
    pipeline = {
        "version": "1.0",
        "truncation": None,
        "padding": None,
        "added_tokens": added,
        "normalizer": vocabulary.normalizer,
        "pre_tokenizer": vocabulary.pre_tokenizer,
        "post_processor": _begins_with_bos(vocabulary),
        "decoder": byte_level,
        "model": model,
    }
    config: dict[str, Any] = {
        "tokenizer_class": "PreTrainedTokenizerFast",
        "clean_up_tokenization_spaces": False,
        "add_bos_token": vocabulary.special.add_bos,
        **dict(vocabulary.special.texts),
    }
    if vocabulary.chat_template is not None:
        config["chat_template"] = vocabulary.chat_template
    return {"tokenizer.json": pipeline, "tokenizer_config.json": config}


def _begins_with_bos(vocabulary: Vocabulary) -> dict[str, Any] | None:
    bos_id = vocabulary.special.bos_id
    if not vocabulary.special.add_bos or bos_id is None:
        return None
    text = vocabulary.texts[bos_id]
    bos = {"SpecialToken": {"id": text, "type_id": 0}}
    sequences = [{"Sequence": {"id": which, "type_id": 0}} for which in ("A", "B")]
    return {
        "type": "TemplateProcessing",
        "single": [bos, sequences[0]],
        "pair": [bos, sequences[0], bos, sequences[1]],
        "special_tokens": {text: {"id": text, "ids": [bos_id], "tokens": [text]}},
    }
