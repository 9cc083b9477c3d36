"""What the flight recorder says of the last requests, when somebody asks what is wrong.

Owns: the reading of its list, the sums, and what in them speaks for a cause or against it.
May not know: metrics; where a list is from.
Read next: `record_views.py`, which makes the list; `diagnosis.py`, which weighs causes by it.

A list from a server is not trusted: a row that is none of ours is passed over.
"""

from __future__ import annotations

from collections import Counter, defaultdict
from collections.abc import Iterable, Iterator, Mapping
from datetime import datetime
from typing import Any

from firsthand.observe.records import STAGES
from firsthand.values import dataclass

MOST_NAMED = 3
HALF, HARDLY, LEAST = 0.5, 0.05, 0.005  # of the time of all requests
BACKED, DOUBTED = 1.05, 0.3  # what a cause's weight is multiplied by

# In which stage of a request's life a cause would show, and by which end.
IN_STAGES: Mapping[str, tuple[str, ...]] = {
    "slow-steps": ("prefill", "decode"),
    "way-slow": ("queue",),
    "queue-long": ("queue",),
    "prompts-longer": ("tokenize", "prefill"),
    "answers-longer": ("decode",),
    "clients-stall": ("send",),
}
AS_ENDS: Mapping[str, tuple[str, ...]] = {
    "engine-lost": ("engine_lost",),
    "engine-stalls": ("engine_lost",),
    "door-shut": ("refused",),
    "steps-fail": ("failed",),
    "clients-stall": ("stalled",),
    "memory-high": ("memory",),
}

GONE = ("process-gone", "process-hangs")


@dataclass(frozen=True, slots=True)
class RecordedFacts:
    """Of the requests that ended in the window, or have not ended. `shares` of a stage are of the
    time of all of them; `slowest` is (id, ms, its longest stage). `ends` are what became of those
    that failed or were refused, with the ids of some."""

    num: int
    shares: Mapping[str, float]
    slowest: tuple[str, float, str] | None
    ends: Mapping[str, tuple[int, tuple[str, ...]]]
    num_preempted: int

    def of_time(self) -> str:
        """Where it went."""
        most = sorted(self.shares.items(), key=lambda one: -one[1])[:MOST_NAMED]
        text = ", ".join(f"{stage} {share:.0%}" for stage, share in most if share >= LEAST)
        if self.slowest is not None:
            request_id, ms, stage = self.slowest
            text += f"; the slowest is {request_id}, {ms:.0f} ms, most of it {stage}"
        return f"recorder: the time of {self.num} requests is {text}"

    def of_ends(self) -> Iterator[str]:
        for word, (number, ids) in self.ends.items():
            yield f"recorder: {number} × {word}: {', '.join(ids)}"


def sum_up(rows: Iterable[Any], since_s: float) -> RecordedFacts | None:
    """None: nothing was asked since then."""
    spent: defaultdict[str, float] = defaultdict(float)
    ends: Counter[str] = Counter()
    ids: defaultdict[str, list[str]] = defaultdict(list)
    slowest: tuple[str, float, str] | None = None
    num = num_preempted = 0
    for row in rows:
        stages = _stages(row)
        if stages is None or not _ended_since(row, since_s):
            continue
        num += 1
        num_preempted += bool(row.get("preemptions"))
        for name, ms in stages.items():
            spent[name] += ms
        whole_ms = sum(stages.values())
        if slowest is None or whole_ms > slowest[1]:
            slowest = (row["id"], whole_ms, max(stages, key=lambda one: stages[one]))
        status = row.get("status")
        if isinstance(status, int) and status >= 500:
            word = str(row.get("state"))[:40]
            ends[word] += 1
            ids[word] = [*ids[word], row["id"]][:MOST_NAMED]
    whole_ms = sum(spent.values())
    if not num:
        return None
    return RecordedFacts(
        num,
        {name: spent[name] / whole_ms if whole_ms else 0.0 for name in STAGES},
        slowest,
        {word: (number, tuple(ids[word])) for word, number in ends.most_common()},
        num_preempted,
    )


def weighed(cause: str, weight: float, found: RecordedFacts) -> tuple[float, str | None]:
    """The weight of a cause that is seen, after a look at the requests; and what they say of it."""
    if cause in GONE:
        return weight, "; ".join(found.of_ends()) or None
    for word in AS_ENDS.get(cause, ()):
        if word in found.ends:
            number, ids = found.ends[word]
            return min(1.0, weight * BACKED), f"recorder: {number} × {word}: {', '.join(ids)}"
    stages = IN_STAGES.get(cause)
    if stages is None or cause in AS_ENDS:
        return weight, None
    share = sum(found.shares[one] for one in stages)
    if share >= HALF:
        return min(1.0, weight * BACKED), found.of_time()
    return (weight * DOUBTED, found.of_time()) if share < HARDLY else (weight, None)


def _stages(row: Any) -> dict[str, float] | None:
    try:
        found = {str(one["name"]): float(one["ms"]) for one in row["stages"]}
        is_ours = isinstance(row["id"], str) and found.keys() <= set(STAGES) and bool(found)
    except (TypeError, KeyError, ValueError):
        return None
    return found if is_ours else None


def _ended_since(row: Mapping[str, Any], since_s: float) -> bool:
    if row.get("status") is None:
        return True
    try:
        arrived_s = datetime.fromisoformat(str(row["arrived"])).timestamp()
        return arrived_s + float(row["total_ms"]) / 1e3 >= since_s
    except (KeyError, TypeError, ValueError):
        return False
