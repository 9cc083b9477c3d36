"""What is known of one request, from its arrival to its last byte.

Owns: `Record`, its parts (one per prompt), and the stages, which follow each other without a gap:
they add up to the whole.
May not know: who tells the facts, how long a record is kept, HTTP.
Read next: `recorder.py` (who fills these), `record_views.py` (how they are told).

Times are seconds of the service's clock, which all processes of a machine share.
"""

from __future__ import annotations

from array import array
from collections.abc import Iterator, Mapping
from dataclasses import field
from typing import Any

from firsthand.cascade.decision import Told
from firsthand.request import Request, SamplingParams
from firsthand.scheduling.facts import Admitted, Preempted
from firsthand.values import dataclass

RECORD_BYTES = 3000  # of a record with one part, about, as the interpreter has them
PART_BYTES = 1500
ENTRY_BYTES = 12  # of a step in which a sequence took part
TOKEN_BYTES = 12  # of one whose id and log-probability are kept

STAGES = ("receive", "tokenize", "attempt", "queue", "prefill", "decode", "send")


@dataclass(frozen=True, slots=True)
class Arrival:
    """A request as the server knows it. `key_id` is whose it is; "" where there are no keys. `said`
    is what its caller told beside the question, and `ignored` the fields that had no effect."""

    request_id: str
    key_id: str
    endpoint: str
    model: str
    arrived_s: float
    streams: bool = False
    said: Mapping[str, Any] = field(default_factory=dict)
    ignored: tuple[str, ...] = ()


@dataclass(frozen=True, slots=True)
class Ending:
    """What became of it. `cause` is for the operator: it may name files."""

    status: int
    outcome: str
    ended_s: float
    num_sent_bytes: int = 0
    first_sent_s: float | None = None
    error_code: str | None = None
    cause: str | None = None
    cascade: Told | None = None  # where two models were asked, or might have been

    @property
    def is_failure(self) -> bool:
        return self.status >= 500 and self.outcome != "refused"


@dataclass(frozen=True, slots=True)
class Choice:
    """The end of one of the n sequences."""

    index: int
    reason: str
    num_tokens: int


@dataclass(slots=True, eq=False)
class Content:
    """The tokens of a part, kept on request alone; `outputs` and `logprobs` by sequence. `model` is
    its service's name; `adapter_sha256` that of what was added to its weights."""

    request: Request
    model: str
    adapter_sha256: str | None = None
    outputs: list[array[int]] = field(default_factory=list)
    logprobs: list[array[float]] = field(default_factory=list)

    @property
    def num_bytes(self) -> int:
        return TOKEN_BYTES * (len(self.request.prompt_token_ids) * 3 + sum(map(len, self.outputs)))


@dataclass(slots=True, eq=False)
class Part:
    """A prompt, `n` times. `num_ahead` sequences' requests waited before it when it came, of its
    class and of more urgent ones. The numbers in `steps` are those of the ring; a step stands there
    once for each of the sequences that took part in it, with its tokens in `tokens`. One that was
    given up, at `given_up_s`, is no part of the answer: a cascade asked its large model then."""

    engine_id: str  # the service's own
    model: str  # the service's name
    priority: str
    num_prompt_tokens: int
    n: int
    max_tokens: int
    called_s: float
    tokenized_s: float
    seed: int
    sampling: SamplingParams
    num_ahead: int = 0
    began_s: float | None = None  # its first step
    first_token_s: float | None = None
    last_s: float | None = None  # the end of its last step so far
    given_up_s: float | None = None
    num_cached_tokens: int = 0
    num_guesses: int = 0
    num_accepted: int = 0
    replicas: list[int] = field(default_factory=list)  # one after another, where there are several
    admissions: list[tuple[float, Admitted]] = field(default_factory=list)
    preemptions: list[tuple[float, Preempted]] = field(default_factory=list)
    choices: list[Choice] = field(default_factory=list)
    steps: array[int] = field(default_factory=lambda: array("Q"))
    tokens: array[int] = field(default_factory=lambda: array("I"))
    content: Content | None = None

    @classmethod
    def of(cls, request: Request, model: str, called_s: float, tokenized_s: float) -> Part:
        return cls(
            request.request_id,
            model,
            request.priority.value,
            len(request.prompt_token_ids),
            request.n,
            request.stop.max_tokens,
            called_s,
            tokenized_s,
            request.seed,
            request.sampling,
        )

    @property
    def has_finished(self) -> bool:
        return len(self.choices) >= self.n

    @property
    def is_preempted(self) -> bool:
        """One of its sequences has lost its blocks, and is not back."""
        resumed = sum(one.resumed for _, one in self.admissions)
        return len(self.preemptions) > resumed


