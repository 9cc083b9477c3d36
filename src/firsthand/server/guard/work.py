"""What a request would cost, as admission sees it.

Owns: `Work`, and what a key's highest class makes of the class that was asked for.
May not know: bodies, prompts, who is ahead.
Read next: `gate.py`.
"""

from __future__ import annotations

from dataclasses import replace

from firsthand.request import Priority
from firsthand.values import dataclass

CLASSES = tuple(Priority)  # the earliest first


@dataclass(frozen=True, slots=True)
class Work:
    """A prompt of `num_prompt_tokens`, answered `n` times with `max_tokens` at most. `timeout_s` is
    the caller's own limit, since the request arrived. `open_ended`: nobody named `max_tokens`; they
    are what the context has room for, or what is expected."""

    num_prompt_tokens: int
    max_tokens: int
    n: int = 1
    logprobs: bool = False
    priority: Priority = Priority.NORMAL
    timeout_s: float | None = None
    open_ended: bool = False

    def with_max_tokens(self, max_tokens: int) -> Work:
        return replace(self, max_tokens=max_tokens)

    @property
    def num_tokens(self) -> int:
        """The most that it can come to."""
        return self.num_prompt_tokens + self.max_output_tokens

    @property
    def max_output_tokens(self) -> int:
        return self.n * self.max_tokens


def capped(priority: Priority, highest: Priority) -> Priority:
    return CLASSES[max(CLASSES.index(priority), CLASSES.index(highest))]
