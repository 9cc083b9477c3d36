"""Merges out of scores: how a SentencePiece vocabulary that has none joins its pieces.

Owns: every way to cut a piece into two, and their order.
May not know: files, how what it made is kept (a `MergeMemory` does).
Read next: `gguf_vocab.py`, its user.

Where a vocabulary has 262,144 pieces there are half a million cuts, and to find them takes a
second: the longest part of loading such a model, and always the same.
"""

from __future__ import annotations

import math
from array import array
from collections.abc import Callable, Iterable, Mapping, Sequence
from typing import Protocol

from firsthand.errors import CheckpointError
from firsthand.text.vocabulary import MAX_MERGES, TokenKind

SCORES = "tokenizer.ggml.scores"
LEAST_REMEMBERED = 100_000  # tokens; merges of fewer take a few tenths of a second
MAX_SCORED_CHARS = 256  # of a piece without merges, which is cut at every character


class MergeMemory(Protocol):
    """Gives what `make` made of the same `inputs` before, or what it makes now."""

    def __call__(self, inputs: Iterable[bytes], make: Callable[[], bytes]) -> bytes: ...


def no_memory(inputs: Iterable[bytes], make: Callable[[], bytes]) -> bytes:
    return make()


def merges_from_scores(
    scores: Sequence[float],
    tokens: Sequence[str],
    kinds: Sequence[TokenKind],
    file: str,
    memory: MergeMemory,
) -> list[tuple[str, str]]:
    """Every way to join two pieces into a third, the highest score first. They are the texts of
    `tokens` themselves: half a million cuts of a large vocabulary would be 50 MB of copies."""
    if len(scores) != len(tokens):
        raise CheckpointError(file, f"{SCORES} has {len(scores)} entries for {len(tokens)} tokens")
    try:
        if not all(map(math.isfinite, scores)):
            raise CheckpointError(file, f"{SCORES} has an entry that is not finite")
    except (TypeError, OverflowError):
        raise CheckpointError(file, f"{SCORES} has an entry that is not a number") from None
    normal = {text: id_ for id_, text in enumerate(tokens) if kinds[id_] is TokenKind.NORMAL}
    longest = max(map(len, normal), default=0)
    if longest > MAX_SCORED_CHARS:
        raise CheckpointError(
            file, f"a piece has {longest} characters; the limit is {MAX_SCORED_CHARS}"
        )

    def make() -> bytes:
        pairs = array("I")
        # A sort keeps the order of equals: of equal scores, the lower id is merged first.
        for text in sorted(normal, key=lambda text: scores[normal[text]], reverse=True):
            for pair in _cuts(text, normal):
                pairs.extend(pair)
            if len(pairs) > 2 * MAX_MERGES:
                raise CheckpointError(file, f"its pieces can be joined in over {MAX_MERGES} ways")
        return pairs.tobytes()

    if len(tokens) < LEAST_REMEMBERED:
        memory = no_memory
    words = "".join(tokens).encode("utf-8", "surrogatepass")
    numbers = (array("I", map(len, tokens)), array("I", kinds), array("d", scores))
    pairs = array("I")
    pairs.frombytes(memory((words, *(each.tobytes() for each in numbers)), make))
    each = map(tokens.__getitem__, pairs)
    return list(zip(each, each, strict=True))


def _cuts(text: str, normal: Mapping[str, int]) -> list[tuple[int, int]]:
    """The pairs of pieces that `text` can be cut into, the lowest ids first."""
    pairs = []
    for cut in range(1, len(text)):
        left = normal.get(text[:cut])
        if left is not None:
            right = normal.get(text[cut:])
            if right is not None:
                pairs.append((left, right))
    pairs.sort()
    return pairs
