"""What a generation cost: where the time went, and what holds the memory.

Owns: the stages and their names, and the sums over steps. Every number was measured.
May not know: text, how a step works.
Read next: `engine/facts.py`, from which the steps' part comes.

The names inside `timings` are those of llama.cpp's server where it has one (`prompt_n`,
`prompt_ms`, `predicted_per_second`, …), with its meanings, so that figures can be laid side by
side: the `prompt_*` are about the tokens of the prompt that were computed, `prompt_n` of them, and
`cache_n` were found.
"""

from __future__ import annotations

from dataclasses import field
from itertools import pairwise
from typing import Any

from firsthand.engine.facts import StepFacts
from firsthand.values import dataclass


@dataclass(frozen=True, slots=True)
class AdapterFacts:
    """What is known of an adapter; `sha256` is of what it adds, whatever it is called."""

    sha256: str
    rank: int
    num_bytes: int


@dataclass(frozen=True, slots=True)
class LoadTimes:
    """How the time from a name to a ready model was spent, in milliseconds."""

    open_ms: float  # find the file, check it whole, map it
    tokenizer_ms: float
    executor_ms: float  # import it, start its threads
    weights_ms: float  # read, convert, pack
    prepare_ms: float  # record and fuse the plan, lay out scratch and the KV store
    total_ms: float


@dataclass(frozen=True, slots=True)
class Memory:
    """Bytes, by what holds them. `peak_rss_bytes` is the whole process since it began.

    `kv_reserved_bytes` is address space; `kv_used_bytes` is what this request's tokens filled.
    """

    weights_bytes: int
    scratch_bytes: int
    kv_reserved_bytes: int
    kv_used_bytes: int
    peak_rss_bytes: int


@dataclass(frozen=True, slots=True)
class Report:
    """One generation, measured. All times are milliseconds.

    The stages, in order: `tokenize_ms`; `queue_ms` until its first step began; `prompt_ms` until
    its first token was there; `token_ms`, one entry per token after the first. `forward_ms` and
    `sample_ms` lie inside the steps and are summed over those that the request took part in; a
    step shared with others counts whole for each. `detokenize_ms` is spent beside the steps.
    `ttft_ms` is from the call to the first token (without one, to the end). `peak_batch` is the
    most sequences that shared one of its steps. `num_cached_tokens` of the prompt were found
    computed when it began. Of the tokens `num_guesses` were guessed, and `num_accepted` of these
    were right: tokens that took no step of their own.
    """

    load: LoadTimes
    memory: Memory
    num_prompt_tokens: int
    num_tokens: int  # new ones
    tokenize_ms: float
    queue_ms: float
    prompt_ms: float
    token_ms: tuple[float, ...]
    forward_ms: float
    sample_ms: float
    detokenize_ms: float
    ttft_ms: float
    total_ms: float
    num_steps: int
    peak_batch: int
    num_cached_tokens: int = 0
    num_guesses: int = 0
    num_accepted: int = 0

    @property
    def predicted_ms(self) -> float:
        """Time of the tokens after the first."""
        return sum(self.token_ms)

    @property
    def num_computed_prompt_tokens(self) -> int:
        """Those that were not found: what `prompt_ms` was spent on."""
        return self.num_prompt_tokens - self.num_cached_tokens

    @property
    def prompt_per_second(self) -> float | None:
        """Computed tokens of the prompt per second; None when there was no time."""
        return _rate(self.num_computed_prompt_tokens, self.prompt_ms)

    @property
    def prompt_per_token_ms(self) -> float:
        """Per computed token of the prompt, of which there is at least one: the last."""
        return self.prompt_ms / max(1, self.num_computed_prompt_tokens)

    @property
    def predicted_per_second(self) -> float | None:
        """Tokens per second after the first one; None when there is no second token."""
        return _rate(len(self.token_ms), self.predicted_ms)

    @property
    def guesses(self) -> dict[str, int]:
        """As llama.cpp's server names them; nothing where nothing was guessed."""
        told = {"draft_n": self.num_guesses, "draft_n_accepted": self.num_accepted}
        return told if self.num_guesses else {}

    def to_dict(self) -> dict[str, Any]:
        """Plain values for JSON: `timings` and `memory`."""
        count = len(self.token_ms)
        return {
            "timings": {
                "load_ms": self.load.total_ms,
                "load_open_ms": self.load.open_ms,
                "load_tokenizer_ms": self.load.tokenizer_ms,
                "load_executor_ms": self.load.executor_ms,
                "load_weights_ms": self.load.weights_ms,
                "load_prepare_ms": self.load.prepare_ms,
                "tokenize_ms": self.tokenize_ms,
                "queue_ms": self.queue_ms,
                "cache_n": self.num_cached_tokens,
                "prompt_n": self.num_computed_prompt_tokens,
                "prompt_ms": self.prompt_ms,
                "prompt_per_token_ms": self.prompt_per_token_ms,
                "prompt_per_second": self.prompt_per_second,
                "predicted_n": self.num_tokens,
                "predicted_ms": self.predicted_ms,
                "predicted_per_token_ms": self.predicted_ms / count if count else None,
                "predicted_per_second": self.predicted_per_second,
                "token_ms": list(self.token_ms),
                "forward_ms": self.forward_ms,
                "sample_ms": self.sample_ms,
                "detokenize_ms": self.detokenize_ms,
                "ttft_ms": self.ttft_ms,
                "total_ms": self.total_ms,
                "num_steps": self.num_steps,
                "peak_batch": self.peak_batch,
                **self.guesses,
            },
            "memory": {name: getattr(self.memory, name) for name in Memory.__slots__},
        }


