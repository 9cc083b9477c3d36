"""What a pipeline was and did: its stages, bubbles and hops, as values.

Owns: which figures there are, and their names in JSON.
May not know: how they are printed or drawn.
Read next: `timeline.py`, whose sums these are; `cli/pipeline.py`.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import asdict
from typing import Any

from firsthand.cluster.pipeline import timeline
from firsthand.cluster.pipeline.links import ranges
from firsthand.cluster.pipeline.loading import Pipeline
from firsthand.cluster.pipeline.timeline import Span
from firsthand.values import dataclass


@dataclass(frozen=True, slots=True)
class StageFacts:
    """One stage. `measured_ms` is what its part of a token took when the costs were measured;
    `busy_ms`, in all the steps of the report. The rest are bytes, the last one of its process."""

    first_layer: int
    last_layer: int
    threads: int
    measured_ms: float
    busy_ms: float
    weights_bytes: int
    kv_bytes: int
    scratch_bytes: int
    resident_bytes: int


@dataclass(frozen=True, slots=True)
class PipelineFacts:
    """All steps of `spans` together. `bubble_share` was measured; `formula_share` is what equal
    stages and hops without time would give for the same numbers of parts."""

    stages: tuple[StageFacts, ...]
    num_steps: int
    num_parts: int
    bubble_share: float
    formula_share: float
    num_hops: int
    mean_hop_ms: float
    mean_hop_bytes: int
    token_ms: tuple[float, ...]  # by layer
    before_ms: float
    after_ms: float

    def to_dict(self) -> dict[str, Any]:
        return asdict(self)


def facts_of(pipeline: Pipeline, spans: Sequence[Span]) -> PipelineFacts:
    num_stages = pipeline.links.num_stages
    hops = timeline.hops(spans)
    measured = pipeline.token.of_stages(pipeline.split)
    busy = timeline.stage_ms(spans, num_stages)
    resident = pipeline.links.resident_bytes()
    stages = tuple(
        StageFacts(
            first_layer=first,
            last_layer=last - 1,
            threads=loaded.threads,
            measured_ms=measured[stage],
            busy_ms=busy[stage],
            weights_bytes=loaded.held.weights_bytes,
            kv_bytes=pipeline.store_bytes[stage],
            scratch_bytes=loaded.held.scratch_bytes,
            resident_bytes=resident[stage],
        )
        for stage, ((first, last), loaded) in enumerate(
            zip(ranges(pipeline.split), pipeline.stages, strict=True)
        )
    )
    return PipelineFacts(
        stages=stages,
        num_steps=len({one.step for one in spans}),
        num_parts=len({(one.step, one.part) for one in spans}),
        bubble_share=timeline.bubble_share(spans, num_stages),
        formula_share=timeline.formula_share(spans, num_stages),
        num_hops=len(hops.ms),
        mean_hop_ms=hops.mean_ms,
        mean_hop_bytes=hops.mean_bytes,
        token_ms=pipeline.token.layers,
        before_ms=pipeline.token.before,
        after_ms=pipeline.token.after,
    )


def shown_steps(spans: Sequence[Span]) -> list[tuple[str, list[Span]]]:
    """The steps that a picture is worth: the one with the most rows, and the last one."""
    rows: dict[int, int] = {}
    for one in spans:
        if one.stage == 0:
            rows[one.step] = rows.get(one.step, 0) + one.num_rows
    if not rows:
        return []
    numbers = dict.fromkeys((max(rows, key=lambda step: (rows[step], step)), max(rows)))
    return [
        (f"step {number}, {rows[number]} rows", [one for one in spans if one.step == number])
        for number in numbers
    ]
