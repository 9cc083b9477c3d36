"""The vocabulary in a model folder: tokenizer.json and the files beside it.

Owns: reading them, refusing what is damaged or hostile, and which parts we compute.
May not know: the tokenizers library, chats, models.
Read next: `vocabulary.py` (the result), `pipeline_rules.py` (normalizers and patterns).

tokenizer.json may come from anywhere, so nothing of it goes unread into the library: ids are in
range and unique, merges make pieces that exist, and every component is one of a short list.
`truncation`, `padding` and the post-processor are never used: a prompt is never cut in silence.
Files: tokenizer.json (required); tokenizer_config.json, special_tokens_map.json,
generation_config.json, config.json and chat_template.jinja as far as they are there.
"""

from __future__ import annotations

from collections.abc import Iterable, Mapping
from pathlib import Path
from typing import Any

from firsthand.checks import shown
from firsthand.errors import CheckpointError, UnsupportedModel
from firsthand.files import parse_json_object, path_inside, read_whole
from firsthand.text.pipeline_rules import Decoding, check_pipeline, read_decoder
from firsthand.text.vocabulary import (
    MAX_MERGES,
    MAX_PIECE_CHARS,
    MAX_TEMPLATE_CHARS,
    MAX_TOKENS,
    AddedToken,
    SpecialIds,
    TokenKind,
    Vocabulary,
    added_token_kind,
    end_token_ids,
    is_byte_piece,
    is_plain_text,
    named_infill_ids,
)

# 262,144 pieces with half a million merges take about 35 MB and two million commas and brackets.
MAX_FILE_BYTES = 96 << 20
MAX_FILE_ITEMS = 3_000_000
MAX_COMPANION_BYTES = 16 << 20
MAX_COMPANION_ITEMS = 500_000
_ROLES = ("bos_token", "eos_token", "unk_token", "pad_token", "sep_token", "cls_token")


def vocabulary_from_folder(folder: Path) -> Vocabulary:
    """The vocabulary of a model folder. Raises CheckpointError, UnsupportedModel."""
    path = folder / "tokenizer.json"
    if not path_inside(folder, path.name).exists():
        if (folder / "tokenizer.model").exists():
            raise UnsupportedModel(f"{folder}: has tokenizer.model, but no tokenizer.json")
        raise CheckpointError(str(path), "is missing")
    source = str(path)
    content = _read_json(folder, path.name, MAX_FILE_BYTES, MAX_FILE_ITEMS)
    config = _companion(folder, "tokenizer_config.json")
    model = _model(content, source)
    decoding = read_decoder(content.get("decoder"), source)
    pipeline = check_pipeline(content, source)
    vocab = _vocab(model, source)
    added = _added(content, decoding.byte_level, source)
    controls = {token.text for token in added if token.is_control}
    special = _special(folder, content, config, {**vocab, **_ids(added)}, added, source)
    return Vocabulary(
        source=source,
        byte_level=decoding.byte_level,
        pieces=vocab | {token.text: token.token_id for token in added if token.is_text},
        merges=_merges(model, vocab, controls, source),
        texts=_texts(vocab, added),
        byte_ids=_byte_ids(vocab, decoding),
        added=added,
        special=special,
        normalizer=pipeline.normalizer,
        pre_tokenizer=pipeline.pre_tokenizer,
        unknown_piece=_unknown_piece(model, vocab, source),
        byte_fallback=bool(model.get("byte_fallback")),
        fuse_unknown=bool(model.get("fuse_unk")),
        ignore_merges=bool(model.get("ignore_merges")),
        space_prefix="first" if pipeline.prefix_first else "never",
        strip_first_space=decoding.strip_first_space,
        chat_template=_template(folder, config),
    )


def _read_json(folder: Path, name: str, max_bytes: int, max_items: int) -> dict[str, Any]:
    content = read_whole(path_inside(folder, name), max_bytes)
    return parse_json_object(content, str(folder / name), max_items)


def _companion(folder: Path, name: str) -> dict[str, Any]:
    """A JSON file beside tokenizer.json; empty where there is none."""
    if not path_inside(folder, name).exists():
        return {}
    return _read_json(folder, name, MAX_COMPANION_BYTES, MAX_COMPANION_ITEMS)


