"""From text to token ids and back: one vocabulary, ready for use.

Owns: `Tokenizer`; the rule for BOS; that plain text never becomes a control token.
May not know: messages, templates' language, stop strings, models.
Read next: `vocabulary.py` (what it is made of), `markers.py`, `detokenize.py`.

The merges run in the `tokenizers` library; markers are found here, so that which text may become
a control token is decided in one place:

| | control tokens | other added markers (`<tool_call>`) | text tokens (runs of spaces) |
|---|---|---|---|
| `encode(text)` | never | never | as the vocabulary says |
| `encode(text, special=True)` | parsed | parsed | as the vocabulary says |
| `encode_rendered(prompt)` | where the template wrote them | parsed | as the vocabulary says |
| `encode_infill(infill)` | three, by their ids | never | as the vocabulary says |

BOS: with `add_bos` None the model's own rule decides. There is exactly one: a text whose first
marker is BOS gets no second one. In plain text a typed BOS stays text.
"""

from __future__ import annotations

import json
from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from contextlib import contextmanager
from dataclasses import replace
from math import ceil
from pathlib import Path
from typing import Any

from firsthand.checks import shown
from firsthand.errors import CheckpointError, ContextLengthExceeded, InvalidRequest
from firsthand.text.detokenize import Detokenizer
from firsthand.text.gguf_vocab import vocabulary_from_gguf
from firsthand.text.markers import MarkerIndex, fold_case
from firsthand.text.pipeline_rules import bytes_kept
from firsthand.text.scored_merges import MergeMemory, no_memory
from firsthand.text.tokenizer_json import vocabulary_from_folder
from firsthand.text.vocabulary import (
    WORD_MARK,
    Vocabulary,
    longest_token_bytes,
    token_bytes_table,
    unspelled_bytes,
)
from firsthand.values import dataclass

_NOT_IN_UTF_8 = frozenset((0xC0, 0xC1, *range(0xF5, 0x100)))


@dataclass(frozen=True, slots=True)
class RenderedPrompt:
    """A prompt as a template wrote it. `guarded` may hold the character `guard` (empty: none)
    inside texts that must not become control tokens; `text` is what a reader should see."""

    guarded: str
    guard: str = ""

    @property
    def text(self) -> str:
        return self.guarded.replace(self.guard, "") if self.guard else self.guarded


@dataclass(frozen=True, slots=True)
class Infill:
    """What stands before and after the text that is wanted."""

    before: str
    after: str


