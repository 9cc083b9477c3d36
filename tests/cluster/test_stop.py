"""The end of a cluster on a real Ray: refused requests, replicas that go, nothing that is left.

Owns: one Ray, which ends in the test. May not know: how a door learns of it. Read next:
`test_owned.py`, who owns a cluster.
"""

from __future__ import annotations

import json
import os
import subprocess
import sys
import time
from pathlib import Path

import httpx
import pytest

from tests.cluster.test_cluster import BODY, FLAGS, READY_S, post, ray_pids, replica_pids, told
from tests.server.processes import PROGRAM, launched

pytestmark = [pytest.mark.native, pytest.mark.process, pytest.mark.slow]


def test_a_cluster_ends_in_seconds_when_nothing_is_under_way(
    micro_folder: Path, tmp_path: Path
) -> None:
    """First its replicas, from elsewhere, then its door; the drain's limit is minutes."""
    home = tmp_path / "home"
    verb = ("cluster", "serve", "--local", "--replicas", "1", "--replica-cpus", "1")
    variables = {"FIRSTHAND_HOME": str(home), "TMPDIR": "/tmp"}
    with launched(tmp_path, str(micro_folder), *FLAGS, verb=verb, **variables) as server:
        server.wait_ready(READY_S)
        note = json.loads((home / "cluster.json").read_text())
        second = [sys.executable, "-c", PROGRAM, *verb[:3], str(micro_folder)]
        refused = subprocess.run(
            second, env=os.environ | variables, capture_output=True, timeout=90, check=False
        )
        assert refused.returncode == 2
        assert f"runs at {note['address']}, by {note['pid']}" in refused.stderr.decode()
        (app,) = (row["app"] for row in told(home, "status")["models"])
        assert told(home, "stop", "--address", note["address"])["ended"] == [app]
        until = time.monotonic() + 30.0
        while replica_pids():
            assert time.monotonic() < until, "nothing holds an idle replica"
            time.sleep(0.1)
        assert httpx.get(server.url + "/readyz", timeout=10).status_code == 503
        answer = post(server, "/v1/completions", BODY)
        assert answer.status_code == 503 and "closed" in answer.text
        assert told(home, "stop")["ended"] == [note["address"]]
        assert server.process.wait(60.0) == 0, server.log.read_text()
        assert not (home / "cluster.json").exists()
        assert not ray_pids()
        for line in server.log.read_text().splitlines():
            json.loads(line)
