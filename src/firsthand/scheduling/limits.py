"""What can be scheduled at all: limits, and the check of a request against them.

Owns: the refusals. A request that passes can be run to its end; nothing about it is left to be
found wrong inside a step.
May not know: who is running; text; arrays.
Read next: `scheduler.py`.
"""

from __future__ import annotations

from collections.abc import Collection
from typing import Any

from firsthand.checks import check_integer, is_integer, shown
from firsthand.errors import ContextLengthExceeded, InvalidRequest
from firsthand.request import Request
from firsthand.values import dataclass

MAX_STEP_TOKENS = 16384  # more would only cost scratch memory
MAX_SEQUENCES = 4096


@dataclass(frozen=True, slots=True)
class Limits:
    """`context_length` bounds prompt and new tokens of one sequence together.

    A step may compute at least one token of each running sequence, so `max_sequences` cannot
    exceed `max_step_tokens`: that is what keeps a long prompt from stopping running streams.
    Up to `max_guesses` tokens of a sequence may be guessed in a step, `max_step_guesses` in all.
    """

    vocab_size: int
    context_length: int
    max_sequences: int
    max_step_tokens: int
    adapters: tuple[str, ...] = ()  # names
    max_guesses: int = 0
    max_step_guesses: int = 0

    def __post_init__(self) -> None:
        check_integer("vocab_size", self.vocab_size, 1)
        check_integer("context_length", self.context_length, 1)
        check_integer("max_sequences", self.max_sequences, 1, MAX_SEQUENCES)
        check_integer("max_step_tokens", self.max_step_tokens, 1, MAX_STEP_TOKENS)
        if self.max_sequences > self.max_step_tokens:
            raise InvalidRequest(
                "max_sequences",
                f"{self.max_sequences} sequences do not fit {self.max_step_tokens} tokens per step",
            )


def max_stored_tokens(request: Request, limits: Limits) -> int:
    """Tokens that a request can have in the store at most: all but the last one drawn."""
    whole = len(request.prompt_token_ids) + request.stop.max_tokens
    return min(whole, limits.context_length) - request.generates


def check_fits(request: Request, limits: Limits, num_blocks: int, block_size: int) -> None:
    """Raise InvalidRequest if one sequence of the request could need more than the whole memory.

    It can never run, whatever else ends, so it is no matter of capacity: the caller has to ask for
    less. One is enough: the sequences of a request need not run at the same time.
    """
    stored = max_stored_tokens(request, limits)
    needed = -(-stored // block_size)
    if needed > num_blocks:
        field = (
            "prompt" if len(request.prompt_token_ids) > num_blocks * block_size else "max_tokens"
        )
        raise InvalidRequest(
            field,
            f"the request may need {needed} cache blocks ({stored} tokens), there are {num_blocks} "
            f"({num_blocks * block_size} tokens)",
        )


def check_request(request: Request, limits: Limits) -> None:
    """Raise InvalidRequest on what cannot be run.

    A prompt must leave room for one new token, if there is to be one. `max_tokens` beyond the
    context is no error: the sequence then ends with reason CONTEXT.
    """
    num_prompt_tokens = len(request.prompt_token_ids)
    if num_prompt_tokens + request.generates > limits.context_length:
        room = "leave no room for a new one" if request.generates else "do not fit"
        raise ContextLengthExceeded(
            "prompt", f"{num_prompt_tokens} tokens {room} in a context of {limits.context_length}"
        )
    if request.adapter and request.adapter not in limits.adapters:
        known = ", ".join(limits.adapters) or "none"
        raise InvalidRequest("adapter", f"{shown(request.adapter)} is not here; there are: {known}")
    check_token_ids("prompt", request.prompt_token_ids, limits.vocab_size, placed=True)
    for begun in filter(None, request.begun):
        check_token_ids("begun", begun, limits.vocab_size, placed=True)
        if num_prompt_tokens + len(begun) >= limits.context_length:
            raise ContextLengthExceeded("begun", f"fills a context of {limits.context_length}")
    check_token_ids("stop_token_ids", request.stop.stop_token_ids, limits.vocab_size)
    biased = [token_id for token_id, _ in request.sampling.logit_bias]
    check_token_ids("logit_bias", biased, limits.vocab_size)


def check_token_ids(
    field: str, token_ids: Collection[Any], vocab_size: int, *, placed: bool = False
) -> None:
    """Raises InvalidRequest for the first that is none; `placed`: it names its place."""
    # A prompt may have a hundred thousand, and an event loop waits: no loop of ours where all is
    # well.
    if set(map(type, token_ids)) == {int} and min(token_ids) >= 0 and max(token_ids) < vocab_size:
        return
    for at, token_id in enumerate(token_ids):
        where = f"{field}[{at}]" if placed else field
        if not is_integer(token_id):
            raise InvalidRequest(where, f"token ids are integers, not {shown(token_id)}")
        if not 0 <= token_id < vocab_size:
            raise InvalidRequest(where, f"token id {shown(token_id)} is outside 0…{vocab_size - 1}")
