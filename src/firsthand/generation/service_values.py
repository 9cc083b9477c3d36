"""What a service is told and tells: frozen values, all of them fit for `server`.

Owns: the options, the states, the facts and the numbers of one model's service.
May not know: how any of it comes to be.
Read next: `service.py`.
"""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import field
from enum import StrEnum
from pathlib import Path

from firsthand.generation.load_options import LoadOptions
from firsthand.generation.report import AdapterFacts
from firsthand.values import dataclass


@dataclass(frozen=True, slots=True)
class ServiceOptions:
    """`model` is a name, a path or a hub id; `name` what the service calls it (default: the model
    as given). `chat_template` replaces the model's own. A step loop that is silent for `hang_s`,
    and does not work on a step meanwhile, is taken for hung and replaced.
    `max_requests` bounds what waits and runs together; one more is refused: CapacityExceeded.
    `chaos`: faults can be put in. `release` is the hash of the release that this is, if it is one.
    """

    model: str | Path
    load: LoadOptions = field(default_factory=LoadOptions)
    name: str | None = None
    chat_template: str | None = None
    hang_s: float = 5.0
    max_requests: int = 1040
    chaos: bool = False
    release: str | None = None


class Status(StrEnum):
    LOADING = "loading"  # the first engine is not there yet
    READY = "ready"
    DEGRADED = "degraded"  # it takes requests, but its step loop is late: `reason` says how much
    RESTARTING = "restarting"  # an engine died or hung, the next one loads
    FAILED = "failed"  # the first load failed, or the watch itself: only `wake` tries again
    ASLEEP = "asleep"  # `sleep` was asked for: no engine, no memory
    CLOSED = "closed"

    @property
    def takes_requests(self) -> bool:
        return self in (Status.READY, Status.DEGRADED)


@dataclass(frozen=True, slots=True)
class Replica:
    """One of several engines that answer for a model. `slot` is a small number that it has for its
    life, and another one after it; `cpu_s` the processor time of its processes."""

    slot: int
    name: str
    in_rotation: bool
    num_open: int
    num_waiting: int
    num_running: int
    num_used_blocks: int
    num_restarts: int
    cpu_s: float


@dataclass(frozen=True, slots=True)
class Replicas:
    """`num_moved` requests went on at another one, `num_lost` times one could not be reached any
    more."""

    each: tuple[Replica, ...]
    num_moved: int
    num_lost: int


@dataclass(frozen=True, slots=True)
class ServiceState:
    """What is known of the engine now. Ages are seconds; None: there was none yet."""

    status: Status
    reason: str  # "" when ready; for the operator: it may name files and processes
    age_s: float  # since the status began
    heartbeat_age_s: float | None  # since the step loop last answered; 0.0 … 1.0 when all is well
    step_age_s: float | None  # since the last step
    num_restarts: int
    pid: int | None  # of the engine
    progress: float | None = None  # of a load, 0.0 … 1.0
    memory_short: bool = False  # the engine has given up its reserve
    stalled_s: float = 0.0  # with requests and without a step, though the loop answers
    replicas: Replicas | None = None  # None: one engine, in a process beside
    is_lost: bool = False  # it died at start after start: only a new process may help


@dataclass(frozen=True, slots=True)
class ModelFacts:
    """What is known of the model without an engine. Once one was ready, `context_length` is what
    memory allowed it (until then, the model's own) and the sizes of the cache are its (0)."""

    name: str
    created_s: int  # when the model's file was last changed, in Unix time
    context_length: int
    vocab_size: int
    end_token_ids: tuple[int, ...]
    has_chat_template: bool
    chat_template: str | None
    file: str  # the base name only
    max_sequences: int
    num_blocks: int
    block_size: int
    manifest_sha256: str | None = None  # None: not known without reading the whole file
    width: int = 0  # of its hidden states
    adapters: Mapping[str, AdapterFacts] = field(default_factory=dict)  # of the engine
    release: str | None = None
    own_context_length: int = 0  # the model's own; memory, or the operator, may have lowered it
    numerics: str = ""  # `LoadOptions.numerics`


@dataclass(frozen=True, slots=True)
class Prompt:
    """Token ids, and what making them took. `continues`: the answer goes on from this text, so a
    space at its beginning belongs to it (not so after a chat template). `called_s` is the time
    of the service's clock from which times to the first token and deadlines count."""

    token_ids: tuple[int, ...]
    continues: bool
    called_s: float
    tokenized_s: float
    text: str | None = None  # what was tokenised, where it was text

    @property
    def num_tokens(self) -> int:
        return len(self.token_ids)


@dataclass(frozen=True, slots=True)
class StreamUsage:
    """Tokens of one request, all its n sequences; `cached_tokens` of the prompt's were not
    computed again. `draft_tokens` were guessed, and `accepted_tokens` of them were right."""

    prompt_tokens: int
    completion_tokens: int
    cached_tokens: int
    draft_tokens: int = 0
    accepted_tokens: int = 0

    @property
    def total_tokens(self) -> int:
        return self.prompt_tokens + self.completion_tokens


@dataclass(frozen=True, slots=True)
class Load:
    """Live numbers for admission; those of the engine are as of its last step.

    `num_open` requests are in progress in all (waiting, running, or on their way). The waiting
    tokens are of prompts of requests that have not begun; `num_owed_tokens` is an upper bound of
    what all open requests may still compute (prompt and max_tokens × n). Totals count since the
    service began; the rates are of the last half minute, over the time in which there was work
    (0.0: none measured yet).
    """

    num_open: int
    num_waiting: int  # sequences
    num_running: int  # sequences
    waiting_by_class: tuple[int, int, int]  # urgent, normal, background
    running_by_class: tuple[int, int, int]
    num_used_blocks: int
    num_blocks: int
    num_waiting_tokens: int
    num_owed_tokens: int
    total_submitted: int
    total_ended: int
    total_computed_tokens: int
    total_drawn_tokens: int
    ended_per_s: float
    computed_tokens_per_s: float
    drawn_tokens_per_s: float