class Tokenizer:
    """One vocabulary. Immutable after construction; safe for several threads. Of the `Vocabulary`
    that it is made of it keeps no piece and no merge: those are the library's now, and were some
    hundred thousand objects."""

    def __init__(self, vocabulary: Vocabulary) -> None:
        self._vocabulary = replace(vocabulary, pieces={}, merges=[], texts=[])
        self._codec = _build_codec(vocabulary)
        self._bytes = token_bytes_table(vocabulary)
        self._least_ids = _least_ids(vocabulary, self._bytes)
        self._markers = MarkerIndex(token for token in vocabulary.added if not token.is_text)
        self._controls = MarkerIndex(
            replace(token, text=fold_case(token.text))
            for token in vocabulary.added
            if token.is_control
        )
        self.special_ids = frozenset(
            token.token_id for token in vocabulary.added if token.is_control
        )

    @classmethod
    def from_folder(cls, folder: str | Path) -> Tokenizer:
        """From tokenizer.json and its companions. Raises CheckpointError, UnsupportedModel."""
        return cls(vocabulary_from_folder(Path(folder)))

    @classmethod
    def from_gguf(
        cls,
        metadata: Mapping[str, Any],
        file: str = "gguf metadata",
        memory: MergeMemory = no_memory,
    ) -> Tokenizer:
        """From the `tokenizer.*` keys of a GGUF file. Raises CheckpointError, UnsupportedModel."""
        return cls(vocabulary_from_gguf(metadata, file, memory))

    @property
    def vocab_size(self) -> int:
        """One more than the largest id."""
        return len(self._bytes)

    @property
    def kind(self) -> str:
        """The family of the vocabulary: `byte-level BPE` or `SentencePiece`."""
        return "byte-level BPE" if self._vocabulary.byte_level else "SentencePiece"

    @property
    def bos_id(self) -> int | None:
        return self._vocabulary.special.bos_id

    @property
    def end_ids(self) -> frozenset[int]:
        """The ids that end a sequence: declared ones and the vocabulary's end-of-turn markers."""
        return self._vocabulary.special.end_ids

    @property
    def add_bos(self) -> bool:
        """The model's own rule: whether a prompt begins with BOS."""
        return self._vocabulary.special.add_bos and self.bos_id is not None

    @property
    def chat_template(self) -> str | None:
        """The template's source, as the model's files have it."""
        return self._vocabulary.chat_template

    @property
    def special_texts(self) -> Mapping[str, str]:
        """What templates know as `bos_token`, `eos_token`, …"""
        return self._vocabulary.special.texts

    @property
    def controls(self) -> MarkerIndex:
        """The control tokens, their case folded, for the `Guard` of what users write."""
        return self._controls

    @property
    def strip_first_space(self) -> bool:
        return self._vocabulary.strip_first_space

    def difference(self, other: Tokenizer) -> str | None:
        """Why ids of one are not those of the other; None: they are."""
        if len(self._bytes) != len(other._bytes):
            return f"it has {len(other._bytes)} tokens, not {len(self._bytes)}"
        for token_id, (mine, others) in enumerate(zip(self._bytes, other._bytes, strict=True)):
            if mine != others:
                return f"its token {token_id} is {others!r:.60}, not {mine!r:.60}"
        if self.special_ids != other.special_ids or self.end_ids != other.end_ids:
            return "its control tokens are others"
        return None

    def check_width(self, num_logits: int) -> None:
        """Refuse a model that has no row for some id of this vocabulary. A wider model is usual:
        its last rows are padding. Raises CheckpointError."""
        if num_logits < self.vocab_size:
            raise CheckpointError(
                self._vocabulary.source,
                f"the vocabulary has ids up to {self.vocab_size - 1}, "
                f"but the model has {num_logits} logits",
            )

    def check_length(self, text: str, limit: int) -> None:
        """Refuse a text that can only have `limit` ids or more, before the work of tokenizing it.
        Raises ContextLengthExceeded."""
        least = self.min_tokens(text)
        if least >= limit:
            raise ContextLengthExceeded(
                "prompt", f"at least {least} tokens leave no room for a new one in {limit}"
            )

    def min_tokens(self, text: str) -> int:
        """`encode(text)` gives at least so many ids. It takes a fraction of the time, so that a
        text that cannot fit is refused before it is encoded. From the longest token's bytes; 0
        where the vocabulary may drop text."""
        return self._least_ids(text.encode("utf-8", "surrogatepass"))

    def encode(self, text: str, *, special: bool = False, add_bos: bool | None = None) -> list[int]:
        """The ids of `text`. `special` parses markers in it; leave it off for what users typed.

        Raises InvalidRequest when `text` is no text, or not valid Unicode (a lone surrogate).
        """
        if not isinstance(text, str):
            raise InvalidRequest("prompt", f"must be a text, not {type(text).__name__}")
        ids = self._encode_marked(text) if special else self._encode_plain(text, at_start=True)
        return self._with_bos(ids, add_bos, may_have_bos=special)

    def encode_rendered(self, prompt: RenderedPrompt, *, add_bos: bool | None = None) -> list[int]:
        """The ids of a rendered template: control tokens only where the template wrote them."""
        ids = self._encode_marked(prompt.guarded, prompt.guard)
        return self._with_bos(ids, add_bos, may_have_bos=True)

    def encode_infill(self, infill: Infill, *, add_bos: bool | None = None) -> list[int]:
        """The ids of a prompt whose answer belongs between two texts: markers by their ids, the
        texts as plain text. Raises InvalidRequest where the vocabulary has no such markers."""
        markers = self._vocabulary.special.infill_ids
        if markers is None:
            message = "this model has no tokens for filling in the middle of a text"
            raise InvalidRequest("suffix", message)
        _check_unicode(infill.after, "suffix")
        before = self._encode_plain(infill.before, at_start=True)
        after = self._merged(infill.after)  # it goes on: no space before it
        ids = [markers[0], *before, markers[1], *after, markers[2]]
        return self._with_bos(ids, add_bos, may_have_bos=False)

    def decode(
        self, ids: Iterable[int], *, skip_special: bool = True, continues: bool = False
    ) -> str:
        """The text of `ids`, by the same way as streaming (see `Detokenizer`)."""
        detokenizer = Detokenizer(self, skip_special=skip_special, continues=continues)
        pieces = [detokenizer.add(token_id) for token_id in ids]
        return "".join(pieces) + detokenizer.finish()

    def token_bytes(self, token_id: int, *, skip_special: bool = False) -> bytes:
        """The exact bytes of a token. Empty for control tokens when `skip_special`, and for ids
        above the vocabulary, which a model with padded logits may produce."""
        if token_id < 0:
            raise InvalidRequest("token_ids", f"{shown(token_id)} is negative")
        if token_id >= len(self._bytes) or (skip_special and token_id in self.special_ids):
            return b""
        return self._bytes[token_id]

    def _encode_marked(self, text: str, guard: str = "") -> list[int]:
        ids: list[int] = []
        position = 0
        for begin, end, marker in self._markers.matches(text, guard):
            ids += self._encode_plain(text[position:begin], guard, at_start=position == 0)
            ids.append(marker.token_id)
            position = end
        ids += self._encode_plain(text[position:], guard, at_start=position == 0)
        return ids

    def _encode_plain(self, text: str, guard: str = "", *, at_start: bool) -> list[int]:
        if guard:
            text = text.replace(guard, "")
        if not text:
            return []
        _check_unicode(text)
        if self._wants_space(text, at_start):
            text = " " + text
        return self._merged(text)

    def _merged(self, text: str) -> list[int]:
        with native_faults(self._vocabulary.source, "the tokenizer failed on a text"):
            ids: list[int] = self._codec.encode(text, add_special_tokens=False).ids
        return ids

    def _wants_space(self, text: str, at_start: bool) -> bool:
        if self._vocabulary.space_prefix == "first":
            return at_start and text[0] not in (" ", WORD_MARK)
        return self._vocabulary.space_prefix == "each"

    def _with_bos(self, ids: list[int], add_bos: bool | None, *, may_have_bos: bool) -> list[int]:
        wanted = self.add_bos if add_bos is None else add_bos
        if not wanted or self.bos_id is None or (may_have_bos and ids[:1] == [self.bos_id]):
            return ids
        return [self.bos_id, *ids]


