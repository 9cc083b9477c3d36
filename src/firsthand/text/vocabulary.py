"""A vocabulary in the form we use, whatever kind of file it came from.

Owns: `Vocabulary` (pieces, merges, kinds, the special ids) and the exact bytes of every token.
May not know: file forms, the tokenizers library, prompts.
Read next: `tokenizer_json.py` and `gguf_vocab.py` (the two sources), `tokenizer.py` (the user).
"""

from __future__ import annotations

import codecs
from collections.abc import Mapping
from enum import IntEnum
from itertools import accumulate, chain
from typing import Any, Literal

from firsthand.errors import CheckpointError
from firsthand.values import dataclass

MAX_TOKENS = 2_000_000
MAX_MERGES = 4_000_000
MAX_TEMPLATE_CHARS = 1_000_000
MAX_PIECE_CHARS = 1024
WORD_MARK = "\u2581"  # SentencePiece writes a space as this character

# Markers that end or begin a turn. A file may list them as ordinary added tokens; text that a
# user typed must still never become one, so they count as control tokens whatever the file says.
TURN_END_TEXTS = frozenset(
    (
        "<|im_end|>",
        "<|eot_id|>",
        "<|eom_id|>",
        "<|end|>",
        "<end_of_turn>",
        "<|endoftext|>",
        "<|end_of_text|>",
        "<|eot|>",
        "<|end_of_turn|>",
        f"{WORD_MARK}<EOT>",  # CodeLlama's, after what was filled in
    )
)
TURN_BEGIN_TEXTS = frozenset(
    (
        "<|im_start|>",
        "<|start_header_id|>",
        "<|end_header_id|>",
        "<start_of_turn>",
        "<|system|>",
        "<|user|>",
        "<|assistant|>",
        "<|begin_of_text|>",
    )
)

# What stands before the text so far, before what follows it, and before what belongs between.
_INFILL_TEXTS = (
    ("<|fim_prefix|>", "<|fim_suffix|>", "<|fim_middle|>"),  # Qwen2.5-Coder, CodeGemma
    ("<fim_prefix>", "<fim_suffix>", "<fim_middle>"),  # StarCoder, Granite
    ("<fim-prefix>", "<fim-suffix>", "<fim-middle>"),  # SantaCoder
    (f"{WORD_MARK}<PRE>", f"{WORD_MARK}<SUF>", f"{WORD_MARK}<MID>"),  # CodeLlama
    (
        "<\uff5cfim\u2581begin\uff5c>",
        "<\uff5cfim\u2581hole\uff5c>",
        "<\uff5cfim\u2581end\uff5c>",
    ),  # DeepSeek
)
_CONTROL_TEXTS = TURN_END_TEXTS.union(TURN_BEGIN_TEXTS, *_INFILL_TEXTS)


class TokenKind(IntEnum):
    """What a token is, with the numbers that GGUF gives the kinds."""

    NORMAL = 1
    UNKNOWN = 2  # stands for what the vocabulary cannot spell
    CONTROL = 3  # has no text of its own; only a template or the model may write it
    USER_DEFINED = 4  # added whole to the vocabulary, and visible text
    UNUSED = 5
    BYTE = 6  # one byte, written <0xNN>


@dataclass(frozen=True, slots=True)
class AddedToken:
    """A token that is found in the text before the merges are applied.

    `is_text`: ordinary text may become it (a run of spaces, a symbol that a SentencePiece model
    defines); else it is a marker, which plain text never becomes. `strip_left` and `strip_right`
    swallow the white space beside a marker; `single_word` wants no letter beside it.
    """

    token_id: int
    text: str
    kind: TokenKind
    is_text: bool
    strip_left: bool = False
    strip_right: bool = False
    single_word: bool = False
    normalized: bool = False

    @property
    def is_control(self) -> bool:
        """Whether it is hidden from decoded text and barred from what users write."""
        return self.kind in (TokenKind.CONTROL, TokenKind.UNKNOWN, TokenKind.UNUSED)


@dataclass(frozen=True, slots=True)
class SpecialIds:
    """The ids with a role. `add_bos`: a prompt of this model begins with `bos_id`.

    `end_ids` is the union of what the tokenizer, config.json and generation_config.json name,
    and of the vocabulary's own end-of-turn markers: a model may end its turn with any of them.
    `texts` is what templates know as `bos_token`, `eos_token`, …  `infill_ids`, if the vocabulary
    has them, stand before the text so far, before what follows, and before what belongs between;
    each is a control token.
    """

    bos_id: int | None
    end_ids: frozenset[int]
    add_bos: bool
    texts: Mapping[str, str]
    infill_ids: tuple[int, int, int] | None = None


@dataclass(frozen=True, slots=True)
class Vocabulary:
    """Byte-pair encoding, in one of its two families.

    `byte_level`: pieces are written in GPT-2's alphabet of 256 printable characters, one per
    byte. Otherwise SentencePiece: pieces are text with `▁` for a space, and single bytes as
    `<0xNN>`.

    `pieces` are those that plain text may become, with their ids; `texts` has every token's text by
    id (None: no such token). `normalizer` and `pre_tokenizer` are in the words of
    tokenizer.json. `space_prefix`: a space goes before plain text; `first`: at the beginning of
    the prompt, unless one is there; `each`: always, also after each marker (as SentencePiece
    models were used before 2023, and llama.cpp does). `strip_first_space`: the first space is
    not part of decoded text.
    """

    source: str
    byte_level: bool
    pieces: dict[str, int]
    merges: list[tuple[str, str]]
    texts: list[str | None]
    byte_ids: frozenset[int]
    added: tuple[AddedToken, ...]
    special: SpecialIds
    normalizer: Mapping[str, Any] | None
    pre_tokenizer: Mapping[str, Any] | None
    unknown_piece: str | None = None
    byte_fallback: bool = False
    fuse_unknown: bool = False
    ignore_merges: bool = False
    space_prefix: Literal["never", "first", "each"] = "never"
    strip_first_space: bool = False
    chat_template: str | None = None


