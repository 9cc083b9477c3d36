"""The limits of the alerts and who is told, as one file may set them.

Owns: names, defaults, ranges, the reading of the file.
May not know: which rule uses a limit.
Read next: `alerts.py`.

Ratios are 0 … 1, times seconds. `…_for` is how long something must last before it is told. `knee`
in the file names one of `bench knee`, beside it: what it measured sets the limits of latency that
the file does not set itself.
"""

from __future__ import annotations

import math
from dataclasses import fields
from pathlib import Path
from typing import Any
from urllib.parse import urlsplit

from firsthand.checks import check_number, is_integer, meant, shown
from firsthand.errors import InvalidRequest
from firsthand.files import read_text, strict_toml
from firsthand.loadtest.curve import FIT, Curve, read_curve
from firsthand.observe.entry import LATENCY_BUCKETS_S
from firsthand.observe.labels import LOG_EVENTS
from firsthand.values import dataclass

MAX_FILE_BYTES = 1 << 20
KNEE = "knee"
KNEE_FACTOR = 2.0  # past what was measured: one who writes twice as much is no fault of the server
KNEE_FLOORS_S = {"ttft_p99": 1.0, "latency_p99": 10.0, "queue_p95": 0.25}  # nobody wakes for less
SCRAPES_PER_WINDOW = 4  # fewer, and one that is missed leaves a rate without two samples


@dataclass(frozen=True, slots=True)
class AlertSettings:
    """Everything that is not the same for everyone."""

    job: str = "firsthand"
    targets: tuple[str, ...] = ("127.0.0.1:8000",)
    key_file: str = ""  # with an API key, where `/metrics` asks for one
    alertmanager: str = "127.0.0.1:9093"
    scrape_interval: float = 15
    handbook: str = "docs/handbook"  # where the entries of the annotations lie
    # P0: wakes somebody
    down_for: float = 30
    not_ready_for: float = 120
    selfcheck_for: float = 30
    error_ratio: float = 0.10
    error_requests: float = 10  # in the window, at least: of few, each failure is a large part
    error_window: float = 60
    error_for: float = 60
    ttft_p99: float = 10
    latency_p99: float = 120
    latency_window: float = 300
    latency_for: float = 300
    # P1: a message
    error_ratio_low: float = 0.01
    queue_p95: float = 5
    queue_for: float = 300
    refused_ratio: float = 0.05
    refused_for: float = 300
    degradation_level: float = 3
    degradation_for: float = 300
    kv_used_ratio: float = 0.95
    kv_for: float = 300
    memory_used_ratio: float = 0.90
    memory_for: float = 300
    leak_window: float = 900  # in each of three in a row a process has grown
    leak_ratio: float = 0.01  # of itself, by more than this
    leak_ahead: float = 86400  # so soon the memory would be full
    gpu_memory_ratio: float = 0.90
    gpu_memory_for: float = 300
    step_age: float = 60
    step_age_for: float = 30
    restart_window: float = 600
    step_error_window: float = 300
    disk_used_ratio: float = 0.95
    disk_for: float = 60
    lost_window: float = 300
    canary_window: float = 300
    # Off: a busy device is a good one. What hurts is the queue, and that has its own alert.
    gpu_utilization: bool = False
    gpu_utilization_ratio: float = 0.95
    gpu_utilization_for: float = 300
    # P2: is recorded
    slow_request: float = 80
    slow_window: float = 300
    log_events: tuple[str, ...] = ("request_cut", "selfcheck_unanswered")  # besides all errors
    log_window: float = 300
    stalled_window: float = 300
    drill_age: float = 30 * 86400
    # Webhooks
    phone_url: str = "http://127.0.0.1:9095/P0"
    message_url: str = "http://127.0.0.1:9095/P1"
    record_url: str = "http://127.0.0.1:9095/record"

    def __post_init__(self) -> None:
        for one in fields(self):
            value, default = getattr(self, one.name), one.default
            if isinstance(default, float) or is_integer(default):
                most = 1 if one.name.endswith("_ratio") else 4 if "level" in one.name else 1e7
                check_number(one.name, value, 0, most, low_open=True)
            elif one.name.endswith("_url") and urlsplit(value).scheme not in ("http", "https"):
                raise InvalidRequest(one.name, f"must be an http address, not {shown(value)}")
        if self.slow_request not in LATENCY_BUCKETS_S:
            bounds = ", ".join(f"{bound:g}" for bound in LATENCY_BUCKETS_S)
            raise InvalidRequest("slow_request", f"must be a bucket's bound: {bounds}")
        if self.error_ratio_low >= self.error_ratio:
            raise InvalidRequest("error_ratio_low", "must be below error_ratio")
        least_s = SCRAPES_PER_WINDOW * self.scrape_interval
        for name in [one.name for one in fields(self) if one.name.endswith("_window")]:
            if getattr(self, name) < least_s:
                text = f"must be at least {SCRAPES_PER_WINDOW} scrape intervals, {least_s:g} s"
                raise InvalidRequest(name, text)
        for event in self.log_events:
            if event not in LOG_EVENTS:
                known = ", ".join(LOG_EVENTS)
                raise InvalidRequest("log_events", f"{shown(event)} is none of {known}")


