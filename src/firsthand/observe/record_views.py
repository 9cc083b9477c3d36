"""A record as it is told: plain values for JSON.

Owns: the names and units of what is told, and how a request's time is shared out.
May not know: HTTP, who may see what, terminals.
Read next: `records.py`, from which all of it comes; `record_trace.py`; `../cli/requests.py`,
which prints it.

The stages follow each other from the arrival to the last byte, so they add up to the whole. The
steps explain `prefill` and `decode` once more, by what was done: what is left is `between` steps,
where the request waited for others' steps or for the way between the processes.
"""

from __future__ import annotations

import time
from datetime import UTC, datetime
from typing import Any

from firsthand.generation.kept_requests import request_to_plain
from firsthand.observe.recorder import Recorder
from firsthand.observe.records import Part, Record
from firsthand.observe.step_ring import Step

IN_STEPS = ("prefill", "decode")
_STEP_MS = ("plan_ms", "run_ms", "forward_ms", "sample_ms", "commit_ms")


def summary(record: Record, recorder: Recorder, *, with_cause: bool = False) -> dict[str, Any]:
    """One line of a list."""
    arrival, ending, parts = record.arrival, record.ending, record.answering
    cascade = None if ending is None else ending.cascade
    now_s = recorder.clock()
    stages = record.stages(now_s)
    choices = [one for part in parts for one in part.choices]
    told: dict[str, Any] = {
        "id": arrival.request_id,
        "state": record.state,
        "arrived": _wall(arrival.arrived_s, now_s),
        "model": arrival.model,
        "endpoint": arrival.endpoint,
        "key_id": arrival.key_id or None,
        "trace_id": record.trace_id,
        "priority": parts[0].priority if parts else None,
        "said": dict(arrival.said) or None,
        "ignored": list(arrival.ignored) or None,
        "status": None if ending is None else ending.status,
        "error_code": None if ending is None else ending.error_code,
        "finish_reasons": [one.reason for one in choices],
        "prompt_tokens": sum(one.num_prompt_tokens for one in parts),
        "cached_tokens": sum(one.num_cached_tokens for one in parts),
        "output_tokens": sum(one.num_tokens for one in choices),
        "draft_tokens": sum(one.num_guesses for one in parts),
        "accepted_tokens": sum(one.num_accepted for one in parts),
        "preemptions": record.num_preemptions,
        "cascade": None if cascade is None else cascade.to_dict(),
        "replicas": record.replicas or None,
        "sent_bytes": None if ending is None else ending.num_sent_bytes,
        "total_ms": _ms(stages[-1].end_s - arrival.arrived_s),
        "stages": [
            {"name": one.name, "start_ms": _ms(one.start_s - arrival.arrived_s), "ms": one.ms}
            for one in stages
        ],
    }
    if with_cause and ending is not None:
        told["cause"] = ending.cause
    return told


def told(
    record: Record,
    recorder: Recorder,
    *,
    with_cause: bool = False,
    with_content: bool = True,
    max_steps: int | None = None,
) -> dict[str, Any]:
    """All of it. `with_cause`: for the operator, for it may name files. Of more than `max_steps`
    steps the last ones are told."""
    arrived_s = record.arrival.arrived_s
    found = summary(record, recorder, with_cause=with_cause)
    steps, num_steps = _steps(record, recorder)
    shown = steps if max_steps is None else steps[-max_steps:]
    ending = record.ending
    first_sent_s = None if ending is None else ending.first_sent_s
    return {
        **found,
        "first_sent_ms": None if first_sent_s is None else _ms(first_sent_s - arrived_s),
        "step_ms": _shares(found["stages"], steps),
        "batch_max": max((step.num_sequences for step, _ in steps), default=0),
        "parts": [
            _part(one, arrived_s, _content(one, recorder) if with_content else None)
            for one in record.parts
        ],
        "num_steps": num_steps,
        "steps_left_out": num_steps - len(shown),
        "steps": [_step(step, tokens, arrived_s) for step, tokens in shown],
    }


