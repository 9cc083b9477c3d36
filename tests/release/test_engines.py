"""Another engine's release: its own environment, and the listening socket handed over (S113)."""

from __future__ import annotations

import os
import signal
import socket
import subprocess
import sys
import threading
import time
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import Any

import httpx
import pytest

from firsthand.errors import ReleaseRefused
from firsthand.release.engines import command, note_engine, python_for, python_of
from firsthand.release.store import Store
from firsthand.version import VERSION
from tests.release.conftest import Stage
from tests.release.environments import environment, told
from tests.release.traffic import Traffic
from tests.server.processes import Server, runs

NEW = "99.0.0"


def test_the_engine_that_stages_is_written_down(store: Store, staged: Stage) -> None:
    staged(1)
    assert (store.root / "engines" / VERSION).read_text() == sys.executable
    assert python_for([str(store.folder(1))]) is None
    with pytest.raises(ReleaseRefused, match=r"no environment with engine 98\.0\.0 is known"):
        python_of(store.root, "98.0.0")


def test_an_environment_that_is_gone_or_another_one_is_refused(
    store: Store, tmp_path: Path
) -> None:
    note_engine(store.root)
    for name, python, says in (
        ("97.0.0", tmp_path / "gone", "No such file"),
        ("96.0.0", tmp_path / "python", "2.0"),
    ):
        (store.root / "engines" / name).write_text(str(python))
        if name == "96.0.0":
            python.write_text("#!/bin/sh\necho 2.0\n")
            python.chmod(0o755)
        with pytest.raises(ReleaseRefused, match=f"should have engine {name}: .*{says}"):
            python_of(store.root, name)


@pytest.fixture(scope="module")
def engines(tmp_path_factory: pytest.TempPathFactory) -> tuple[Path, Path]:
    """Two real environments."""
    folder = tmp_path_factory.mktemp("engines")
    return environment(folder / "old", VERSION), environment(folder / "new", NEW)


@pytest.fixture(scope="module")
def two(
    engines: tuple[Path, Path], models: Path, tmp_path_factory: pytest.TempPathFactory
) -> Store:
    """A release of each engine; the third is of the new one, and cannot be loaded."""
    from firsthand.cli.micro_model import write_micro_model

    store = tmp_path_factory.mktemp("two") / "store"
    config = store.parent / "bad.toml"
    config.write_text('memory-limit = "1MiB"\n')
    for seed, python, more in (
        (1, engines[0], ()),
        (2, engines[1], ()),
        (3, engines[1], ("--config", str(config), "--no-golden")),
    ):
        folder = models / f"model-{seed}"
        if not folder.exists():
            folder.mkdir()
            write_micro_model(folder, seed)
        told(python, "release", "stage", str(store), str(folder), "--name", "micro", *more)
    return Store(store)


@contextmanager
def served(folder: Path, store: Store, python: Path) -> Iterator[Server]:
    """By `STORE/current`, as a service manager would."""
    with socket.socket() as free:
        free.bind(("127.0.0.1", 0))
        port = free.getsockname()[1]
    arguments = [
        *("serve", str(store.root / "current"), "--port", str(port), "--threads", "1"),
        *("--log-format", "json", "--admin-socket", str(folder / "admin")),
    ]
    with (folder / "log").open("w") as out:
        process = subprocess.Popen(command(python, arguments), stdout=out, stderr=out, text=True)
    server = Server(process, port, folder / "log")
    try:
        server.wait_ready(300)
        yield server
    finally:
        left = _family(process.pid)
        process.kill()
        process.wait()
        for pid in left:
            if runs(pid):
                os.kill(pid, signal.SIGKILL)


def _family(pid: int) -> list[int]:
    """The processes below it."""
    found = []
    try:
        text = Path(f"/proc/{pid}/task/{pid}/children").read_text()
    except OSError:
        return []
    for child in map(int, text.split()):
        found += [child, *_family(child)]
    return found


