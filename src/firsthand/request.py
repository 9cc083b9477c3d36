"""The nouns that cross thread and layer borders, all frozen.

Owns: what a request asks for, and what comes back for each token.
May not know: text (that is `generation`), progress (that is `scheduling`), arrays, time sources.
Read next: `scheduling/plan.py`, the values of one step.
"""

from __future__ import annotations

from dataclasses import field
from enum import StrEnum
from typing import NamedTuple

from firsthand.checks import check_integer, check_number
from firsthand.errors import InvalidRequest
from firsthand.values import dataclass

MAX_LOGPROBS = 20
MIN_REPETITION_PENALTY = 0.01  # below it a penalty would overflow what it divides
MAX_TOP_K = 1_000_000
MAX_SEED = 2**64 - 1
MAX_BIASED_TOKENS = 1024
MAX_STOP_IDS = 64
MAX_CHOICES = 128
MAX_GRAMMAR_CHARS = 256 * 1024
MAX_PROMPT_SCORES = 2**18  # entries that one request may ask for of its prompt's tokens


class FinishReason(StrEnum):
    """Why a sequence ended. One exact reason each; `cause` of `Finish` adds the detail."""

    END_TOKEN = "end_token"  # the model produced one of its end tokens
    STOP_ID = "stop_id"  # a token id that the request listed
    STOP_STRING = "stop_string"  # a text that the request listed (found by `generation`)
    LENGTH = "length"  # max_tokens reached
    CONTEXT = "context"  # the model's context is full
    REPETITION = "repetition"  # the repetition guard saw the same run too often
    CANCELLED = "cancelled"  # the user interrupted
    DEADLINE = "deadline"  # the request's own time limit passed
    ERROR = "error"  # a fault; `cause` says which


@dataclass(frozen=True, slots=True)
class Finish:
    """The end of a sequence: the reason, and its detail (a token id, the stop string, an error)."""

    reason: FinishReason
    cause: int | str | None = None


@dataclass(frozen=True, slots=True)
class RepetitionGuard:
    """End a sequence when its last `times` runs of up to `max_run` tokens are equal."""

    max_run: int = 32
    times: int = 8

    def __post_init__(self) -> None:
        check_integer("repetition.max_run", self.max_run, 1, 1024)
        check_integer("repetition.times", self.times, 2, 1024)


@dataclass(frozen=True, slots=True)
class SamplingParams:
    """How logits become a token. The order of the steps is stated in `engine/sampler.py`.

    `temperature` 0 is greedy. `top_k` 0, `top_p` 1 and `min_p` 0 are off. Penalties are off at
    1 (repetition) and 0 (presence, frequency). `logprobs` None is off, else how many
    alternatives to report beside the chosen token.
    Raises InvalidRequest, naming the field, on any value outside its range.
    """

    temperature: float = 1.0
    top_k: int = 0
    top_p: float = 1.0
    min_p: float = 0.0
    repetition_penalty: float = 1.0
    presence_penalty: float = 0.0
    frequency_penalty: float = 0.0
    logit_bias: tuple[tuple[int, float], ...] = ()
    logprobs: int | None = None

    def __post_init__(self) -> None:
        check_number("temperature", self.temperature, 0.0, 100.0)
        check_integer("top_k", self.top_k, 0, MAX_TOP_K)
        check_number("top_p", self.top_p, 0.0, 1.0, low_open=True)
        check_number("min_p", self.min_p, 0.0, 1.0)
        check_number("repetition_penalty", self.repetition_penalty, MIN_REPETITION_PENALTY, 100.0)
        check_number("presence_penalty", self.presence_penalty, -2.0, 2.0)
        check_number("frequency_penalty", self.frequency_penalty, -2.0, 2.0)
        if len(self.logit_bias) > MAX_BIASED_TOKENS:
            raise InvalidRequest("logit_bias", f"at most {MAX_BIASED_TOKENS} tokens")
        seen = set()
        for token_id, bias in self.logit_bias:
            check_integer("logit_bias", token_id, 0, 2**31 - 1)
            check_number("logit_bias", bias, -100.0, 100.0)
            if token_id in seen:
                raise InvalidRequest("logit_bias", f"token {token_id} is given twice")
            seen.add(token_id)
        if self.logprobs is not None:
            check_integer("logprobs", self.logprobs, 0, MAX_LOGPROBS)

    @property
    def needs_history(self) -> bool:
        """Whether a penalty looks at the tokens so far."""
        return (
            self.repetition_penalty != 1.0
            or self.presence_penalty != 0.0
            or self.frequency_penalty != 0.0
        )


