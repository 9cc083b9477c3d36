"""Another engine's release: its own environment, and the listening socket handed over (S113)."""

from __future__ import annotations

import http.client
import json
import os
import shutil
import signal
import socket
import ssl
import subprocess
import sys
import threading
import time
from collections.abc import Callable, Iterator
from concurrent.futures import ThreadPoolExecutor
from contextlib import contextmanager
from pathlib import Path
from typing import Any

import httpx
import pytest

from firsthand.errors import ReleaseRefused
from firsthand.release.engines import command, note_engine, python_for, python_of
from firsthand.release.sockets import AdminSocket
from firsthand.release.store import Store
from firsthand.version import VERSION
from tests.release.conftest import Stage
from tests.release.environments import environment, told
from tests.release.traffic import Traffic
from tests.server.authority import Authority
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
        folder = models / f"long-{seed}"
        if not folder.exists():
            folder.mkdir()
            write_micro_model(folder, seed, context_length=8192)
        told(python, "release", "stage", str(store), str(folder), "--name", "micro", *more)
    return Store(store)


@contextmanager
def served(
    folder: Path, store: Store, python: Path, *flags: str, secure: ssl.SSLContext | None = None
) -> Iterator[Server]:
    """By `STORE/current`, as a service manager would."""
    with socket.socket() as free:
        free.bind(("127.0.0.1", 0))
        port = free.getsockname()[1]
    arguments = [
        *("serve", str(store.root / "current"), "--port", str(port), "--threads", "1"),
        *("--log-format", "json", "--admin-socket", str(folder / "admin"), *flags),
    ]
    with (folder / "log").open("w") as out:
        process = subprocess.Popen(command(python, arguments), stdout=out, stderr=out, text=True)
    server = Server(process, port, folder / "log", secure)
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
@pytest.mark.skipif(shutil.which("openssl") is None, reason="needs the openssl command")
def test_the_socket_is_handed_over_and_back_and_no_request_is_lost(
    two: Store, engines: tuple[Path, Path], tmp_path: Path
) -> None:
    """Over TLS; without, a drill does it."""
    old, new = two.read(1), two.read(2)
    told(engines[0], "release", "promote", str(two.root), "1")
    authority = Authority(tmp_path / "authority")
    certificate, key = authority.issue("server")
    secure = ssl.create_default_context(cafile=str(authority.file))
    flags = ("--ssl-certfile", str(certificate), "--ssl-keyfile", str(key))
    patient = ("--timeout-keep-alive", "300", "--receive-timeout", "45")
    admin = ("--admin-socket", str(tmp_path / "admin"))

    def promote(release: str) -> dict[str, Any]:
        return told(engines[1], "release", "promote", str(two.root), release, "--force", *admin)

    with (
        served(tmp_path, two, engines[0], *flags, *patient, secure=secure) as server,
        Traffic(server) as traffic,
    ):
        traffic.wait(old)
        with pytest.raises(AssertionError, match=r"the server goes on as it was.*memory"):
            promote("3")
        with pytest.raises(ReleaseRefused, match=f"release 2 is of engine {NEW}.*release drill"):
            AdminSocket(tmp_path / "admin").canary(two.folder(2), None, "5%", "request")
        traffic.wait(old)
        line = under_all(server, authority, lambda: promote("2"))
        assert (line["server"]["how"], line["server"]["engine"]) == ("handed over", NEW)
        traffic.wait(new)
        assert version(server) == NEW
        rollback = ("release", "rollback", str(two.root), *admin)
        line = under_all(server, authority, lambda: told(engines[1], *rollback))
        assert line["server"]["engine"] == VERSION
        traffic.wait(old)
        assert version(server) == VERSION
        wait_for(lambda: command_line(server.process.pid).find("keeper.py") > 0)
        wait_for(lambda: len(_servers(server.process.pid)) == 1)
        renew(server, authority)
        assert traffic.failed == []
        assert all(line["needs_restart"] == [] for line in server.told("reload"))
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


TLS = (ssl.TLSVersion.TLSv1_2, ssl.TLSVersion.TLSv1_3)