def added_token_kind(text: str, kind: TokenKind) -> TokenKind:
    """The kind we go by: markers of turns and of gaps to be filled in are control tokens even where
    the file forgot it."""
    if kind is TokenKind.USER_DEFINED and text in _CONTROL_TEXTS:
        return TokenKind.CONTROL
    return kind


def is_plain_text(text: str, kind: TokenKind, *, byte_level: bool) -> bool:
    """Whether ordinary text may become this added token.

    SentencePiece's user-defined symbols are text by its own definition. In byte-level
    vocabularies only runs of white space are; everything else that was added is a marker.
    """
    return kind is TokenKind.USER_DEFINED and (not byte_level or text.isspace())


def end_token_ids(declared: frozenset[int], added: tuple[AddedToken, ...]) -> frozenset[int]:
    """The declared ids and the vocabulary's own end-of-turn markers."""
    return declared | {token.token_id for token in added if token.text in TURN_END_TEXTS}


def named_infill_ids(added: tuple[AddedToken, ...]) -> tuple[int, int, int] | None:
    """Of a vocabulary whose file names no role for them."""
    ids = {token.text: token.token_id for token in added if token.is_control}
    for before, after, gap in _INFILL_TEXTS:
        if before in ids and after in ids and gap in ids:
            return ids[before], ids[after], ids[gap]
    return None


def token_bytes_table(vocabulary: Vocabulary) -> list[bytes]:
    """The exact bytes that each id stands for; empty where there is no such token."""
    added = {token.token_id for token in vocabulary.added}
    if vocabulary.byte_level and (quick := _whole_table(vocabulary, added)) is not None:
        return quick
    table = [b""] * len(vocabulary.texts)
    alphabet = byte_alphabet()
    for token_id, text in enumerate(vocabulary.texts):
        if text is None:
            continue
        if token_id in vocabulary.byte_ids:
            table[token_id] = bytes((int(text[3:5], 16),))
        elif not vocabulary.byte_level:
            table[token_id] = _utf8(text.replace(WORD_MARK, " "), vocabulary.source, token_id)
        elif token_id in added:
            table[token_id] = _utf8(text, vocabulary.source, token_id)
        else:
            try:
                table[token_id] = bytes(map(alphabet.__getitem__, text))
            except KeyError:  # not in the alphabet: the text itself, as the reference has it
                table[token_id] = _utf8(text, vocabulary.source, token_id)
    return table


def longest_token_bytes(vocabulary: Vocabulary, table: list[bytes]) -> int:
    """Of the text, as the merges see it, that one token can stand for. `table`: its bytes."""
    spelled = 0
    if not vocabulary.byte_level:  # there U+2581 has three bytes; the space it stands for, one
        spelled = max((len(text.encode()) for text in vocabulary.texts if text), default=0)
    return max(spelled, *map(len, table), 1)


def unspelled_bytes(vocabulary: Vocabulary) -> bytes | None:
    """The bytes that become a part of no token of their own. None: it could be any."""
    if any(it.is_text and (it.strip_left or it.strip_right) for it in vocabulary.added):
        return None
    if vocabulary.byte_level:
        alphabet = byte_alphabet().items()
        return bytes(byte for char, byte in alphabet if char not in vocabulary.pieces)
    return b"" if vocabulary.byte_fallback and len(vocabulary.byte_ids) == 256 else None


def _whole_table(vocabulary: Vocabulary, added: set[int]) -> list[bytes] | None:
    """The same in one piece, several times as fast: each character is one byte, so the joined texts
    are encoded at once and cut again. None where a text is not in the alphabet."""
    texts = [text or "" for text in vocabulary.texts]
    for token_id in added:
        texts[token_id] = ""
    by_byte = sorted(byte_alphabet().items(), key=lambda item: item[1])
    encoding = codecs.charmap_build("".join(char for char, _ in by_byte))
    try:
        whole, _ = codecs.charmap_encode("".join(texts), "strict", encoding)
    except UnicodeEncodeError:
        return None
    stops = list(accumulate(map(len, texts)))
    table = [whole[start:stop] for start, stop in zip(chain((0,), stops), stops, strict=False)]
    for token_id in added:
        marker = vocabulary.texts[token_id]
        table[token_id] = b"" if marker is None else _utf8(marker, vocabulary.source, token_id)
    return table


def byte_alphabet() -> dict[str, int]:
    """GPT-2's printable character for each byte (github.com/openai/gpt-2, encoder.py): bytes
    that are printable in Latin-1 stand for themselves, the others for U+0100 and onwards."""
    printable = {*range(0x21, 0x7F), *range(0xA1, 0xAD), *range(0xAE, 0x100)}
    others = (byte for byte in range(256) if byte not in printable)
    alphabet = {chr(byte): byte for byte in printable}
    alphabet.update({chr(0x100 + index): byte for index, byte in enumerate(others)})
    return alphabet


def is_byte_piece(text: str) -> bool:
    """Whether a piece is SentencePiece's spelling of one byte, as `<0x0A>`."""
    if len(text) != 6 or not text.startswith("<0x") or text[5] != ">":
        return False
    return all(digit in "0123456789ABCDEFabcdef" for digit in text[3:5])


def _utf8(text: str, source: str, token_id: int) -> bytes:
    try:
        return text.encode("utf-8")
    except UnicodeEncodeError:
        raise CheckpointError(source, f"token {token_id} is not valid Unicode") from None