@dataclass(slots=True)
class StepTimes:
    """The steps that one request took part in, so far. Written on the engine's thread only."""

    first_started_s: float | None = None
    forward_ms: float = 0.0
    sample_ms: float = 0.0
    num_steps: int = 0
    peak_batch: int = 0
    num_cached_tokens: int = 0
    num_guesses: int = 0
    num_accepted: int = 0


@dataclass(slots=True)
class StepLedger:
    """Sums the engine's facts per request, for the last `capacity` that took part in a step.

    A fact is recorded before the step's events are delivered, so whoever has seen the last event
    of a request finds its sums complete. Only the engine's thread writes, and nobody has to say
    that a request began or ended: an interrupt can leave nothing behind.
    """

    capacity: int
    _times: dict[str, StepTimes] = field(default_factory=dict)  # the most recent last

    def of(self, request_id: str) -> StepTimes:
        """The sums of a request; all 0 if it took part in no step, or too long ago."""
        return self._times.get(request_id, StepTimes())

    def record(self, facts: StepFacts) -> None:
        """For the engine, step by step."""
        cached = {one.request_id: one.num_cached_tokens for one in reversed(facts.planned.admitted)}
        for request_id in dict.fromkeys(facts.request_ids):  # once, however many its sequences
            times = self._times.pop(request_id, None)
            if times is None:  # it begins
                times = StepTimes(facts.started_s, num_cached_tokens=cached.get(request_id, 0))
            times.forward_ms += facts.forward_ms
            times.sample_ms += facts.sample_ms
            times.num_steps += 1
            times.peak_batch = max(times.peak_batch, facts.num_sequences)
            self._times[request_id] = times
        for one in facts.guesses:
            times = self._times[one.request_id]
            times.num_guesses += one.num_guesses
            times.num_accepted += one.num_accepted
        while len(self._times) > self.capacity:
            del self._times[next(iter(self._times))]


@dataclass(frozen=True, slots=True)
class Timeline:
    """When things happened to one request, in seconds of the engine's clock."""

    called_s: float
    tokenized_s: float
    token_at_s: tuple[float, ...]
    ended_s: float
    detokenize_ms: float


def build_report(
    load: LoadTimes, memory: Memory, num_prompt_tokens: int, timeline: Timeline, steps: StepTimes
) -> Report:
    """The stages of one request from its times. A stage that was never reached took 0 ms."""
    called_s, tokenized_s, at_s = timeline.called_s, timeline.tokenized_s, timeline.token_at_s
    first_s = at_s[0] if at_s else timeline.ended_s
    started_s = first_s if steps.first_started_s is None else steps.first_started_s
    return Report(
        load=load,
        memory=memory,
        num_prompt_tokens=num_prompt_tokens,
        num_tokens=len(at_s),
        tokenize_ms=(tokenized_s - called_s) * 1e3,
        queue_ms=(started_s - tokenized_s) * 1e3,
        prompt_ms=(first_s - started_s) * 1e3,
        token_ms=tuple((later - earlier) * 1e3 for earlier, later in pairwise(at_s)),
        forward_ms=steps.forward_ms,
        sample_ms=steps.sample_ms,
        detokenize_ms=timeline.detokenize_ms,
        ttft_ms=(first_s - called_s) * 1e3,
        total_ms=(timeline.ended_s - called_s) * 1e3,
        num_steps=steps.num_steps,
        peak_batch=steps.peak_batch,
        num_cached_tokens=steps.num_cached_tokens,
        num_guesses=steps.num_guesses,
        num_accepted=steps.num_accepted,
    )


def _rate(count: int, ms: float) -> float | None:
    return count / ms * 1e3 if count and ms > 0 else None