class GrammarKind(StrEnum):
    """How the text of a `Grammar` is to be read."""

    JSON_SCHEMA = "json_schema"
    REGEX = "regex"
    LARK = "lark"  # context-free rules over regular terminals, in Lark's syntax
    GBNF = "gbnf"  # the same in the older form of llama.cpp, `root ::= …`


@dataclass(frozen=True, slots=True)
class Grammar:
    """Which texts a request may get: all of the new text is one of this language, unless it is cut
    by a limit. Where nothing can follow, the sequence ends; before a text is whole, it cannot.

    `lead` are Lark rules, one of them called `lead`, for what comes before that text (reasoning);
    empty: nothing does. `field` is what an error calls it: the caller's name for its source.
    """

    kind: GrammarKind
    text: str
    lead: str = ""
    field: str = field(default="grammar", compare=False)

    def __post_init__(self) -> None:
        if not self.text:
            raise InvalidRequest(self.field, "must not be empty")
        if len(self.text) + len(self.lead) > MAX_GRAMMAR_CHARS:
            raise InvalidRequest(self.field, f"has over {MAX_GRAMMAR_CHARS} characters")


@dataclass(frozen=True, slots=True)
class StopRules:
    """When a sequence ends. Stop strings are not here: they are text, and `generation` owns text.

    `max_tokens` 0 generates nothing: the prompt alone is computed. `end_token_ids` are the model's
    own (ignored when `ignore_end` is set), `stop_token_ids` the caller's. Neither ends a sequence
    before `min_tokens` new tokens.
    """

    max_tokens: int
    min_tokens: int = 0
    end_token_ids: frozenset[int] = frozenset()
    stop_token_ids: frozenset[int] = frozenset()
    ignore_end: bool = False
    repetition: RepetitionGuard | None = None

    def __post_init__(self) -> None:
        check_integer("max_tokens", self.max_tokens, 0, 2**31 - 1)
        check_integer("min_tokens", self.min_tokens, 0, self.max_tokens)
        if len(self.stop_token_ids) > MAX_STOP_IDS:
            raise InvalidRequest("stop_token_ids", f"at most {MAX_STOP_IDS} ids")
        for token_id in self.stop_token_ids:
            check_integer("stop_token_ids", token_id, 0, 2**31 - 1)


class Priority(StrEnum):
    """The class of a request; each has a guaranteed share of the work (`scheduling/policy.py`)."""

    URGENT = "urgent"
    NORMAL = "normal"
    BACKGROUND = "background"


class Pooling(StrEnum):
    """How the hidden states of a prompt's tokens become one vector."""

    LAST = "last"  # that of the last token, which has seen all the others
    MEAN = "mean"  # of all of them, added in order


@dataclass(frozen=True, slots=True)
class Request:
    """A prompt to continue, `n` times. `seed` has always a value here: `generation` draws one if
    the caller gave none, so that every request can be repeated. Sequence `index` of 0 … n − 1 is
    the one that a request of n = 1 with seed (seed + index) mod 2⁶⁴ gives.

    `tenant` is whose request it is, for fairness between tenants. Blocks of the cache are shared
    only between requests of one tenant, one `cache_salt` and one `adapter`: the name of what is
    added to the model's weights, "" for nothing. `deadline_s`, on the engine's clock,
    ends it with DEADLINE; None is no limit. A `grammar` has the last word on where a text may end,
    so nothing that would move its end goes with it.

    Of the prompt itself can be asked, in its first sequence: with `prompt_logprobs`, the
    log-probability of each token but the first, and so many alternatives; with `pooling`, one
    vector, and then nothing is generated.

    What another engine has begun goes on from `begun`, the new tokens of each of its n sequences
    so far; None of one that has ended. The rest is what the other engine would have given: all
    counts are of the whole. Of a sequence that has new tokens, the prompt has been read.
    """

    request_id: str
    prompt_token_ids: tuple[int, ...]
    sampling: SamplingParams
    stop: StopRules
    seed: int
    n: int = 1
    priority: Priority = Priority.NORMAL
    tenant: str = ""
    cache_salt: str = ""
    deadline_s: float | None = None
    grammar: Grammar | None = None
    prompt_logprobs: int | None = None
    pooling: Pooling | None = None
    adapter: str = ""
    begun: tuple[tuple[int, ...] | None, ...] = ()

    def __post_init__(self) -> None:
        if not self.prompt_token_ids:
            raise InvalidRequest("prompt", "must hold at least one token")
        check_integer("seed", self.seed, 0, MAX_SEED)
        check_integer("n", self.n, 1, MAX_CHOICES)
        if self.grammar is not None:
            _check_ends_freely(self.stop, self.grammar.field)
        if self.prompt_logprobs is not None:
            _check_scores(self.prompt_logprobs, len(self.prompt_token_ids))
        if self.pooling is not None or not self.stop.max_tokens:
            _check_generates_nothing(self)
        if self.begun:
            _check_begun(self)

    def is_late(self, now_s: float) -> bool:
        """Whether what comes at that time comes too late. Not even the last token is excepted."""
        return self.deadline_s is not None and self.deadline_s <= now_s

    @property
    def generates(self) -> bool:
        return self.stop.max_tokens > 0

    @property
    def beginnings(self) -> dict[int, tuple[int, ...]]:
        """The new tokens so far of each of its sequences that has not ended."""
        begun = self.begun or ((),) * self.n
        return {index: tokens for index, tokens in enumerate(begun) if tokens is not None}