def _steps(record: Record, recorder: Recorder) -> tuple[list[tuple[Step, int]], int]:
    """Those that are kept, with the request's tokens in each; and how many there were."""
    tokens: dict[int, int] = {}
    for part in record.answering:
        for number, taken in zip(part.steps, part.tokens, strict=True):
            tokens[number] = tokens.get(number, 0) + taken
    kept = [(recorder.ring.get(number), taken) for number, taken in sorted(tokens.items())]
    return [(step, taken) for step, taken in kept if step is not None], len(tokens)


def _shares(stages: list[dict[str, Any]], steps: list[tuple[Step, int]]) -> dict[str, float]:
    """The stages in which steps are made, by what was done in them. A token is there before its
    step is committed, so the last commit lies outside."""
    whole_ms = sum(one["ms"] for one in stages if one["name"] in IN_STEPS)
    spent = {name: sum(getattr(step, name) for step, _ in steps) for name in _STEP_MS}
    if steps:
        spent["commit_ms"] -= steps[-1][0].commit_ms
    in_steps_ms = spent["plan_ms"] + spent["run_ms"] + spent["commit_ms"]
    return {
        "plan": spent["plan_ms"],
        "forward": spent["forward_ms"],
        "sample": spent["sample_ms"],
        "other": spent["run_ms"] - spent["forward_ms"] - spent["sample_ms"],
        "commit": spent["commit_ms"],
        "between": whole_ms - in_steps_ms,
    }


def _step(step: Step, tokens: int, arrived_s: float) -> dict[str, Any]:
    return {
        "number": step.number,
        "start_ms": _ms(step.started_s - arrived_s),
        "ms": round(step.total_ms, 3),
        "tokens": tokens,
        "batch": step.num_sequences,
        "batch_tokens": step.num_tokens,
        **{name: round(getattr(step, name), 3) for name in _STEP_MS},
        "waiting": step.num_waiting,
        "running": step.num_running,
        "used_blocks": step.num_used_blocks,
        "failed": step.failed,
    }


def _part(part: Part, arrived_s: float, content: dict[str, Any] | None) -> dict[str, Any]:
    def at(time_s: float | None) -> float | None:
        return None if time_s is None else _ms(time_s - arrived_s)

    began_s = part.began_s
    return {
        "model": part.model,
        "given_up_ms": at(part.given_up_s),
        "prompt_tokens": part.num_prompt_tokens,
        "n": part.n,
        "max_tokens": part.max_tokens,
        "seed": part.seed,
        "queue": {
            "class": part.priority,
            "ahead": part.num_ahead,
            "age_ms": None if began_s is None else _ms(began_s - part.tokenized_s),
        },
        "admissions": [
            {
                "at_ms": at(time_s),
                "choice": one.index,
                "blocks": one.num_blocks,
                "reused_tokens": one.num_cached_tokens,
                "waited_ms": _ms(one.waited_s),
                "resumed": one.resumed,
            }
            for time_s, one in part.admissions
        ],
        "preemptions": [
            {
                "at_ms": at(time_s),
                "choice": one.index,
                "blocks": one.num_blocks,
                "lost_tokens": one.num_computed_tokens,
            }
            for time_s, one in part.preemptions
        ],
        "first_token_ms": at(part.first_token_s),
        "choices": [
            {"choice": one.index, "finish_reason": one.reason, "output_tokens": one.num_tokens}
            for one in part.choices
        ],
        **({} if content is None else {"content": content}),
    }


def _content(part: Part, recorder: Recorder) -> dict[str, Any] | None:
    content = part.content
    if content is None:
        return None
    return {
        "made_by": recorder.made_by.get(content.model),
        "adapter": content.adapter_sha256,
        "request": request_to_plain(content.request),
        "outputs": [list(one) for one in content.outputs],
        "logprobs": [list(one) for one in content.logprobs],
    }


def _ms(seconds: float) -> float:
    return round(seconds * 1e3, 3)


def _wall(time_s: float, now_s: float) -> str:
    """The time of day of a time of the service's clock."""
    at = datetime.fromtimestamp(time.time() - (now_s - time_s), UTC)
    return at.isoformat(timespec="milliseconds").replace("+00:00", "Z")
