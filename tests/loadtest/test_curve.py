"""The knee file: written, read, refused by name; and what alerts take from it."""

from __future__ import annotations

import json
import os
from dataclasses import asdict, replace
from pathlib import Path
from typing import Any

import pytest

from firsthand.errors import InvalidRequest
from firsthand.loadtest.curve import Curve, Knee, Step, read_curve
from firsthand.observe.alert_settings import AlertSettings, limits_past, read_alert_settings

E2EL_MS = TTFT_MS = 100.0
# fmt: off
FLAT = Step(
    1.0, 10.0, 10, 0, 1.0, 40.0, E2EL_MS, E2EL_MS, E2EL_MS, E2EL_MS, E2EL_MS,
    TTFT_MS, TTFT_MS, TTFT_MS, 5.0, 5.0, "fit",
)
# fmt: on


def step(rate: float, ttft_ms: float, e2el_ms: float, **changes: Any) -> Step:
    return replace(
        FLAT,
        rate=rate,
        judged_ms=e2el_ms,
        mean_e2el_ms=e2el_ms,
        p99_e2el_ms=2 * e2el_ms,
        median_ttft_ms=ttft_ms,
        p95_ttft_ms=2 * ttft_ms,
        p99_ttft_ms=3 * ttft_ms,
        **changes,
    )


def curve() -> Curve:
    steps = (
        step(1, 999, 999, kind="ramp"),
        step(4, 10, 100),
        step(8, 20, 200),
        step(12, 220, 400),
        step(4, 10, 100, kind="bursts"),
        step(7, 40, 200, kind="bursts"),
    )
    return Curve("micro", 8, 4, Knee(9.0, 8.0, 10.0), steps)


def test_a_file_is_read_as_it_was_written(tmp_path: Path) -> None:
    file = tmp_path / "knee.json"
    file.write_text(json.dumps(curve().to_dict()), encoding="utf-8")
    assert read_curve(file) == curve()


def test_between_rates_and_beyond_them() -> None:
    found = curve()
    assert found.at("median_ttft_ms", 6) == 15
    assert found.at("median_ttft_ms", 1) == 10
    assert found.at("median_ttft_ms", 99) == 220
    assert found.ongoing_requests == pytest.approx(9 * 0.25)
    assert found.rate_within("median_ttft_ms", 20) == 5, "with bursts"
    assert found.rate_within("median_ttft_ms", 9) == 0
    assert found.rate_within("median_ttft_ms", 1e9) == 7


@pytest.mark.parametrize(
    ("change", "field"),
    [
        ({"version": 2}, "version"),
        ({"model": 3}, "model"),
        ({"knee": {"rate": 1}}, "knee"),
        ({"knee": {"rate": 1, "low": 2, "high": 3}}, "rate"),
        ({"knee": {"rate": -1, "low": -2, "high": 3}}, "low"),
        ({"knee": {"rate": 1e-300, "low": 1e-300, "high": 3}}, "low"),
        ({"knee": {"rate": 9, "low": 8, "high": 1e9}}, "within the rates"),
        ({"steps": 7}, "steps"),
        ({"steps": []}, "steps"),
        ({"steps": [{"rate": 1}]}, "steps"),
        ({"output_tokens": 0}, "output_tokens"),
        ({"output_tokens": True}, "output_tokens"),
        ({"steps": [asdict(FLAT), asdict(FLAT)]}, "different rates"),
        ({"steps": [asdict(FLAT) | {"kind": "odd"}]}, "kind"),
    ],
)
def test_a_damaged_file_is_refused_by_name(
    tmp_path: Path, change: dict[str, Any], field: str
) -> None:
    file = tmp_path / "knee.json"
    file.write_text(json.dumps(curve().to_dict() | change), encoding="utf-8")
    with pytest.raises(InvalidRequest, match=field):
        read_curve(file)


@pytest.mark.parametrize(
    "content",
    [
        *("", "[", "[1]", "[" * 100_000, '{"version": 1e999}', '{"version": 2, "version": 1}'),
        '{"version": NaN}',
    ],
)
def test_no_knee_file(tmp_path: Path, content: str) -> None:
    file = tmp_path / "knee.json"
    file.write_text(content, encoding="utf-8")
    with pytest.raises(InvalidRequest, match=r"knee\.json"):
        read_curve(file)
    with pytest.raises(InvalidRequest, match="cannot be opened"):
        read_curve(tmp_path / "none")
    os.mkfifo(tmp_path / "pipe")
    with pytest.raises(InvalidRequest, match="not a regular file"):
        read_curve(tmp_path / "pipe")


def test_s68_the_knee_sets_the_limits_of_the_alerts(tmp_path: Path) -> None:
    (tmp_path / "knee.json").write_text(json.dumps(curve().to_dict()), encoding="utf-8")
    config = tmp_path / "alerts.toml"
    config.write_text('knee = "knee.json"\nlatency-p99 = 7\n', encoding="utf-8")
    found = read_alert_settings(config)
    # At 10 requests/s: P99 of the first token 360 ms, of the answer 600; 230 of a queue.
    assert found.ttft_p99 == 1.0, "nobody is woken for less"
    assert found.latency_p99 == 7, "what the file says itself stands"
    assert found.queue_p95 == 0.46, "twice"
    assert found.slow_request == 10
    assert limits_past(curve())["latency_p99"] == 10
    config.write_text("knee = 3\n", encoding="utf-8")
    with pytest.raises(InvalidRequest, match="knee"):
        read_alert_settings(config)
    assert AlertSettings().ttft_p99 == 10, "without a knee the defaults stand"
