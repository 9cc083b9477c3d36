"""S106: replicas of one node share a download and a packed file; the next start needs neither."""

from __future__ import annotations

import json
import subprocess
import sys
import time
from collections.abc import Iterator
from pathlib import Path

import pytest

from firsthand.cli.micro_model import write_micro_model
from firsthand.cluster.node_model import bring
from firsthand.config import child_environment
from firsthand.errors import BadHash
from tests.weights.object_server import BUCKET, ObjectServer, object_server

pytest.importorskip("obstore")
pytest.importorskip("moto")
pytestmark = [
    pytest.mark.native,
    pytest.mark.oracle,
    pytest.mark.process,
    pytest.mark.filterwarnings("ignore::DeprecationWarning"),
    pytest.mark.filterwarnings("ignore::ResourceWarning"),
]

MODEL = f"s3://{BUCKET}/team/micro"
START = """
import json, sys, warnings
from firsthand.cluster.node_model import bring
from firsthand.weights import packed_cache
packed_cache._TICK_NS = packed_cache.SPARE_DISK_BYTES = 0
found = bring(sys.argv[1], "auto")
print(json.dumps({"version": found.version, "path": str(found.model.path)}))
"""


@pytest.fixture
def server(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Iterator[ObjectServer]:
    folder = tmp_path / "micro"
    folder.mkdir()
    with object_server() as running:
        for path in write_micro_model(folder).iterdir():
            running.put(f"team/micro/{path.name}", path.read_bytes())
        monkeypatch.setenv("AWS_ACCESS_KEY_ID", "key")
        monkeypatch.setenv("AWS_SECRET_ACCESS_KEY", "secret")
        monkeypatch.setenv("AWS_REGION", "us-east-1")
        monkeypatch.setenv("AWS_ENDPOINT_URL", running.url)
        monkeypatch.setenv("FIRSTHAND_HOME", str(tmp_path / "home"))
        monkeypatch.setattr("firsthand.weights.packed_cache._TICK_NS", 0)
        monkeypatch.setattr("firsthand.weights.packed_cache.SPARE_DISK_BYTES", 0)
        yield running


@pytest.mark.slow
def test_two_replicas_of_a_node_fetch_and_pack_once(server: ObjectServer, tmp_path: Path) -> None:
    server.on_get = lambda key, count: lambda: time.sleep(0.3)  # both are there meanwhile
    starts = [
        subprocess.Popen(
            [sys.executable, "-c", START, MODEL],
            env=child_environment({}),
            stdout=subprocess.PIPE,
            text=True,
        )
        for _ in range(2)
    ]
    said = [json.loads(one.communicate(timeout=120)[0]) for one in starts]
    assert [one.returncode for one in starts] == [0, 0]
    assert said[0] == said[1]
    assert len(server.ranges) == len(set(server.ranges)), "no range twice"
    (packed,) = (tmp_path / "home" / "packed").glob("*.packed")
    before = packed.stat()

    server.ranges.clear()
    again = bring(MODEL, "auto", said[0]["version"])
    assert str(again.model.path) == said[0]["path"]
    assert server.ranges == []
    now = packed.stat()
    assert (now.st_ino, now.st_mtime_ns) == (before.st_ino, before.st_mtime_ns)


def test_a_name_that_means_another_version_by_now_is_refused(
    server: ObjectServer, tmp_path: Path
) -> None:
    first = bring(MODEL, None)
    server.put("team/micro/config.json", (tmp_path / "micro/config.json").read_bytes() + b"\n")
    assert bring(MODEL, None, first.version).version == first.version, "what is here is right"
    with pytest.raises(BadHash, match="the others serve another"):
        bring(MODEL, None, "another")
    assert bring(MODEL, None).version != first.version


def test_a_path_is_taken_as_it_is(tmp_path: Path) -> None:
    folder = tmp_path / "micro"
    folder.mkdir()
    found = bring(str(write_micro_model(folder)), None)
    assert (found.version, found.model.path) == (None, folder)
