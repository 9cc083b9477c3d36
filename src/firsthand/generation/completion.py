"""What comes back from a generation, frozen.

Owns: `Completion` (all of it), `Chunk` (a piece of a stream), `TokenLogprob`.
May not know: how any of it came to be.
Read next: `report.py` (the measured part), `stream.py` (who fills them).
"""

from __future__ import annotations

from dataclasses import replace
from typing import Any

from firsthand.generation.report import Report
from firsthand.request import Finish, Usage
from firsthand.values import dataclass


@dataclass(frozen=True, slots=True)
class TokenLogprob:
    """One token, generated or of the prompt, under the model's own distribution (before penalties
    and temperature).

    `text` is what the token's bytes decode to on their own; half a character gives U+FFFD, and
    `raw` has the bytes themselves. `top` are (token id, text, logprob), likeliest first.
    """

    token_id: int
    text: str
    raw: bytes
    logprob: float
    top: tuple[tuple[int, str, float], ...] = ()


@dataclass(frozen=True, slots=True)
class Completion:
    """One finished generation.

    `text` has neither the end token nor the stop string; `token_ids` has the end token, or ends
    with the token that completed the stop string, and is as long as `usage.completion_tokens`.
    `finish_reason` is one of `request.FinishReason`; `finish.cause` has its detail. `logprobs`
    has one entry per token id, or is None if they were not asked for. `seed` repeats the answer,
    also on its own: that of `index` of a request with n > 1 is the request's plus the index. Each
    has a report, of its own tokens; memory and the sums over steps in it are the request's.

    `prompt_logprobs`, if they were asked for, are in the completion of index 0: one entry per token
    of the prompt, and None for the first, which follows nothing. `pooled` is what `embedding.py`
    makes a vector of; empty but where one was asked for.
    """

    text: str
    token_ids: tuple[int, ...]
    finish: Finish
    usage: Usage
    seed: int
    report: Report
    logprobs: tuple[TokenLogprob, ...] | None = None
    index: int = 0
    prompt_logprobs: tuple[TokenLogprob | None, ...] | None = None
    pooled: bytes = b""

    @property
    def finish_reason(self) -> str:
        return self.finish.reason.value

    def to_dict(self) -> dict[str, Any]:
        """Plain values for JSON."""
        return {
            "index": self.index,
            "text": self.text,
            "token_ids": list(self.token_ids),
            "finish_reason": self.finish_reason,
            "finish_cause": self.finish.cause,
            "usage": {
                "prompt_tokens": self.usage.prompt_tokens,
                "completion_tokens": self.usage.completion_tokens,
                "total_tokens": self.usage.total_tokens,
            },
            "seed": self.seed,
            "logprobs": None if self.logprobs is None else [_logprob(x) for x in self.logprobs],
            **self._prompt_logprobs(),
            **self.report.to_dict(),
        }

    def _prompt_logprobs(self) -> dict[str, Any]:
        entries = self.prompt_logprobs
        if entries is None:
            return {}
        return {"prompt_logprobs": [None if x is None else _logprob(x) for x in entries]}


@dataclass(frozen=True, slots=True)
class Chunk:
    """A piece of a stream: the text that became certain, and the tokens since the last chunk.

    The texts of all chunks joined are `completion.text`, the token ids joined are its
    `token_ids`. Text may come later than its token (half a character, a possible stop string),
    so either may be empty. Exactly the last chunk has a `completion`. With n > 1 that holds for
    the chunks of each `index`. `prompt_logprobs` joined are the completion's, and come no later
    than the first token.
    """

    text: str
    token_ids: tuple[int, ...]
    logprobs: tuple[TokenLogprob, ...] | None = None
    completion: Completion | None = None
    index: int = 0
    prompt_logprobs: tuple[TokenLogprob | None, ...] | None = None

    @property
    def finish_reason(self) -> str | None:
        return None if self.completion is None else self.completion.finish_reason


def without_logprobs(chunk: Chunk) -> Chunk:
    """As it would be had nobody asked for those of its tokens."""
    ended = chunk.completion
    bare = None if ended is None else replace(ended, logprobs=None)
    return replace(chunk, logprobs=None, completion=bare)


def _logprob(entry: TokenLogprob) -> dict[str, Any]:
    return {
        "token_id": entry.token_id,
        "text": entry.text,
        "bytes": list(entry.raw),
        "logprob": entry.logprob,
        "top": [
            {"token_id": token_id, "text": text, "logprob": logprob}
            for token_id, text, logprob in entry.top
        ],
    }