def under_all(
    server: Server, authority: Authority, change: Callable[[], dict[str, Any]]
) -> dict[str, Any]:
    """What a handover gives, under every kind of client: one that streams, those that have a
    connection open and say nothing, one in the middle of its handshake, and those that come again
    with their session. While the other engine loads, the certificate is renewed."""
    before, num_begun = version(server), len(server.told("listening"))
    secure = ssl.create_default_context(cafile=str(authority.file))
    idle = [Kept(server, secure) for _ in range(2)]
    again = [Returning(server, secure_as(authority, kind)) for kind in TLS]
    with opened(server) as begun, ThreadPoolExecutor(1) as pool:
        assert version(server) == before  # so `begun`, which came first, was taken there
        changing = pool.submit(change)
        wait_for(lambda: len(server.told("listening")) > num_begun)  # its settings are read
        with long_stream(server) as lines:
            renew(server, authority)
            found = changing.result(300)
            assert shown(server) == authority.of("server")
            assert idle[0].ask() == (before, "close")
            assert [one.ask(server) for one in again] == [200, 200]
            time.sleep(1.5)  # longer than the old one stays for who is not there yet
            with secure.wrap_socket(begun, server_hostname="127.0.0.1") as late:
                assert Kept(server, secure, late).ask() == (before, "close")
            assert lines.end().endswith("[DONE]")
    assert idle[1].ask() == (before, "close")
    return found


def renew(server: Server, authority: Authority) -> None:
    """The certificate in its place, which the server is told by its signal."""
    authority.issue("server")
    server.process.send_signal(signal.SIGHUP)
    wait_for(lambda: shown(server) == authority.of("server"))


def secure_as(authority: Authority, version: ssl.TLSVersion) -> ssl.SSLContext:
    context = ssl.create_default_context(cafile=str(authority.file))
    context.minimum_version = context.maximum_version = version
    return context


def opened(server: Server) -> socket.socket:
    return socket.create_connection(("127.0.0.1", server.port), 60)


def shown(server: Server) -> str:
    """The certificate that a new connection gets."""
    return ssl.get_server_certificate(("127.0.0.1", server.port), timeout=60)


class Kept:
    """A connection that stays open, already secure or made so, and asked on once."""

    def __init__(
        self, server: Server, secure: ssl.SSLContext, given: ssl.SSLSocket | None = None
    ) -> None:
        self._connection = http.client.HTTPSConnection(
            "127.0.0.1", server.port, context=secure, timeout=60
        )
        if given is None:
            self._connection.connect()
            self.ask()
        else:
            self._connection.sock = given

    def ask(self) -> tuple[str, str | None]:
        """The engine's version, and what becomes of the connection."""
        self._connection.request("GET", "/version")
        answer = self._connection.getresponse()
        return json.loads(answer.read())["version"], answer.headers["connection"]


class Returning:
    """A client that comes again with the session of its last visit."""

    def __init__(self, server: Server, secure: ssl.SSLContext) -> None:
        self._secure = secure
        self._session: ssl.SSLSession | None = None
        self.ask(server)
        assert self._session is not None

    def ask(self, server: Server) -> int:
        with (
            opened(server) as plain,
            self._secure.wrap_socket(
                plain, server_hostname="127.0.0.1", session=self._session
            ) as one,
        ):
            one.sendall(b"GET /livez HTTP/1.1\r\nHost: localhost\r\nConnection: close\r\n\r\n")
            answer = one.recv(65536)
            self._session = one.session
        return int(answer.split()[1])


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
    body = {"prompt": "abc", "max_tokens": 4000, "stream": True, "ignore_eos": True}
    url, verify = server.url + "/v1/completions", server.verify
    with httpx.stream("POST", url, json=body, timeout=120, verify=verify) as response:
        assert response.status_code == 200
        lines = Lines(response)
        yield lines
        lines.end()


def version(server: Server) -> str:
    """Of whoever answers a new connection."""
    answer = httpx.get(server.url + "/version", timeout=30, verify=server.verify)
    return str(answer.json()["version"])


def command_line(pid: int) -> str:
    return Path(f"/proc/{pid}/cmdline").read_text()


def _servers(pid: int) -> list[int]:
    return [one for one in _family(pid) if "\0serve\0" in command_line(one)]


def wait_for(holds: Any, limit_s: float = 60.0) -> None:
    until = time.monotonic() + limit_s
    while not holds():
        assert time.monotonic() < until
        time.sleep(0.05)
