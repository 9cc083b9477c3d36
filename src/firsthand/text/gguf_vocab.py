"""The vocabulary inside a GGUF file.

Owns: the keys `tokenizer.*`, the pre-tokenizers that GGUF names.
May not know: the file's bytes (a reader gives the key/value table), the tokenizers library.
Read next: `vocabulary.py` (the result), `tokenizer.py` (its user).

Two kinds are known. `gpt2`: byte-level pieces and merges; `tokenizer.ggml.pre` names how text is
cut into words first. `llama`: SentencePiece's byte-pair encoding, which has scores instead of
merges: the pair whose joined piece has the highest score is merged first (`scored_merges.py`).
Source: github.com/ggml-org/ggml/blob/master/docs/gguf.md; github.com/google/sentencepiece.
"""

from __future__ import annotations

from collections import Counter
from collections.abc import Mapping, Sequence
from typing import Any

from firsthand.checks import is_integer, shown
from firsthand.errors import CheckpointError, UnsupportedModel
from firsthand.text.scored_merges import SCORES, MergeMemory, merges_from_scores, no_memory
from firsthand.text.vocabulary import (
    MAX_MERGES,
    MAX_PIECE_CHARS,
    MAX_TEMPLATE_CHARS,
    MAX_TOKENS,
    WORD_MARK,
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
from firsthand.values import dataclass

MAX_ALL_CHARS = 8_000_000

_GPT2_WORDS = r"'s|'t|'re|'ve|'m|'ll|'d| ?\p{L}+| ?\p{N}+| ?[^\s\p{L}\p{N}]+|\s+(?!\S)|\s+"
_LLAMA3_WORDS = (
    r"(?i:'s|'t|'re|'ve|'m|'ll|'d)|[^\r\n\p{L}\p{N}]?\p{L}+|\p{N}{1,3}"
    r"| ?[^\s\p{L}\p{N}]+[\r\n]*|\s*[\r\n]+|\s+(?!\S)|\s+"
)
_TEKKEN_WORDS = (
    r"[^\r\n\p{L}\p{N}]?[\p{Lu}\p{Lt}\p{Lm}\p{Lo}\p{M}]*[\p{Ll}\p{Lm}\p{Lo}\p{M}]+"
    r"|[^\r\n\p{L}\p{N}]?[\p{Lu}\p{Lt}\p{Lm}\p{Lo}\p{M}]+[\p{Ll}\p{Lm}\p{Lo}\p{M}]*"
    r"|\p{N}| ?[^\s\p{L}\p{N}]+[\r\n/]*|\s*[\r\n]+|\s+(?!\S)|\s+"
)


@dataclass(frozen=True, slots=True)
class PreTokenizer:
    """How text is cut before merging: each pattern in turn cuts what the one before left.

    `whole_words`: a word that is a piece is taken at once, without merges.
    """

    patterns: tuple[str, ...]
    compose: bool = False  # Unicode normal form C first
    whole_words: bool = False
    add_bos: bool = False


_GPT2 = PreTokenizer((_GPT2_WORDS,))
_SINGLE_DIGITS = PreTokenizer((r"\p{N}", _GPT2_WORDS))
_LLAMA3 = PreTokenizer((_LLAMA3_WORDS,), whole_words=True, add_bos=True)
_QWEN2_WORDS = _LLAMA3_WORDS.replace(r"\p{N}{1,3}", r"\p{N}")

# A file without the key, or with `default`, predates the names; it is taken as GPT-2's.
PRE_TOKENIZERS: Mapping[str, PreTokenizer] = {
    "default": _GPT2,
    "gpt-2": _GPT2,
    "phi-2": _GPT2,
    "olmo": _GPT2,
    "mpt": _GPT2,
    "smollm": _SINGLE_DIGITS,
    "starcoder": _SINGLE_DIGITS,
    "refact": _SINGLE_DIGITS,
    "llama-bpe": _LLAMA3,
    "llama3": _LLAMA3,
    "llama-v3": _LLAMA3,
    "falcon3": _LLAMA3,
    "qwen2": PreTokenizer((_QWEN2_WORDS,), compose=True),
    "deepseek-r1-qwen": PreTokenizer((_QWEN2_WORDS,)),
    "tekken": PreTokenizer((_TEKKEN_WORDS,), whole_words=True, add_bos=True),
}

_ROLES = {
    "bos_token": "bos",
    "eos_token": "eos",
    "unk_token": "unknown",
    "pad_token": "padding",
    "sep_token": "seperator",  # GGUF's own spelling
}
_END_ROLES = ("eos", "eot", "eom")
_INFILL_ROLES = (("fim_pre", "fim_suf", "fim_mid"), ("prefix", "suffix", "middle"))  # new, old


def vocabulary_from_gguf(
    metadata: Mapping[str, Any], file: str, memory: MergeMemory = no_memory
) -> Vocabulary:
    """The vocabulary in a GGUF's key/value table. `memory` may keep the merges of a large one that
    has scores. Raises CheckpointError, UnsupportedModel."""
    model = metadata.get("tokenizer.ggml.model")
    if not isinstance(model, str) or model not in ("gpt2", "llama"):
        raise UnsupportedModel(
            f"{file}: tokenizer model {shown(model)}; known are 'gpt2' and 'llama'"
        )
    tokens = _tokens(metadata, file)
    kinds = _kinds(metadata, len(tokens), file)
    for token_id in _infill_ids(metadata, len(tokens), file) or ():
        kinds[token_id] = TokenKind.CONTROL  # some converters leave it normal, which text becomes
    if model == "gpt2":
        return _byte_level(metadata, tokens, kinds, file)
    return _sentencepiece(metadata, tokens, kinds, file, memory)


def _byte_level(
    metadata: Mapping[str, Any], tokens: list[str], kinds: list[TokenKind], file: str
) -> Vocabulary:
    name = metadata.get("tokenizer.ggml.pre", "default")
    if not isinstance(name, str) or name not in PRE_TOKENIZERS:
        raise UnsupportedModel(
            f"{file}: pre-tokenizer {shown(name)} (tokenizer.ggml.pre) is not known"
        )
    pre = PRE_TOKENIZERS[name]
    added = _added(tokens, kinds, byte_level=True)
    pieces = _pieces(tokens, kinds, added)
    return Vocabulary(
        source=file,
        byte_level=True,
        pieces=pieces,
        merges=_merges(metadata, file),
        texts=list(tokens),
        byte_ids=frozenset(),
        added=added,
        special=_special(metadata, tokens, added, pre.add_bos, file),
        normalizer={"type": "NFC"} if pre.compose else None,
        pre_tokenizer=_split_then_bytes(pre.patterns),
        ignore_merges=pre.whole_words,
        chat_template=_template(metadata, file),
    )


def _sentencepiece(
    metadata: Mapping[str, Any],
    tokens: list[str],
    kinds: list[TokenKind],
    file: str,
    memory: MergeMemory,
) -> Vocabulary:
    _refuse_normalizers(metadata, file)
    scores = _sequence(metadata, SCORES, MAX_TOKENS, file)
    prefix = _flag(metadata, "tokenizer.ggml.add_space_prefix", True, file)
    added = _added(tokens, kinds, byte_level=False)
    pieces = _pieces(tokens, kinds, added)
    byte_ids = _byte_ids(tokens, kinds, file)
    for token_id in byte_ids:
        pieces[tokens[token_id]] = token_id
    unknown = next((token.text for token in added if token.kind is TokenKind.UNKNOWN), None)
    if unknown is not None:
        pieces[unknown] = tokens.index(unknown)
    return Vocabulary(
        source=file,
        byte_level=False,
        pieces=pieces,
        merges=merges_from_scores(scores, tokens, kinds, file, memory),
        texts=list(tokens),
        byte_ids=byte_ids,
        added=added,
        special=_special(metadata, tokens, added, True, file),
        normalizer={"type": "Replace", "pattern": {"String": " "}, "content": WORD_MARK},
        pre_tokenizer=None,
        unknown_piece=unknown,
        byte_fallback=len(byte_ids) == 256,
        fuse_unknown=True,
        space_prefix="each" if prefix else "never",
        strip_first_space=prefix,
        chat_template=_template(metadata, file),
    )


def _refuse_normalizers(metadata: Mapping[str, Any], file: str) -> None:
    """What a Unigram vocabulary does to its text first. Byte-pair ones have neither, or empty."""
    key = "tokenizer.ggml.precompiled_charsmap"
    if key in metadata and _sequence(metadata, key, MAX_ALL_CHARS, file):
        raise UnsupportedModel(f"{file}: {key} with model 'llama'")
    key = "tokenizer.ggml.remove_extra_whitespaces"
    if _flag(metadata, key, False, file):
        raise UnsupportedModel(f"{file}: {key} with model 'llama'")


def _tokens(metadata: Mapping[str, Any], file: str) -> list[str]:
    tokens = _sequence(metadata, "tokenizer.ggml.tokens", MAX_TOKENS, file)
    num_chars = 0
    for index, token in enumerate(tokens):
        if not isinstance(token, str):
            raise CheckpointError(file, f"tokenizer.ggml.tokens[{index}] is not a string")
        if len(token) > MAX_PIECE_CHARS:
            raise CheckpointError(
                file, f"tokenizer.ggml.tokens[{index}] is over {MAX_PIECE_CHARS} characters"
            )
        num_chars += len(token)
    if num_chars > MAX_ALL_CHARS:
        raise CheckpointError(file, f"tokenizer.ggml.tokens has over {MAX_ALL_CHARS} characters")
    if len(set(tokens)) != len(tokens):
        twice = Counter(tokens).most_common(1)[0][0]
        raise CheckpointError(file, f"tokenizer.ggml.tokens has {shown(twice)} twice")
    return tokens


def _kinds(metadata: Mapping[str, Any], num_tokens: int, file: str) -> list[TokenKind]:
    key = "tokenizer.ggml.token_type"
    if key not in metadata:
        return [TokenKind.NORMAL] * num_tokens
    numbers = _sequence(metadata, key, MAX_TOKENS, file)
    if len(numbers) != num_tokens:
        raise CheckpointError(file, f"{key} has {len(numbers)} entries for {num_tokens} tokens")
    kinds = {int(kind): kind for kind in TokenKind}
    try:
        return [kinds[number] for number in numbers]
    except (KeyError, TypeError):
        raise CheckpointError(file, f"{key} has an entry that is not 1 to 6") from None


def _added(
    tokens: Sequence[str], kinds: Sequence[TokenKind], *, byte_level: bool
) -> tuple[AddedToken, ...]:
    added = []
    plain = (TokenKind.NORMAL, TokenKind.BYTE)
    # `is` first: nearly all are normal, and to compare members of an enumeration is slow.
    marked = [id_ for id_, kind in enumerate(kinds) if kind is not plain[0] and kind not in plain]
    for token_id, text, declared in ((id_, tokens[id_], kinds[id_]) for id_ in marked):
        if not text:
            continue
        kind = added_token_kind(text, declared)
        is_text = is_plain_text(text, kind, byte_level=byte_level)
        if is_text and not byte_level:
            text = text.replace(WORD_MARK, " ")
        added.append(AddedToken(token_id, text, kind, is_text))
    return tuple(added)


def _pieces(
    tokens: Sequence[str], kinds: Sequence[TokenKind], added: Sequence[AddedToken]
) -> dict[str, int]:
    """What plain text may become: normal pieces and text tokens, no markers."""
    normal = TokenKind.NORMAL
    pieces = {text: id_ for id_, text in enumerate(tokens) if kinds[id_] is normal and text}
    pieces.update({token.text: token.token_id for token in added if token.is_text})
    return pieces


def _byte_ids(tokens: Sequence[str], kinds: Sequence[TokenKind], file: str) -> frozenset[int]:
    ids = [token_id for token_id, kind in enumerate(kinds) if kind is TokenKind.BYTE]
    for token_id in ids:
        if not is_byte_piece(tokens[token_id]):
            raise CheckpointError(file, f"byte token {token_id} is not written as <0xNN>")
    return frozenset(ids)


def _merges(metadata: Mapping[str, Any], file: str) -> list[tuple[str, str]]:
    """Whether each is two pieces that make a third, the library looks when it takes them."""
    key = "tokenizer.ggml.merges"
    try:
        return [entry.partition(" ")[::2] for entry in _sequence(metadata, key, MAX_MERGES, file)]
    except AttributeError:
        raise CheckpointError(file, f"{key} has an entry that is not a string") from None


def _special(
    metadata: Mapping[str, Any],
    tokens: Sequence[str],
    added: tuple[AddedToken, ...],
    add_bos: bool,
    file: str,
) -> SpecialIds:
    ids = {
        role: _token_id(metadata, f"tokenizer.ggml.{role}_token_id", len(tokens), file)
        for role in {*_ROLES.values(), *_END_ROLES}
    }
    texts = {
        name: tokens[token_id]
        for name, role in _ROLES.items()
        if (token_id := ids[role]) is not None
    }
    declared = (ids[role] for role in _END_ROLES)
    return SpecialIds(
        bos_id=ids["bos"],
        end_ids=end_token_ids(frozenset(id_ for id_ in declared if id_ is not None), added),
        add_bos=_flag(metadata, "tokenizer.ggml.add_bos_token", add_bos, file),
        texts=texts,
        infill_ids=_infill_ids(metadata, len(tokens), file) or named_infill_ids(added),
    )


def _infill_ids(
    metadata: Mapping[str, Any], num_tokens: int, file: str
) -> tuple[int, int, int] | None:
    """By the keys. None: they do not name three tokens."""
    for roles in _INFILL_ROLES:
        keys = (f"tokenizer.ggml.{role}_token_id" for role in roles)
        before, after, gap = (_token_id(metadata, key, num_tokens, file) for key in keys)
        if before is None or after is None or gap is None:
            continue
        if len({before, after, gap}) == 3:
            return before, after, gap
    return None


def _split_then_bytes(patterns: Sequence[str]) -> dict[str, Any]:
    splits: list[dict[str, Any]] = [
        {"type": "Split", "pattern": {"Regex": it}, "behavior": "Isolated", "invert": False}
        for it in patterns
    ]
    to_bytes = {
        "type": "ByteLevel",
        "add_prefix_space": False,
        "trim_offsets": True,
        "use_regex": False,
    }
    return {"type": "Sequence", "pretokenizers": [*splits, to_bytes]}


def _sequence(metadata: Mapping[str, Any], key: str, limit: int, file: str) -> list[Any]:
    values: Any = metadata.get(key)
    packed = hasattr(values, "tolist")  # an array, from a reader that keeps numbers packed
    if not packed and not isinstance(values, list | tuple):
        raise CheckpointError(file, f"{key} is missing or not an array")
    if len(values) > limit:
        raise CheckpointError(file, f"{key} has {len(values)} entries; the limit is {limit}")
    return values.tolist() if packed else list(values)


def _token_id(metadata: Mapping[str, Any], key: str, num_tokens: int, file: str) -> int | None:
    value = metadata.get(key)
    if value is None:
        return None
    if not is_integer(value) or not 0 <= value < num_tokens:
        raise CheckpointError(file, f"{key} is {shown(value)}; there are {num_tokens} tokens")
    return value


def _flag(metadata: Mapping[str, Any], key: str, default: bool, file: str) -> bool:
    value = metadata.get(key, default)
    if not isinstance(value, bool):
        raise CheckpointError(file, f"{key} must be true or false, not {shown(value)}")
    return value


def _template(metadata: Mapping[str, Any], file: str) -> str | None:
    template = metadata.get("tokenizer.chat_template")
    if template is None:
        return None
    if not isinstance(template, str) or len(template) > MAX_TEMPLATE_CHARS:
        raise CheckpointError(
            file, f"tokenizer.chat_template is not a text of at most {MAX_TEMPLATE_CHARS}"
        )
    return template
