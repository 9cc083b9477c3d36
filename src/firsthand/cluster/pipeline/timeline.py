"""Who computed when: what a pipeline's steps say about themselves.

Owns: the arithmetic of bubbles and hops, and the timeline as text and as a trace.
May not know: Ray, arrays, what was computed.
Read next: `report.py`, which prints it.
Seen in: `firsthand lab pipeline`.

The bubble is the share of the stages' time, from the first part's begin to the last part's end, in
which they do not compute. Of S equal stages and M equal parts, with hops that take no time, it is
(S − 1) / (M + S − 1): a stage waits for its first part, and for the others after its last one.
"""

from __future__ import annotations

from collections import defaultdict
from collections.abc import Mapping, Sequence
from typing import Any

from firsthand.chrome_trace import document, span, tracks
from firsthand.values import dataclass

WIDTH = 72  # of the picture, in characters


@dataclass(frozen=True, slots=True)
class Span:
    """One part of one step in one stage, in seconds of one clock; `num_bytes` came over the hop."""

    step: int
    part: int
    stage: int
    began_s: float
    ended_s: float
    num_rows: int
    num_bytes: int

    @property
    def ms(self) -> float:
        return (self.ended_s - self.began_s) * 1e3


@dataclass(frozen=True, slots=True)
class Hops:
    """What went from stage to stage. `ms` of each is how long a stage that was free did not have a
    part that was ready: a hop that another part's computing hides takes none."""

    ms: tuple[float, ...]
    num_bytes: int

    @property
    def mean_ms(self) -> float:
        return sum(self.ms) / len(self.ms) if self.ms else 0.0

    @property
    def mean_bytes(self) -> int:
        return self.num_bytes // len(self.ms) if self.ms else 0


def formula(num_stages: int, num_parts: int) -> float:
    """The bubble share of equal stages and parts."""
    return (num_stages - 1) / (num_parts + num_stages - 1)


def bubble_share(spans: Sequence[Span], num_stages: int) -> float:
    """Measured, over all steps: the time between two of them does not count."""
    busy_s = sum(one.ended_s - one.began_s for one in spans)
    whole_s = sum(
        max(one.ended_s for one in step) - min(one.began_s for one in step)
        for step in _by_step(spans).values()
    )
    return max(0.0, 1.0 - busy_s / (num_stages * whole_s)) if whole_s > 0 else 0.0


def formula_share(spans: Sequence[Span], num_stages: int) -> float:
    """What the formula gives for the same steps, each by its number of parts and its time."""
    shares, whole_s = 0.0, 0.0
    for step in _by_step(spans).values():
        lasted_s = max(one.ended_s for one in step) - min(one.began_s for one in step)
        shares += formula(num_stages, 1 + max(one.part for one in step)) * lasted_s
        whole_s += lasted_s
    return shares / whole_s if whole_s > 0 else 0.0


def hops(spans: Sequence[Span]) -> Hops:
    ended = {(one.step, one.part, one.stage): one.ended_s for one in spans}
    waits = []
    for one in spans:
        if one.stage == 0:
            continue
        ready_s = ended[one.step, one.part, one.stage - 1]
        free_s = ended.get((one.step, one.part - 1, one.stage), ready_s)
        waits.append(max(0.0, one.began_s - max(ready_s, free_s)) * 1e3)
    return Hops(tuple(waits), sum(one.num_bytes for one in spans if one.stage > 0))


def stage_ms(spans: Sequence[Span], num_stages: int) -> list[float]:
    """How long each stage has computed, in all."""
    return [sum(one.ms for one in spans if one.stage == stage) for stage in range(num_stages)]


def picture(spans: Sequence[Span], num_stages: int, width: int = WIDTH) -> list[str]:
    """A line for each stage of one step: the digit of the part that it computes, or a dot."""
    if not spans:
        return []
    began_s = min(one.began_s for one in spans)
    whole_s = max(max(one.ended_s for one in spans) - began_s, 1e-9)
    lines = [["·"] * width for _ in range(num_stages)]
    for one in sorted(spans, key=lambda one: one.part):
        first = int((one.began_s - began_s) / whole_s * width)
        last = max(first + 1, int((one.ended_s - began_s) / whole_s * width))
        for at in range(first, min(last, width)):
            lines[one.stage][at] = "0123456789abcdefghijklmnopqrstuvwxyz"[one.part % 36]
    return [f"stage {stage}  {''.join(line)}" for stage, line in enumerate(lines)]


def chrome_trace(
    spans: Sequence[Span], num_stages: int, about: Mapping[str, Any]
) -> dict[str, Any]:
    """The JSON object that Perfetto opens: a track for each stage, a span for each part."""
    began_s = min((one.began_s for one in spans), default=0.0)
    events = [
        span(
            f"step {one.step}, part {one.part}",
            "stage",
            one.stage + 1,
            (one.began_s - began_s) * 1e3,
            one.ms,
            {"rows": one.num_rows, "received_bytes": one.num_bytes},
        )
        for one in spans
    ]
    names = [f"stage {stage}" for stage in range(num_stages)]
    return document([*tracks("firsthand pipeline", names), *events], about)


def _by_step(spans: Sequence[Span]) -> dict[int, list[Span]]:
    steps: dict[int, list[Span]] = defaultdict(list)
    for one in spans:
        steps[one.step].append(one)
    return steps