@dataclass(frozen=True, slots=True)
class Stage:
    name: str
    start_s: float
    end_s: float

    @property
    def ms(self) -> float:
        return (self.end_s - self.start_s) * 1e3


@dataclass(slots=True, eq=False)
class Record:
    """A request. Without a part it was refused before anything was submitted."""

    arrival: Arrival
    parts: list[Part] = field(default_factory=list)
    ending: Ending | None = None
    trace_id: str | None = None

    @property
    def num_bytes(self) -> int:
        """About; what it takes of the recorder's memory."""
        kept = sum(one.content.num_bytes for one in self.parts if one.content is not None)
        entries = sum(len(one.steps) for one in self.parts)
        kept += len(str(self.arrival.said)) if self.arrival.said else 0
        return RECORD_BYTES + PART_BYTES * len(self.parts) + ENTRY_BYTES * entries + kept

    @property
    def answering(self) -> list[Part]:
        """Those of the answer: the others were given up."""
        return [one for one in self.parts if one.given_up_s is None]

    @property
    def num_preemptions(self) -> int:
        return sum(len(one.preemptions) for one in self.parts)

    @property
    def replicas(self) -> list[int]:
        """Those that computed it, one after another."""
        return [replica for one in self.parts for replica in one.replicas]

    @property
    def state(self) -> str:
        """Where it is now; once it has ended, what became of it."""
        parts = self.answering
        if self.ending is not None:
            return self.ending.outcome
        if not any(one.began_s is not None for one in parts):
            return "queued"
        if all(one.has_finished for one in parts):
            return "sending"
        if any(one.is_preempted for one in parts):
            return "preempted"
        return "decode" if any(one.first_token_s is not None for one in parts) else "prefill"

    def stages(self, now_s: float) -> list[Stage]:
        """Those that it came to, in order; the last one lasts until its end, or until now."""
        end_s = now_s if self.ending is None else self.ending.ended_s
        marks = [(name, at_s) for name, at_s in self._marks() if at_s is not None]
        found: list[Stage] = []
        start_s = self.arrival.arrived_s
        for at, (name, _) in enumerate(marks):
            next_s = marks[at + 1][1] if at + 1 < len(marks) else end_s
            next_s = min(max(start_s, next_s), max(start_s, end_s))
            found.append(Stage(name, start_s, next_s))
            start_s = next_s
        return found

    def _marks(self) -> Iterator[tuple[str, float | None]]:
        """When each stage began; None: it never did."""
        parts = self.answering
        whole = bool(parts) and all(one.has_finished for one in parts)
        given_up = [one for one in self.parts if one.given_up_s is not None]
        yield "receive", self.arrival.arrived_s
        yield "tokenize", min((one.called_s for one in self.parts), default=None)
        yield "attempt", max((one.tokenized_s for one in given_up), default=None)
        yield "queue", max((one.tokenized_s for one in parts), default=None)
        yield "prefill", _least(one.began_s for one in parts)
        yield "decode", _least(one.first_token_s for one in parts)
        last_s = [one.last_s for one in parts if one.last_s is not None]
        yield "send", max(last_s, default=None) if whole else None


def _least(times: Iterator[float | None]) -> float | None:
    return min((one for one in times if one is not None), default=None)
