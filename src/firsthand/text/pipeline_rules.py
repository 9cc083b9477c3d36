"""Which normalizers, pre-tokenizers and decoders of a tokenizer.json we let run.

Owns: the short list of components, the limits that keep them linear, and their meaning for us.
May not know: vocabularies, merges, files.
Read next: `pattern_rules.py` (their patterns), `tokenizer_json.py` (the only user).

A component outside the list is refused by name.
"""

from __future__ import annotations

from collections.abc import Iterator, Mapping
from typing import Any

from firsthand.checks import shown
from firsthand.errors import CheckpointError, UnsupportedModel
from firsthand.text.pattern_rules import pattern_refusal
from firsthand.values import dataclass

MAX_COMPONENTS = 32
MAX_PREFIX_CHARS = 8
MAX_UNICODE_SHRINK = 4  # bytes that a canonical form makes one of: 3 (the Kelvin sign), and room

_NORMALIZERS = {"Sequence", "NFC", "NFD", "NFKC", "NFKD", "Replace", "Prepend", "Strip"}
_PRE_TOKENIZERS = {"Sequence", "Split", "ByteLevel", "Metaspace", "Digits", "Punctuation"} | {
    "Whitespace",
    "WhitespaceSplit",
}
_DECODERS = {"Sequence", "ByteLevel", "Metaspace", "Replace", "ByteFallback", "Fuse", "Strip"}
_CHILDREN = ("normalizers", "pretokenizers", "decoders")  # of a Sequence


@dataclass(frozen=True, slots=True)
class Pipeline:
    """The checked front of a tokenizer, in tokenizer.json's words. `prefix_first`: a space goes
    before the first word of the text (`Vocabulary.space_prefix`)."""

    normalizer: dict[str, Any] | None
    pre_tokenizer: dict[str, Any] | None
    prefix_first: bool


@dataclass(frozen=True, slots=True)
class Decoding:
    """How pieces spell bytes (see `Vocabulary`)."""

    byte_level: bool
    byte_pieces: bool
    strip_first_space: bool


def check_pipeline(content: Mapping[str, Any], source: str) -> Pipeline:
    """Normalizer and pre-tokenizer, refused unless known and bounded."""
    normalizer, pre_tokenizer = content.get("normalizer"), content.get("pre_tokenizer")
    for part in _components(normalizer, "normalizer", _NORMALIZERS, source):
        _check_growth(part, source)
        _check_pattern(part.get("pattern"), source)
    prefix_first = False
    parts = _components(pre_tokenizer, "pre_tokenizer", _PRE_TOKENIZERS, source)
    for part in parts:
        _check_pattern(part.get("pattern"), source)
        if part["type"] == "Metaspace" and part.get("prepend_scheme") == "first":
            # The library means "at the beginning of the text it is given", and it is given the
            # stretches between markers one by one; so the prefix is put there by us.
            part["prepend_scheme"], prefix_first = "never", True
    return Pipeline(normalizer, pre_tokenizer, prefix_first)


def bytes_kept(normalizer: object, pre_tokenizer: object) -> float:
    """At least this share of a text's bytes is still there when the merges begin; 0: unknown."""
    kept = 1.0
    for part in _walk(normalizer):
        kind = part.get("type") if isinstance(part, dict) else None
        if kind in ("NFC", "NFD"):
            kept /= MAX_UNICODE_SHRINK
        elif kind == "Replace" and isinstance(part, dict) and _grows(part):
            pass
        elif kind not in ("Sequence", "Prepend"):
            return 0.0
    for part in _walk(pre_tokenizer):
        if not isinstance(part, dict) or part.get("behavior") == "Removed":
            return 0.0
        if part.get("type") in ("Whitespace", "WhitespaceSplit"):
            return 0.0
    return kept


def _grows(replace: Mapping[str, Any]) -> bool:
    plain = replace["pattern"].get("String")
    return plain is not None and len(replace["content"].encode()) >= len(plain.encode())


def read_decoder(decoder: object, source: str) -> Decoding:
    """What the decoder says about how pieces spell text."""
    parts = _components(decoder, "decoder", _DECODERS, source)
    kinds = {part["type"] for part in parts}
    strip = any(
        (part["type"] == "Strip" and part.get("content") == " " and part.get("start") == 1)
        or (part["type"] == "Metaspace" and part.get("prepend_scheme", "always") != "never")
        for part in parts
    )
    if "ByteLevel" in kinds:
        return Decoding(byte_level=True, byte_pieces=False, strip_first_space=False)
    if not kinds & {"Metaspace", "Replace"}:
        raise UnsupportedModel(f"{source}: decoder {sorted(kinds)} is neither of the known two")
    return Decoding(False, byte_pieces="ByteFallback" in kinds, strip_first_space=strip)


def _components(root: object, where: str, known: set[str], source: str) -> list[dict[str, Any]]:
    """All components of a tree, checked by type, parents before children."""
    found = []
    for part in _walk(root):
        if not isinstance(part, dict):
            raise CheckpointError(source, f"{where} has a part that is not an object")
        kind = part.get("type")
        if not isinstance(kind, str) or kind not in known:
            raise UnsupportedModel(f"{source}: {where} {shown(kind)} is not known")
        found.append(part)
        if len(found) > MAX_COMPONENTS:
            raise CheckpointError(source, f"{where} has over {MAX_COMPONENTS} parts")
    return found


def _walk(root: object) -> Iterator[object]:
    pending = [] if root is None else [root]
    while pending:
        part = pending.pop(0)
        yield part
        if isinstance(part, dict):
            for key in _CHILDREN if part.get("type") == "Sequence" else ():
                children = part.get(key)
                pending += children if isinstance(children, list) else []


def _check_growth(part: Mapping[str, Any], source: str) -> None:
    """A normalizer may not make text longer, but for a short prefix."""
    if part["type"] == "Prepend":
        prefix = part.get("prepend")
        if not isinstance(prefix, str) or len(prefix) > MAX_PREFIX_CHARS:
            raise CheckpointError(
                source, f"normalizer Prepend: not a text of at most {MAX_PREFIX_CHARS} characters"
            )
    if part["type"] == "Replace":
        pattern, content = part.get("pattern"), part.get("content")
        plain = pattern.get("String") if isinstance(pattern, dict) else None
        limit = max(1, len(plain) if isinstance(plain, str) else 1)
        if not isinstance(content, str) or len(content) > limit:
            raise CheckpointError(
                source,
                "normalizer Replace: the content is no text, or longer than what it replaces",
            )


def _check_pattern(pattern: object, source: str) -> None:
    if pattern is None:
        return
    if not isinstance(pattern, dict):
        raise CheckpointError(source, "a pattern is not an object")
    regex = pattern.get("Regex", "")
    plain = pattern.get("String", " ")
    if not isinstance(regex, str) or not isinstance(plain, str) or not plain:
        raise CheckpointError(source, "a pattern is not a text, or is empty")
    refusal = pattern_refusal(regex)
    if refusal is not None:
        raise UnsupportedModel(f"{source}: pattern {shown(regex)} {refusal}")