@contextmanager
def native_faults(source: str, what: str) -> Iterator[None]:
    """The `tokenizers` library reports faults as a bare Exception, and its panics as a class of
    its own that only BaseException catches; both become CheckpointError. A panic also prints
    itself to the process's stderr, which the library does not let us silence."""
    try:
        yield
    except Exception as error:
        raise CheckpointError(source, f"{what}: {_first_line(error)}") from error
    except BaseException as error:
        if type(error).__module__ != "pyo3_runtime":
            raise
        raise CheckpointError(source, f"{what}: {_first_line(error)}") from None


def _build_codec(vocabulary: Vocabulary) -> Any:
    """The merges as the library's own object: a skeleton, then the model, then added tokens.

    Only text tokens are told to the library; each has its id in `pieces`, so it keeps it.
    """
    from tokenizers import AddedToken, Tokenizer, models

    skeleton: dict[str, Any] = {
        "version": "1.0",
        "truncation": None,
        "padding": None,
        "added_tokens": [],
        "normalizer": vocabulary.normalizer,
        "pre_tokenizer": vocabulary.pre_tokenizer,
        "post_processor": None,
        "decoder": None,
        "model": {"type": "BPE", "vocab": {}, "merges": []},
    }
    with native_faults(vocabulary.source, "the tokenizer cannot be built"):
        codec = Tokenizer.from_str(json.dumps(skeleton))
        codec.model = models.BPE(
            vocab=vocabulary.pieces,
            merges=vocabulary.merges,
            unk_token=vocabulary.unknown_piece,
            fuse_unk=vocabulary.fuse_unknown,
            byte_fallback=vocabulary.byte_fallback,
            ignore_merges=vocabulary.ignore_merges,
        )
        text_tokens = [token for token in vocabulary.added if token.is_text]
        codec.add_tokens(
            [
                AddedToken(
                    token.text,
                    lstrip=token.strip_left,
                    rstrip=token.strip_right,
                    single_word=token.single_word,
                    normalized=token.normalized,
                )
                for token in text_tokens
            ]
        )
        _check_added(vocabulary.source, codec, [(t.token_id, t.text) for t in text_tokens])
    return codec


def _least_ids(vocabulary: Vocabulary, table: list[bytes]) -> Callable[[bytes], int]:
    """The bound of `Tokenizer.min_tokens`, for a text's bytes."""
    kept = bytes_kept(vocabulary.normalizer, vocabulary.pre_tokenizer)
    unspelled = unspelled_bytes(vocabulary)
    if unspelled is None or not kept or (kept < 1.0 and not _NOT_IN_UTF_8.issuperset(unspelled)):
        return lambda _: 0
    longest = longest_token_bytes(vocabulary, table) / kept
    return lambda data: ceil(len(data.translate(None, unspelled)) / longest)


def _check_added(source: str, codec: Any, tokens: Sequence[tuple[int, str]]) -> None:
    for token_id, text in tokens:
        if codec.token_to_id(text) != token_id:
            raise CheckpointError(
                source, f"added token {shown(text)} does not get its id {token_id}"
            )


def _check_unicode(text: str, field: str = "prompt") -> None:
    try:
        text.encode("utf-8")
    except UnicodeEncodeError as error:
        raise InvalidRequest(
            field, f"character {error.start} is half of a surrogate pair, not valid Unicode"
        ) from None


def _first_line(error: BaseException) -> str:
    lines = str(error).splitlines()
    return lines[0][:200] if lines else type(error).__name__
