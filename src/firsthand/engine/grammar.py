"""Grammars, compiled: what may come next in a text that has to be of a language.

Owns: the compiled grammars of one vocabulary, and which of them are kept.
May not know: sequences, logits, who asks.
Read next: `constraints.py` (a state per sequence), `grammar_worker.py` (how a text is read, and the
limits); above, `text/grammars.py` (where grammars come from).

What comes here was compiled before, in a process that may be killed (`grammar_process.py`); the
same limits hold again. What is compiled is kept for the next request, and the least recently used
leaves. The library is loaded with the first grammar, and the vocabulary is handed to it then.
"""

from __future__ import annotations

import threading
from collections import OrderedDict
from collections.abc import Callable, Sequence
from concurrent.futures import Future, ThreadPoolExecutor
from typing import Any, Protocol

from firsthand.engine.grammar_worker import compiled
from firsthand.errors import InvalidRequest
from firsthand.request import Grammar

MAX_KEPT = 32
MAX_KEPT_CHARS = 2 << 20  # of their texts, together


class Vocabulary(Protocol):
    """What a grammar asks of a tokenizer; `text.tokenizer.Tokenizer` is one."""

    @property
    def vocab_size(self) -> int: ...
    @property
    def end_ids(self) -> frozenset[int]: ...
    @property
    def special_ids(self) -> frozenset[int]: ...
    def token_bytes(self, token_id: int, *, skip_special: bool = False) -> bytes: ...
    def encode(
        self, text: str, *, special: bool = False, add_bos: bool | None = None
    ) -> list[int]: ...


class Matcher(Protocol):
    """A place in a text of the language; the library's object. It never raises for a text that is
    none: then `is_error` is true, for ever."""

    def deep_copy(self) -> Matcher: ...
    def consume_token(self, sampled_token: int) -> bool: ...
    def unsafe_compute_mask_ptr(self, trg_pointer: int, trg_byte_size: int) -> None: ...
    def is_error(self) -> bool: ...
    def get_error(self) -> str: ...


class Grammars:
    """The compiled grammars of one vocabulary, for a model of `num_logits`. Safe for any thread."""

    def __init__(self, vocabulary: Callable[[], Vocabulary], num_logits: int) -> None:
        """`vocabulary` is asked with the first grammar."""
        self._vocabulary = vocabulary
        self._num_logits = num_logits
        self._lock = threading.Lock()
        self._kept: OrderedDict[Grammar, Matcher] = OrderedDict()
        self._num_chars = 0
        self._tokens: Any = None  # the library's form of the vocabulary
        self._building = threading.Lock()
        self._thread: ThreadPoolExecutor | None = None

    @property
    def num_words(self) -> int:
        """Of a mask."""
        return -(-self._num_logits // 32)

    def find(self, grammar: Grammar) -> Matcher | None:
        """At the beginning of a text, to be copied; None: it is not compiled."""
        with self._lock:
            found = self._kept.get(grammar)
            if found is not None:
                self._kept.move_to_end(grammar)
            return found

    def compile(self, grammar: Grammar) -> Matcher:
        """As `find`, after compiling it here if need be. Raises InvalidRequest, naming its field,
        for a text that is no grammar, or asks for more than the limits allow."""
        found = self.find(grammar)
        if found is None:
            found = self._compile(grammar)
            self._keep(grammar, found)
        return found

    def compile_later(self, grammar: Grammar) -> Future[Matcher]:
        """`compile`, on a thread of its own."""
        with self._lock:
            if self._thread is None:
                self._thread = ThreadPoolExecutor(1, "firsthand-grammars")
            return self._thread.submit(self.compile, grammar)

    def _keep(self, grammar: Grammar, matcher: Matcher) -> None:
        with self._lock:
            if grammar not in self._kept:
                self._num_chars += len(grammar.text)
            self._kept[grammar] = matcher
            while len(self._kept) > MAX_KEPT or (
                self._num_chars > MAX_KEPT_CHARS and len(self._kept) > 1
            ):
                oldest, _ = self._kept.popitem(last=False)
                self._num_chars -= len(oldest.text)

    def _compile(self, grammar: Grammar) -> Matcher:
        try:
            matcher: Matcher = compiled(self._library_tokens(grammar.field), grammar)
        except ValueError as error:
            raise InvalidRequest(grammar.field, f"cannot be used: {error}") from None
        return matcher

    def _library_tokens(self, field: str) -> Any:
        from llguidance import LLTokenizer

        with self._building:
            if self._tokens is None:
                vocabulary = self._vocabulary()
                if not vocabulary.end_ids:
                    raise InvalidRequest(field, "this model has no token that ends a text")
                spelled = _Spelled(vocabulary, self._num_logits)
                ends = sorted(vocabulary.end_ids)
                self._tokens = LLTokenizer(spelled, eos_token=ends)  # type: ignore[arg-type]
            return self._tokens


class _Spelled:
    """A vocabulary as the library asks for it: bytes by id, and how text is usually spelled.

    The spelling is for text that a grammar leaves no choice about, so that a model sees the tokens
    that it knows. It must be the text's exact bytes, of no control token; where the vocabulary's
    own way is not, the longest tokens are taken. Ids above the vocabulary spell nothing.
    """

    is_tokenizer_wrapper = True

    def __init__(self, vocabulary: Vocabulary, num_logits: int) -> None:
        self._vocabulary = vocabulary
        ids = range(num_logits)
        self.tokens: Sequence[bytes] = [vocabulary.token_bytes(token_id) for token_id in ids]
        self.special_token_ids = sorted(vocabulary.special_ids)
        self.eos_token_id = min(vocabulary.end_ids)
        self.bos_token_id = None
        self._ids = {
            text: token_id
            for token_id, text in enumerate(self.tokens)
            if text and token_id not in vocabulary.special_ids
        }
        self._longest = max(map(len, self._ids), default=0)

    def __call__(self, text: str) -> list[int]:
        data = text.encode()
        for special in (True, False):
            ids = self._vocabulary.encode(text, special=special, add_bos=False)
            spelled = b"".join([self.tokens[token_id] for token_id in ids])
            if spelled == data and self._vocabulary.special_ids.isdisjoint(ids):
                return ids
        return self._longest_tokens(data)

    def _longest_tokens(self, data: bytes) -> list[int]:
        ids: list[int] = []
        start = 0
        while start < len(data):
            for end in range(min(len(data), start + self._longest), start, -1):
                token_id = self._ids.get(data[start:end])
                if token_id is not None:
                    ids.append(token_id)
                    start = end
                    break
            else:
                return ids  # the vocabulary has not this byte
        return ids
