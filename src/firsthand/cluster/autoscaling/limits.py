"""When replicas are added and taken away: the limits, from a file, from a knee, or as they are.

Owns: names, defaults, ranges, the reading of the file, what a measured knee makes of them.
May not know: how a decision is made.
Read next: `policy.py`.
"""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import fields
from pathlib import Path
from typing import Any

from firsthand.checks import check_integer, check_number, meant, shown
from firsthand.errors import InvalidRequest
from firsthand.files import read_text, strict_toml
from firsthand.loadtest.curve import Curve, read_curve
from firsthand.values import dataclass

MAX_REPLICAS = 1000
MAX_S = 86_400.0
MAX_FILE_BYTES = 1 << 20
KNEE = "knee"
LEAST_COOLDOWNS = 5.0  # adding is cheap; who is taken away has work, and was started for a reason
KNEE_SHARE = 0.8  # of what is under way at the knee: beyond that the next replica comes too late
LEAST_TTFT_MS = 500.0  # nobody is added for less


@dataclass(frozen=True, slots=True)
class Limits:
    """`…_out` are for each replica: beyond that one is added. `ongoing_out`: requests under way,
    waiting ones among them; the default is how many run at once unless memory is short.
    `queue_out`: of those that wait. `cpu_out`, `device_out`: shares 0 … 1, None: not looked at,
    as a computing engine uses all of both at any load. `p99_ttft_ms`: counts only while replicas
    are busy, since more of them help nobody else. Times are seconds.

    Some are added when they have been needed for `confirm_s`, at most `out_factor` times as many as
    there are; `start_s`: in which one should be ready; others wait for it. One is taken away
    when nothing has waited for `empty_s` (`queue_empty` in all are nothing: a request waits for a
    step), nothing has changed for `in_cooldown_s`, and the others would carry the highest load of
    `look_back_s` with `in_share` of what is allowed. Readings older than `stale_s` are none. Raises
    InvalidRequest."""

    min_replicas: int = 1
    max_replicas: int = 4
    ongoing_out: float = 16.0
    queue_out: float = 16.0
    queue_empty: float = 1.0
    cpu_out: float | None = None
    device_out: float | None = None
    p99_ttft_ms: float | None = None
    confirm_s: float = 5.0
    out_factor: float = 2.0
    out_cooldown_s: float = 30.0
    start_s: float = 60.0
    in_share: float = 0.7
    in_cooldown_s: float = 300.0
    empty_s: float = 180.0
    look_back_s: float = 600.0
    stale_s: float = 15.0

    def __post_init__(self) -> None:
        check_integer("min_replicas", self.min_replicas, 1, MAX_REPLICAS)
        check_integer("max_replicas", self.max_replicas, self.min_replicas, MAX_REPLICAS)
        for name in ("ongoing_out", "queue_out", "p99_ttft_ms"):
            if getattr(self, name) is not None:
                check_number(name, getattr(self, name), 0, 1e9, low_open=True)
        for name in ("cpu_out", "device_out", "in_share"):
            if getattr(self, name) is not None:
                check_number(name, getattr(self, name), 0, 1, low_open=True)
        check_number("queue_empty", self.queue_empty, 0, self.queue_out)
        check_number("out_factor", self.out_factor, 1, 100, low_open=True)
        for name in ("start_s", "confirm_s"):
            check_number(name, getattr(self, name), 0, MAX_S)
        for name in ("out_cooldown_s", "empty_s", "stale_s"):
            check_number(name, getattr(self, name), 0, MAX_S, low_open=True)
        least_s = LEAST_COOLDOWNS * self.out_cooldown_s
        check_number("in_cooldown_s", self.in_cooldown_s, least_s, LEAST_COOLDOWNS * MAX_S)
        check_number("look_back_s", self.look_back_s, self.empty_s, MAX_S)


def limits_at(curve: Curve) -> dict[str, Any]:
    """What a measured knee says: replicas carry most of what one had under way at the lower end of
    the knee's interval, as many may wait again, and the first token may take what it took at the
    upper end. The alerts' limits are twice that: who scales in time wakes nobody."""
    low = curve.knee.low
    ongoing = max(1.0, KNEE_SHARE * low * curve.at("mean_e2el_ms", low) / 1e3)
    slow_ms = max(LEAST_TTFT_MS, curve.at("p99_ttft_ms", curve.knee.high))
    return {"ongoing_out": ongoing, "queue_out": ongoing, "p99_ttft_ms": slow_ms}


def usual_limits(num_sequences: int | None) -> dict[str, Any]:
    """Where it is said how many run at once in a replica: more than those are too many. A door
    refuses who would wait for long, so there may never be as many as usual."""
    usual = Limits()
    return {} if num_sequences is None else {"ongoing_out": min(usual.ongoing_out, num_sequences)}


def read_limits(file: Path, usual: Mapping[str, Any] | None = None) -> Limits:
    """From a TOML file of the fields' names; what it does not say is what the knee says that it
    names (`knee = "knee.json"`, beside it), then the usual, then the default. Raises
    InvalidRequest."""
    try:
        content = strict_toml(read_text(file, "scaling", MAX_FILE_BYTES))
    except ValueError as error:
        raise InvalidRequest(str(file), f"is no TOML: {error}") from None
    found: dict[str, Any] = dict(usual or {})
    said: dict[str, Any] = {}
    knee = content.pop(KNEE, None)
    if knee is not None:
        if not isinstance(knee, str):
            raise InvalidRequest(f"{file}: {KNEE}", f"must be a text, not {shown(knee)}")
        found |= limits_at(read_curve(file.parent / knee))
    names = [one.name for one in fields(Limits)]
    for key, value in content.items():
        name = key.replace("-", "_")
        if name not in names:
            raise InvalidRequest(f"{file}: {shown(key)}", f"no such limit{meant(name, names)}")
        if name in said:
            raise InvalidRequest(f"{file}: {shown(key)}", "is given twice")
        said[name] = value
    try:
        return Limits(**found | said)
    except InvalidRequest as error:
        raise InvalidRequest(f"{file}: {error.field}", error.message) from None