@pytest.mark.slow
@pytest.mark.process
@pytest.mark.native
def test_the_socket_is_handed_over_and_back_and_no_request_is_lost(
    two: Store, engines: tuple[Path, Path], tmp_path: Path
) -> None:
    """Also whoever is in the middle of an answer, or has a connection open, is answered."""
    old, new = two.read(1), two.read(2)
    told(engines[0], "release", "promote", str(two.root), "1")
    admin = ("--admin-socket", str(tmp_path / "admin"))
    with served(tmp_path, two, engines[0]) as server, Traffic(server) as traffic:
        traffic.wait(old)
        with long_stream(server) as lines:
            with pytest.raises(AssertionError, match=r"the server goes on as it was.*memory"):
                told(engines[1], "release", "promote", str(two.root), "3", "--force", *admin)
            traffic.wait(old)
            line = told(engines[1], "release", "promote", str(two.root), "2", "--force", *admin)
            assert (line["server"]["how"], line["server"]["engine"]) == ("handed over", NEW)
            traffic.wait(new)
            assert version(server) == NEW
            assert lines.end().endswith("[DONE]")
        line = told(engines[1], "release", "rollback", str(two.root), *admin)
        assert line["server"]["engine"] == VERSION
        traffic.wait(old)
        assert version(server) == VERSION
        assert traffic.failed == []
        wait_for(lambda: command_line(server.process.pid).find("keeper.py") > 0)
        wait_for(lambda: len(_servers(server.process.pid)) == 1)
    with served(tmp_path, two, engines[0]) as server:
        told(engines[1], "release", "promote", str(two.root), "2", "--force", *admin)
        below = _family(server.process.pid)
        code, _ = server.end(signal.SIGTERM, 60)
        assert code == 0
        wait_for(lambda: not any(map(runs, below)))
        assert not (tmp_path / "admin").exists()
    with served(tmp_path, two, engines[0]) as server:  # the old command, the new engine
        assert version(server) == NEW
        assert server.process.poll() is None


@pytest.mark.slow
@pytest.mark.process
@pytest.mark.native
def test_a_drill_goes_to_another_engine_and_back(two: Store, engines: tuple[Path, Path]) -> None:
    told(engines[0], "release", "promote", str(two.root), "1", "--force")
    report = told(engines[0], "release", "drill", str(two.root), "2")
    assert report["passed"]
    assert report["num_failed"] == 0
    checks = {one["check"]: one["detail"] for one in report["findings"]}
    assert checks["configuration of 2"] == f"engine {NEW} reads it"


class Lines:
    """One answer, read in another thread to its end."""

    def __init__(self, response: httpx.Response) -> None:
        self._lines: list[str] = []
        self._thread = threading.Thread(target=lambda: self._lines.extend(response.iter_lines()))
        self._thread.start()

    def end(self) -> str:
        self._thread.join(120)
        return [line for line in self._lines if line][-1]


@contextmanager
def long_stream(server: Server) -> Iterator[Lines]:
    body = {"prompt": "abc", "max_tokens": 100, "stream": True, "ignore_eos": True}
    with httpx.stream("POST", server.url + "/v1/completions", json=body, timeout=120) as response:
        assert response.status_code == 200
        lines = Lines(response)
        yield lines
        lines.end()


def version(server: Server) -> str:
    """Of whoever answers a new connection."""
    return str(httpx.get(server.url + "/version", timeout=30).json()["version"])


def command_line(pid: int) -> str:
    return Path(f"/proc/{pid}/cmdline").read_text()


def _servers(pid: int) -> list[int]:
    return [one for one in _family(pid) if "\0serve\0" in command_line(one)]


def wait_for(holds: Any, limit_s: float = 60.0) -> None:
    until = time.monotonic() + limit_s
    while not holds():
        assert time.monotonic() < until
        time.sleep(0.05)
