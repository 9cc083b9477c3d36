"""A record as the trace that Perfetto opens.

Owns: its tracks: stages, steps with their phases inside, and what happened to the prompts.
May not know: where the record comes from; it is plain values (`record_views.py`).
Read next: `../chrome_trace.py`, the form.
"""

from __future__ import annotations

from collections.abc import Iterator, Mapping
from typing import Any

from firsthand.chrome_trace import Event, document, instant, span, tracks


def trace(found: Mapping[str, Any]) -> dict[str, Any]:
    """Of what `told` gave."""
    about = {name: value for name, value in found.items() if not isinstance(value, list | dict)}
    events = tracks(f"request {found['id']}", ("stages", "steps", "events"))
    for one in found["stages"]:
        events.append(span(one["name"], "stage", 1, one["start_ms"], one["ms"], {}))
    for step in found["steps"]:
        events += _step_spans(step)
    for number, part in enumerate(found["parts"]):
        for name in ("admissions", "preemptions"):
            events += [
                instant(name[:-1], "event", 3, one["at_ms"], {"prompt": number, **one})
                for one in part[name]
            ]
        if part["first_token_ms"] is not None:
            at_ms = part["first_token_ms"]
            events.append(instant("first token", "event", 3, at_ms, {"prompt": number}))
    return document(events, about)


def _step_spans(step: Mapping[str, Any]) -> Iterator[Event]:
    start_ms = step["start_ms"]
    about = {name: value for name, value in step.items() if not name.endswith("_ms")}
    yield span(f"step of {step['batch']}", "step", 2, start_ms, step["ms"], about)
    run_ms = start_ms + step["plan_ms"]
    for name, at_ms in (
        ("plan", start_ms),
        ("forward", run_ms),
        ("sample", run_ms + step["forward_ms"]),
        ("commit", run_ms + step["run_ms"]),
    ):
        yield span(name, "phase", 2, at_ms, step[f"{name}_ms"], {})
