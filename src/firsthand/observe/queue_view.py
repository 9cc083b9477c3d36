"""Who waits for an engine, in which order, since when, until when about, and why.

Owns: the words of `/firsthand/queue`, the reason that each has to wait, the estimate of its start.
May not know: HTTP, terminals; how the order is made (`../scheduling/waiting.py`).
Read next: `../scheduling/picture.py`, from which it is told; `../cli/queue.py`, which prints it;
the page says the same in `../server/page/queue.js`.
"""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

from firsthand.generation.service import Service
from firsthand.observe.labels import CLASSES
from firsthand.scheduling.picture import Picture, Pictured

OVERDUE = "overdue"
REASONS = ("paused", "evicted", "full", "blocks", OVERDUE, "next")


def queue_of(service: Service, name: Callable[[str], str | None]) -> dict[str, Any]:
    """Of one model, as of its last picture. `name` is what the caller calls a request of its own;
    None: it is not the caller's."""
    load, model, picture = service.load, service.model, service.picture
    shares = (0,) * len(CLASSES) if picture is None else picture.shares
    return {
        "name": model.name,
        "paused": service.pace.paused,
        "running": load.num_running,
        "places": model.max_sequences,
        "waiting": load.num_waiting,
        "free_blocks": load.num_blocks - load.num_used_blocks,
        "ended_per_s": load.ended_per_s,
        "classes": [
            {"class": one, "waiting": waiting, "running": running, "guaranteed": share}
            for one, waiting, running, share in zip(
                CLASSES, load.waiting_by_class, load.running_by_class, _parts(shares), strict=True
            )
        ],
        "queue": []
        if picture is None
        else [
            _row(service, picture, row, position, name)
            for position, row in enumerate(picture.waiting, 1)
        ],
    }


def _parts(shares: tuple[int, ...]) -> list[float]:
    whole = sum(shares) or 1
    return [one / whole for one in shares]


def _row(
    service: Service,
    picture: Picture,
    row: Pictured,
    position: int,
    name: Callable[[str], str | None],
) -> dict[str, Any]:
    """`level` is the class to which it has risen by waiting."""
    pace = service.load.ended_per_s
    return {
        "position": position,
        "id": name(row.request_id),
        "engine_id": row.request_id,
        "class": CLASSES[row.class_index],
        "level": OVERDUE if row.level < 0 else CLASSES[row.level],
        "age_s": round(max(0.0, picture.at_s - row.arrival_s), 3),
        "prompt_tokens": row.num_prompt_tokens,
        "preemptions": row.num_preemptions,
        "starts_in_s": round(position / pace, 3) if pace > 0 else None,
        "why": why(service, picture, row),
    }


def why(service: Service, picture: Picture, row: Pictured) -> str:
    """One of REASONS."""
    model, load = service.model, service.load
    needs = -(-row.num_known // max(1, model.block_size))
    reasons = (
        ("paused", service.pace.paused),
        ("evicted", row.num_preemptions > 0),
        ("full", len(picture.running) >= model.max_sequences),
        ("blocks", needs > load.num_blocks - load.num_used_blocks),
        (OVERDUE, row.level < 0),
    )
    return next((reason for reason, holds in reasons if holds), "next")