def _check_scores(num_alternatives: int, num_tokens: int) -> None:
    check_integer("prompt_logprobs", num_alternatives, 0, MAX_LOGPROBS)
    if num_tokens * (1 + num_alternatives) > MAX_PROMPT_SCORES:
        raise InvalidRequest(
            "prompt_logprobs",
            f"{num_tokens} tokens with {num_alternatives} alternatives each are over "
            f"{MAX_PROMPT_SCORES} entries",
        )


def _check_generates_nothing(request: Request) -> None:
    if request.generates:
        raise InvalidRequest("max_tokens", "must be 0 with pooling, which generates nothing")
    if request.n > 1:
        raise InvalidRequest("n", "must be 1 where nothing is generated")
    if request.grammar is not None:
        raise InvalidRequest(request.grammar.field, "is for text, and nothing is generated")
    if (request.pooling is None) == (request.prompt_logprobs is None):
        raise InvalidRequest(
            "max_tokens", "0 is for scores of the prompt or for pooling, one of them"
        )


def _check_begun(request: Request) -> None:
    if len(request.begun) != request.n:
        raise InvalidRequest("begun", f"tells of {len(request.begun)} of {request.n} sequences")
    beginnings = request.beginnings
    if not beginnings:
        raise InvalidRequest("begun", "all sequences have ended")
    most = max(map(len, beginnings.values()))
    if most and most >= request.stop.max_tokens:
        raise InvalidRequest("begun", f"{most} tokens, of at most {request.stop.max_tokens}")


def _check_ends_freely(stop: StopRules, field: str) -> None:
    if stop.ignore_end:
        raise InvalidRequest("ignore_end", f"not together with {field}, which says where to end")
    if stop.min_tokens:
        raise InvalidRequest("min_tokens", f"not together with {field}, which says where to end")


class TokenScore(NamedTuple):
    """The log-probability of a token that was given, and the likeliest ones in its place."""

    logprob: float
    top: tuple[tuple[int, float], ...] = ()


@dataclass(frozen=True, slots=True)
class PromptPart:
    """What a step found of a prompt that was asked about: the scores of its next tokens, the
    first of which is the prompt's second; or at the end the sum of the hidden states that are
    pooled, as little-endian float64."""

    scores: tuple[TokenScore, ...] = ()
    pooled: bytes = b""


class TokenEvent(NamedTuple):
    """One new token of a sequence, or its end, or both, or a part of what was asked of its prompt;
    `index` is which of the request's n. A named tuple, for hundreds are made in a step.

    `token_id` is None when the sequence ends without a new token (cancelled, error, nothing to
    generate), or has not begun to generate. `logprob` and `top_logprobs` are of the model's own
    distribution: before penalties, bias and temperature. `at_s` is the engine's clock when the
    token was committed.
    """

    request_id: str
    token_id: int | None
    at_s: float
    logprob: float | None = None
    top_logprobs: tuple[tuple[int, float], ...] = ()
    finish: Finish | None = None
    index: int = 0  # type: ignore[assignment]  # in place of tuple.index, which nobody asks
    prompt: PromptPart | None = None


@dataclass(frozen=True, slots=True)
class Usage:
    """Tokens of one request; a final end token counts as a completion token."""

    prompt_tokens: int
    completion_tokens: int

    @property
    def total_tokens(self) -> int:
        return self.prompt_tokens + self.completion_tokens
