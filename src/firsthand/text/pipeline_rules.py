"""Which normalizers, pre-tokenizers, patterns and decoders of a tokenizer.json we let run.

Owns: the short list of components, the limits that keep them linear, and their meaning for us.
May not know: vocabularies, merges, files.
Read next: `tokenizer_json.py`, the only user.

A component outside the list is refused by name. A pattern with a repetition inside a repetition
can take exponential time, so it is refused before any text meets it; the library's own limit on
backtracking stands behind that rule.
"""

from __future__ import annotations

from collections.abc import Iterator, Mapping
from dataclasses import dataclass
from typing import Any

from firsthand.errors import CheckpointError, UnsupportedModel

MAX_COMPONENTS = 32
MAX_PATTERN_CHARS = 4000
MAX_PREFIX_CHARS = 8

_NORMALIZERS = {"Sequence", "NFC", "NFD", "NFKC", "NFKD", "Replace", "Prepend", "Strip"}
_PRE_TOKENIZERS = {"Sequence", "Split", "ByteLevel", "Metaspace", "Digits", "Punctuation"} | {
    "Whitespace",
    "WhitespaceSplit",
}
_DECODERS = {"Sequence", "ByteLevel", "Metaspace", "Replace", "ByteFallback", "Fuse", "Strip"}
_CHILDREN = {"Sequence": ("normalizers", "pretokenizers", "decoders")}


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
        if part.get("type") not in known:
            raise UnsupportedModel(f"{source}: {where} {part.get('type')!r} is not known")
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
            for key in _CHILDREN.get(str(part.get("type")), ()):
                children = part.get(key)
                pending += children if isinstance(children, list) else []


def _check_growth(part: Mapping[str, Any], source: str) -> None:
    """A normalizer may not make text longer, but for a short prefix."""
    if part["type"] == "Prepend" and len(str(part.get("prepend"))) > MAX_PREFIX_CHARS:
        raise CheckpointError(source, f"normalizer Prepend: over {MAX_PREFIX_CHARS} characters")
    if part["type"] == "Replace":
        pattern = part.get("pattern")
        plain = pattern.get("String") if isinstance(pattern, dict) else None
        limit = max(1, len(plain) if isinstance(plain, str) else 1)
        if len(str(part.get("content"))) > limit:
            raise CheckpointError(source, "normalizer Replace: the content is longer than the text")


def _check_pattern(pattern: object, source: str) -> None:
    if not isinstance(pattern, dict):
        return
    regex = pattern.get("Regex", "")
    plain = pattern.get("String", " ")
    if not isinstance(regex, str) or not isinstance(plain, str) or not plain:
        raise CheckpointError(source, "a pattern is not a text, or is empty")
    if len(regex) > MAX_PATTERN_CHARS:
        raise CheckpointError(source, f"a pattern is over {MAX_PATTERN_CHARS} characters")
    if has_nested_repetition(regex):
        raise CheckpointError(
            source, f"pattern {regex[:80]!r} repeats a repetition; its time has no bound"
        )


def has_nested_repetition(regex: str) -> bool:
    """Whether an unbounded repetition applies to a group that holds an unbounded repetition."""
    holds = [False]  # for each open group: whether it holds an unbounded repetition
    last_holds = False  # whether the last atom was a group that does
    position = 0
    while position < len(regex):
        char = regex[position]
        if char == "(":
            holds.append(False)
            last_holds = False
            position += 1
        elif char == ")":
            last_holds = holds.pop() if len(holds) > 1 else False
            holds[-1] |= last_holds
            position += 1
        elif (end := _repetition_end(regex, position)) is not None:
            if last_holds:
                return True
            holds[-1] = True
            position = end
        else:
            last_holds = last_holds and char in "?+"
            position = _atom_end(regex, position)
    return False


def _repetition_end(regex: str, position: int) -> int | None:
    """The end of an unbounded repetition that begins here: `*`, `+`, `{n,}` or a large bound."""
    end = position + 1
    if regex[position] == "{":
        close = regex.find("}", position)
        _, comma, most = regex[position + 1 : close].partition(",")
        if close < 0 or not comma or (most.strip().isdigit() and int(most) <= 16):
            return None
        end = close + 1
    elif regex[position] not in "*+":
        return None
    return end + (regex[end : end + 1] in ("?", "+"))


def _atom_end(regex: str, position: int) -> int:
    if regex[position] == "\\":
        if (
            regex[position + 1 : position + 2] in tuple("pPxuo")
            and regex[position + 2 :][:1] == "{"
        ):
            return regex.find("}", position) + 1 or len(regex)
        return position + 2
    if regex[position] == "[":
        return _class_end(regex, position)
    return position + 1


def _class_end(regex: str, position: int) -> int:
    depth = 0
    while position < len(regex):
        char = regex[position]
        if char == "\\":
            position += 1
        elif char == "[":
            depth += 1
        elif char == "]":
            depth -= 1
            if depth == 0:
                return position + 1
        position += 1
    return len(regex)