def read_alert_settings(file: Path | None) -> AlertSettings:
    """From a TOML file; what it does not say is the default. Raises InvalidRequest."""
    if file is None:
        return AlertSettings()
    try:
        content = strict_toml(read_text(file, "--config", MAX_FILE_BYTES))
    except ValueError as error:
        raise InvalidRequest("--config", f"{file} is no TOML: {error}") from None
    defaults = {one.name: one.default for one in fields(AlertSettings)}
    knee = content.pop(KNEE, None)
    found: dict[str, Any] = {}
    said: dict[str, Any] = {}
    if knee is not None:
        found |= limits_past(read_curve(file.parent / _as(f"{file}: {KNEE}", knee, "")))
    for key, given in content.items():
        name = key.replace("-", "_")
        if name not in defaults:
            hint = meant(name, defaults)
            text = f"no such setting{hint}; docs/observe.md lists them"
            raise InvalidRequest(f"{file}: {shown(key)}", text)
        if name in said:
            raise InvalidRequest(f"{file}: {shown(key)}", "is given twice")
        said[name] = _as(f"{file}: {key}", given, defaults[name])
    return AlertSettings(**found | said)


def limits_past(curve: Curve) -> dict[str, float]:
    """The limits that a server keeps up to its knee, and not beyond: twice what was measured at the
    upper end of the knee's interval, and never below what is worth an alert. A queue's is what a
    first token waits there for others."""
    rate = curve.knee.high
    measured_ms = {
        "ttft_p99": curve.at("p99_ttft_ms", rate),
        "latency_p99": curve.at("p99_e2el_ms", rate),
        "queue_p95": curve.at("p95_ttft_ms", rate) - curve.of(FIT)[0].median_ttft_ms,
    }
    limits = {
        name: _rounded_up(max(KNEE_FACTOR * ms / 1e3, KNEE_FLOORS_S[name]))
        for name, ms in measured_ms.items()
    }
    slow_s = (bound for bound in LATENCY_BUCKETS_S if bound >= limits["latency_p99"])
    return limits | {"slow_request": next(slow_s, LATENCY_BUCKETS_S[-1])}


def _rounded_up(seconds: float) -> float:
    """To two digits."""
    unit = 10.0 ** (math.floor(math.log10(seconds)) - 1)
    return round(math.ceil(seconds / unit - 1e-9) * unit, 6)


def _as(where: str, given: Any, default: Any) -> Any:
    """Of the default's kind; a number's range is checked with the others."""
    if isinstance(default, tuple):
        if isinstance(given, list) and all(isinstance(one, str) for one in given):
            return tuple(given)
        raise InvalidRequest(where, f"must be a list of texts, not {shown(given)}")
    if isinstance(default, str | bool) and not isinstance(given, type(default)):
        kind = "a text" if isinstance(default, str) else "true or false"
        raise InvalidRequest(where, f"must be {kind}, not {shown(given)}")
    return given
