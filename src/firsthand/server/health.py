"""Named checks: what is asked before the server calls itself alive, or ready.

Owns: the registry of checks, and the two sums over them.
May not know: what a check looks at; routes.
Read next: `routes/operations.py`, which answers with them.
"""

from __future__ import annotations

import logging
from collections.abc import Callable
from dataclasses import field

from firsthand.values import dataclass

_LOG = logging.getLogger(__name__)


@dataclass(frozen=True, slots=True)
class Check:
    """The state of one thing. `age_s`: how old that knowledge is; None: it is of now."""

    ok: bool
    detail: str = ""
    age_s: float | None = None


@dataclass(slots=True)
class Checks:
    """Checks by name, asked at each probe: they must be quick. Ready is all of them; alive only
    those that were added with `live`, whose failure means that a new process is needed."""

    _all: dict[str, tuple[Callable[[], Check], bool]] = field(default_factory=dict)

    def add(self, name: str, check: Callable[[], Check], *, live: bool = False) -> None:
        """A name that is there already is replaced."""
        self._all[name] = (check, live)

    def run(self, *, live_only: bool = False) -> dict[str, Check]:
        """Every check's answer. One that raises has failed."""
        return {
            name: _ask(name, check)
            for name, (check, live) in self._all.items()
            if live or not live_only
        }


def _ask(name: str, check: Callable[[], Check]) -> Check:
    try:
        return check()
    except Exception:
        _LOG.exception("the check %s failed to answer", name)
        return Check(False, "the check itself failed")
