"""`cluster serve`: how many replicas, refused by name before any Ray is started."""

from __future__ import annotations

from pathlib import Path

import pytest

from firsthand.cli.cluster import scaled_by
from firsthand.cli.main import run_command
from firsthand.cluster.autoscaling.limits import Limits
from firsthand.errors import InvalidRequest


def test_a_load_decides_only_where_that_is_asked_for(tmp_path: Path) -> None:
    file = tmp_path / "scaling.toml"
    file.write_text("max-replicas = 9\nqueue-out = 3\n")
    assert scaled_by(None, None, None, 8) is None
    assert scaled_by(None, None, 3, None) == Limits(max_replicas=3)
    assert scaled_by(None, None, 3, 8) == Limits(max_replicas=3, ongoing_out=8)
    assert scaled_by(file, 2, None, 64) == Limits(min_replicas=2, max_replicas=9, queue_out=3)
    with pytest.raises(InvalidRequest, match="max_replicas"):
        scaled_by(file, 10, None, None)


@pytest.mark.parametrize(
    ("flags", "said"),
    [
        (("--replicas", "2", "--max-replicas", "3"), "replicas"),
        (("--max-replicas", "0"), "max_replicas"),
        (("--scaling", "none.toml"), "none.toml"),
        (("--replicas", "0"), "replicas"),
        (("--replica-cpus", "0"), "replica_cpus"),
    ],
)
def test_what_is_wrong_is_named(
    flags: tuple[str, ...], said: str, capsys: pytest.CaptureFixture[str]
) -> None:
    assert run_command(["cluster", "serve", "smollm2-135m", "--local", *flags]) == 2
    assert said in capsys.readouterr().err