def _model(content: Mapping[str, Any], source: str) -> dict[str, Any]:
    model = content.get("model")
    if not isinstance(model, dict):
        raise CheckpointError(source, "model is missing or not an object")
    kind = model.get("type", "BPE" if "merges" in model else None)
    if kind != "BPE":
        raise UnsupportedModel(f"{source}: tokenizer model {shown(kind)}; known is 'BPE'")
    for option in ("dropout", "continuing_subword_prefix", "end_of_word_suffix"):
        if model.get(option):
            raise UnsupportedModel(f"{source}: model.{option} is {shown(model[option])}")
    return model


def _vocab(model: Mapping[str, Any], source: str) -> dict[str, int]:
    vocab = model.get("vocab")
    if not isinstance(vocab, dict):
        raise CheckpointError(source, "model.vocab is missing or not an object")
    if len(vocab) > MAX_TOKENS:
        raise CheckpointError(source, f"model.vocab has over {MAX_TOKENS} pieces")
    for piece, token_id in vocab.items():
        if type(token_id) is not int or not 0 <= token_id < MAX_TOKENS:
            raise CheckpointError(source, f"model.vocab: id {shown(token_id)} of {shown(piece)}")
        if not piece:
            raise CheckpointError(source, f"model.vocab: piece {token_id} is empty")
    if len(set(vocab.values())) != len(vocab):
        raise CheckpointError(source, "model.vocab gives one id to two pieces")
    return vocab


def _unknown_piece(model: Mapping[str, Any], vocab: Mapping[str, int], source: str) -> str | None:
    unknown = model.get("unk_token")
    if unknown is not None and (not isinstance(unknown, str) or unknown not in vocab):
        raise CheckpointError(source, f"model.unk_token {shown(unknown)} is not in model.vocab")
    return unknown


def _merges(
    model: Mapping[str, Any], vocab: Mapping[str, int], controls: set[str], source: str
) -> list[tuple[str, str]]:
    """The merges, less those that would spell a control token out of plain text."""
    entries = model.get("merges")
    if not isinstance(entries, list):
        raise CheckpointError(source, "model.merges is missing or not a list")
    if len(entries) > MAX_MERGES:
        raise CheckpointError(source, f"model.merges has over {MAX_MERGES} entries")
    merges = []
    for index, entry in enumerate(entries):
        pair = entry.split(" ") if isinstance(entry, str) else entry
        if not isinstance(pair, list) or len(pair) != 2 or not all(_is_text(it) for it in pair):
            raise CheckpointError(source, f"model.merges[{index}] is not a pair of pieces")
        left, right = pair
        joined = left + right
        if left not in vocab or right not in vocab or joined not in vocab:
            raise CheckpointError(source, f"model.merges[{index}] has a piece not in model.vocab")
        if joined not in controls:
            merges.append((left, right))
    return merges


def _added(content: Mapping[str, Any], byte_level: bool, source: str) -> tuple[AddedToken, ...]:
    entries = content.get("added_tokens") or []
    if not isinstance(entries, list) or len(entries) > MAX_TOKENS:
        raise CheckpointError(source, "added_tokens is not a list of a sensible length")
    added = [_added_token(entry, index, byte_level, source) for index, entry in enumerate(entries)]
    if len({token.token_id for token in added}) != len(added):
        raise CheckpointError(source, "added_tokens gives one id to two tokens")
    if len({token.text for token in added}) != len(added):
        raise CheckpointError(source, "added_tokens has one text twice")
    return tuple(added)


def _added_token(entry: object, index: int, byte_level: bool, source: str) -> AddedToken:
    where = f"added_tokens[{index}]"
    if not isinstance(entry, dict) or not _is_text(entry.get("content")):
        raise CheckpointError(source, f"{where} has no content")
    token_id = entry.get("id")
    if type(token_id) is not int or not 0 <= token_id < MAX_TOKENS:
        raise CheckpointError(source, f"{where}: id {shown(token_id)}")
    text = entry["content"]
    if len(text) > MAX_PIECE_CHARS:
        raise CheckpointError(source, f"{where}: content is over {MAX_PIECE_CHARS} characters")
    declared = TokenKind.CONTROL if entry.get("special") else TokenKind.USER_DEFINED
    kind = added_token_kind(text, declared)
    return AddedToken(
        token_id,
        text,
        kind,
        is_text=is_plain_text(text, kind, byte_level=byte_level),
        strip_left=bool(entry.get("lstrip")),
        strip_right=bool(entry.get("rstrip")),
        single_word=bool(entry.get("single_word")),
        normalized=bool(entry.get("normalized")),
    )


