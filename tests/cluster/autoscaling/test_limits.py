"""Limits: from a file, from a knee, refused by name."""

from __future__ import annotations

import json
from pathlib import Path

import pytest

from firsthand.cluster.autoscaling.limits import LEAST_TTFT_MS, Limits, limits_at, read_limits
from firsthand.errors import InvalidRequest
from firsthand.observe.alert_settings import limits_past
from tests.loadtest.test_curve import curve


def test_a_knee_sets_what_a_replica_carries_and_who_scales_in_time_wakes_nobody() -> None:
    found = limits_at(curve())
    assert 1 <= found["ongoing_out"] <= curve().ongoing_requests
    assert found["queue_out"] == found["ongoing_out"]
    assert LEAST_TTFT_MS <= found["p99_ttft_ms"] <= limits_past(curve())["ttft_p99"] * 1e3
    Limits(**found)


def test_a_file_names_a_knee_beside_it_and_says_more(tmp_path: Path) -> None:
    (tmp_path / "knee.json").write_text(json.dumps(curve().to_dict()))
    file = tmp_path / "scaling.toml"
    file.write_text('knee = "knee.json"\nmax-replicas = 9\nqueue_out = 3.5\n')
    found = read_limits(file)
    assert (found.max_replicas, found.queue_out) == (9, 3.5)
    assert found.ongoing_out == limits_at(curve())["ongoing_out"]


@pytest.mark.parametrize(
    ("text", "said"),
    [
        ("max-replica = 3", "did you mean max-replicas"),
        ("max-replicas = 0", "max_replicas"),
        ("min-replicas = 5", "max_replicas"),
        ("min-replicas = 0", "min_replicas"),
        ("out-cooldown-s = 100", "in_cooldown_s"),
        ("look-back-s = 10", "look_back_s"),
        ("in-share = 1.5", "in_share"),
        ("queue-empty = 17", "queue_empty"),
        ("out-factor = 1", "out_factor"),
        ("stale-s = nan", "stale_s"),
        ("knee = 3", "knee"),
        ('knee = "none.json"', "none.json"),
        ("= 3", "is no TOML"),
        ("max-replicas = " + "9" * 5000, "is no TOML"),
        ("max-replicas = " + "[" * 5000, "is no TOML"),
        ("max-replicas = 3\nmax_replicas = 4", "is given twice"),
    ],
)
def test_what_is_wrong_is_named(tmp_path: Path, text: str, said: str) -> None:
    file = tmp_path / "scaling.toml"
    file.write_text(text)
    with pytest.raises(InvalidRequest, match=r"scaling\.toml|none\.json") as caught:
        read_limits(file)
    assert said in f"{caught.value.field} {caught.value.message}"
