"""One generation between its body and the engine: what is asked, who admits it, what it becomes.

Owns: the order admit → submit, for one prompt or several that are tokens already; the seam of
admission.
May not know: wire formats, how an answer is written.
Read next: `answers.py` (the streams as one), `guard/` (who admits).
"""

from __future__ import annotations

import sys
from collections.abc import Callable, Sequence
from functools import partial
from typing import Protocol

from starlette.types import Scope

from firsthand.generation.completion import Completion
from firsthand.generation.options import Options
from firsthand.generation.service import AsyncTextStream, Prompt, Service, StreamUsage
from firsthand.values import dataclass


@dataclass(frozen=True, slots=True)
class Ask:
    """One generation that is about to be submitted; with `pooling` one vector instead. `scope` has
    the caller's headers and key."""

    scope: Scope
    endpoint: str
    model: str
    service: Service
    prompt: Prompt
    options: Options
    n: int
    stream: bool
    pooling: str | None = None
    scored: bool = False  # log-probabilities are wanted here, whether the caller asked or not
    open_ended: bool = False  # nobody named a limit: `max_tokens` is the room that the context has


class Ticket(Protocol):
    """An admitted generation. `options` are what is submitted."""

    @property
    def options(self) -> Options: ...

    def finished(self, completion: Completion) -> None:
        """One of its n sequences has ended."""

    def close(self, usage: StreamUsage, *, ended: bool) -> None:
        """Called once: the answer has ended, or (False) was given up before its end."""

    def withdraw(self) -> None:
        """Called instead: it was refused after it had been admitted, and costs nothing."""

    def submitted(self, abort: Callable[[], object]) -> None:
        """It runs from now on; `abort` ends it, and its answer has the finish CANCELLED."""

    @property
    def spent(self) -> bool:
        """Whether it was ended for want of memory."""


class Admission(Protocol):
    """Who may generate now."""

    def admit(self, asks: Sequence[Ask]) -> Sequence[Ticket]:
        """All that one request asks, or nothing of it. Raises Refused."""

    def most_at_once(self, service: Service) -> int:
        """So many answers one request may ask for."""


@dataclass(frozen=True, slots=True)
class _Pass:
    options: Options

    def finished(self, completion: Completion) -> None:
        pass

    def close(self, usage: StreamUsage, *, ended: bool) -> None:
        pass

    def withdraw(self) -> None:
        pass

    def submitted(self, abort: Callable[[], object]) -> None:
        pass

    @property
    def spent(self) -> bool:
        return False


@dataclass(frozen=True, slots=True)
class OpenDoor:
    """Admits everything; the service's own limits still hold."""

    def admit(self, asks: Sequence[Ask]) -> Sequence[Ticket]:
        return [_Pass(ask.options) for ask in asks]

    def most_at_once(self, service: Service) -> int:
        return sys.maxsize


@dataclass(frozen=True, slots=True)
class Submitted:
    """A prompt's stream with its ticket; closing it gives both back."""

    stream: AsyncTextStream
    ticket: Ticket


def submit_all(
    admission: Admission,
    asks: Sequence[Ask],
    *,
    skip_special_tokens: bool,
    include_stop_string: bool,
) -> list[Submitted]:
    """Admit all prompts, then submit every one; a refusal of one leaves none behind."""
    submitted: list[Submitted] = []
    tickets = admission.admit(asks)
    try:
        for ask, ticket in zip(asks, tickets, strict=True):
            if ask.pooling is not None:
                stream = ask.service.submit_pooling(ask.prompt, ticket.options, ask.pooling)
            else:
                stream = ask.service.submit(
                    ask.prompt,
                    _scored(ticket.options) if ask.scored else ticket.options,
                    n=ask.n,
                    skip_special_tokens=skip_special_tokens,
                    include_stop_string=include_stop_string,
                )
            ticket.submitted(partial(ask.service.abort, stream.request_id))
            submitted.append(Submitted(stream, ticket))
    except BaseException:
        for one in submitted:
            one.stream.close()
        for ticket in tickets:
            ticket.withdraw()
        raise
    return submitted


def _scored(options: Options) -> Options:
    given = options.get("logprobs")
    return {**options, "logprobs": 0 if given is None else given}