def _texts(vocab: Mapping[str, int], added: Iterable[AddedToken]) -> list[str | None]:
    by_id = {token_id: text for text, token_id in vocab.items()}
    by_id.update({token.token_id: token.text for token in added})
    texts: list[str | None] = [None] * (max(by_id, default=-1) + 1)
    for token_id, text in by_id.items():
        texts[token_id] = text
    return texts


def _byte_ids(vocab: Mapping[str, int], decoding: Decoding) -> frozenset[int]:
    if not decoding.byte_pieces:
        return frozenset()
    return frozenset(token_id for text, token_id in vocab.items() if is_byte_piece(text))


def _special(
    folder: Path,
    content: Mapping[str, Any],
    config: Mapping[str, Any],
    ids: Mapping[str, int],
    added: tuple[AddedToken, ...],
    source: str,
) -> SpecialIds:
    declared = {**_companion(folder, "special_tokens_map.json"), **config}
    texts = {role: text for role in _ROLES if (text := _content(declared.get(role)))}
    num_ids = max(ids.values(), default=-1) + 1
    ends = {ids[texts["eos_token"]]} if texts.get("eos_token") in ids else set()
    for name in ("config.json", "generation_config.json"):
        declaring = _companion(folder, name)
        inner = declaring.get("text_config")  # the text model of a model of several kinds
        for table in (declaring, inner if isinstance(inner, dict) else {}):
            ends |= _end_ids(table, str(folder / name), num_ids)
    bos_id = ids.get(texts.get("bos_token", ""))
    add_bos = config.get("add_bos_token")
    if add_bos is None:
        add_bos = bos_id is not None and _first_special(content) == texts["bos_token"]
    if not isinstance(add_bos, bool):
        raise CheckpointError(source, "add_bos_token must be true or false")
    end_ids = end_token_ids(frozenset(ends), added)
    return SpecialIds(bos_id, end_ids, add_bos, texts, named_infill_ids(added))


def _end_ids(content: Mapping[str, Any], source: str, num_ids: int) -> set[int]:
    """`eos_token_id`: a number, a list of them, or nothing. Ids of padding rows are allowed."""
    value = content.get("eos_token_id")
    ids = [] if value is None else value if isinstance(value, list) else [value]
    for token_id in ids:
        if type(token_id) is not int or not 0 <= token_id < MAX_TOKENS:
            raise CheckpointError(
                source, f"eos_token_id is {shown(value)}; ids go to {num_ids - 1}"
            )
    return set(ids)


def _first_special(content: Mapping[str, Any]) -> str | None:
    """The token that the post-processor's template puts before a single text, if any."""
    processor = content.get("post_processor")
    parts = processor.get("processors") if isinstance(processor, dict) else None
    for part in parts if isinstance(parts, list) else [processor]:
        single = part.get("single") if isinstance(part, dict) else None
        first = single[0] if isinstance(single, list) and single else None
        special = first.get("SpecialToken") if isinstance(first, dict) else None
        if isinstance(special, dict):
            return _content(special.get("id"))
    return None


def _template(folder: Path, config: Mapping[str, Any]) -> str | None:
    """chat_template.jinja, else the `chat_template` of the configuration (of several: the one
    named `default`)."""
    template: object = config.get("chat_template")
    source = str(folder / "tokenizer_config.json")
    path = path_inside(folder, "chat_template.jinja")
    if path.exists():
        source = str(path)
        try:
            template = read_whole(path, 4 * MAX_TEMPLATE_CHARS).decode("utf-8")
        except UnicodeDecodeError as error:
            raise CheckpointError(source, "is not valid UTF-8") from error
    if isinstance(template, list):
        named = [it for it in template if isinstance(it, dict) and it.get("name") == "default"]
        template = named[0].get("template") if named else None
    if template is None:
        return None
    if not isinstance(template, str) or len(template) > MAX_TEMPLATE_CHARS:
        raise CheckpointError(source, f"chat template: not a text of at most {MAX_TEMPLATE_CHARS}")
    return template


def _content(value: object) -> str | None:
    """A special token is written as its text, or as an object with `content`."""
    if isinstance(value, dict):
        value = value.get("content")
    return value if isinstance(value, str) and value else None


def _ids(added: Iterable[AddedToken]) -> dict[str, int]:
    return {token.text: token.token_id for token in added}


def _is_text(value: object) -> bool:
    return isinstance(value, str) and bool(value)
