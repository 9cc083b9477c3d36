"""The bodies and replies of `/firsthand/engine/…` and `/firsthand/queue`.

Owns: their fields. May not know: routes, engines.
Read next: `../routes/live.py`.
"""

from __future__ import annotations

from typing import Annotated, Any

from pydantic import Field

from firsthand.server.wire.base import Name, Reply, Strict


class PaceBody(Strict):
    """No step but the next `num_steps`, or `delay_ms` between two; `paused` false: go on."""

    model: Name | None = None
    paused: bool = False
    num_steps: Annotated[int, Field(ge=0, le=1000)] = 0
    delay_ms: Annotated[int, Field(ge=0, le=10_000)] = 0


class PaceReply(Reply):
    paused: bool
    delay_ms: int


class EngineNow(Reply):
    """`models` have their steps, and a picture of who runs and who waits."""

    at_s: float
    version: str
    demo: bool
    models: list[dict[str, Any]]
    checks: list[dict[str, Any]]
    alerts: list[dict[str, Any]]
    releases: dict[str, Any]
    degradation: dict[str, int]


class QueueNow(Reply):
    """`models` have their `queue`, in order, each with its `position`, `age_s`, `starts_in_s`
    (null: not known yet) and `why`."""

    at_s: float
    models: list[dict[str, Any]]
