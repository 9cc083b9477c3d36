"""What a request asks of its own prompt, and how far that is: scores of its tokens, or a sum.

Owns: which rows of a slice have still to be read, and what the next step has to be told.
May not know: who runs, blocks, arrays; a sum is bytes here.
Read next: `sequence.py`, which has one; `scheduler.py`, which hands over what was read.

Rows are read in order, once: after an eviction they may be computed again, but not read again. A
row that is to be read has to be computed, so of the cache such a sequence takes no more than what
has been read. The last row alone is wanted of most: there all others may be found.
"""

from __future__ import annotations

from dataclasses import field

from firsthand.request import Pooling, PromptPart, Request
from firsthand.scheduling.plan import Pool, Score, WasRead
from firsthand.values import dataclass


@dataclass(slots=True, eq=False)
class PromptReading:
    """`num_read` of the first `num_to_read` rows need not be looked at again."""

    request: Request
    num_to_read: int = field(init=False)
    num_read: int = field(init=False, default=0)
    _carry: bytes = field(init=False, default=b"")

    def __post_init__(self) -> None:
        num_tokens = len(self.request.prompt_token_ids)
        scores = self.request.pooling is None
        self.num_to_read = num_tokens - scores  # the last row tells of what comes after the prompt
        if self.request.pooling is Pooling.LAST:
            self.num_read = num_tokens - 1

    @property
    def is_done(self) -> bool:
        return self.num_read >= self.num_to_read

    def ask(self, start: int, stop: int) -> Score | Pool | None:
        """What is wanted of rows start … stop − 1 of the sequence."""
        begin, end = max(start, self.num_read), min(stop, self.num_to_read)
        if begin >= end:
            return None
        if self.request.pooling is not None:
            return Pool(begin - start, self._carry)
        assert self.request.prompt_logprobs is not None, "else there is nothing to read"
        targets = self.request.prompt_token_ids[begin + 1 : end + 1]
        return Score(begin - start, targets, self.request.prompt_logprobs)

    def take(self, stop: int, read: WasRead) -> PromptPart | None:
        """The rows before `stop` were read; what is to be told of that, if anything."""
        self.num_read = min(stop, self.num_to_read)
        self._carry = read.carry
        if self.request.pooling is None:
            return PromptPart(scores=read.scores)
        return PromptPart(pooled=read.carry) if self.is_done else None


def reading_of(request: Request, index: int) -> PromptReading | None:
    """For the sequence `index` of a request: the first one reads the prompt."""
    asks = request.pooling is not None or request.prompt_logprobs is not None
    if not asks or index:
        return None
    reading = PromptReading(request)
    return None if reading.is_done else reading  # of a single token nothing can be told
