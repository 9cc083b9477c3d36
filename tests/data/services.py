"""Real servers on ports of their own, for as long as a test module needs them.

Owns: how each is started, and that it is ended. May not know: what is asked. Read next:
`test_services.py`. What is not installed is left out; `make test` installs it.
"""

from __future__ import annotations

import os
import shutil
import socket
import sqlite3
import subprocess
import tempfile
from collections.abc import Iterator, Sequence
from contextlib import AbstractContextManager, ExitStack, closing, contextmanager
from pathlib import Path
from typing import Any

import psycopg
import pytest

from tests.observe.monitoring import free_port, until

POSTGRES = next(iter(sorted(Path("/usr/lib/postgresql").glob("*/bin"), reverse=True)), None)
RABBITMQ = "lib/rabbitmq_server-*/sbin/rabbitmq-server"  # not the script that changes the user


def needs(program: str) -> str:
    found = shutil.which(program)
    if found is None:
        pytest.skip(f"needs {program}")
    return found


@contextmanager
def started(
    command: Sequence[str],
    port: int,
    environment: dict[str, str] | None = None,
    owner: str | None = None,
) -> Iterator[int]:
    """Until it takes connections; ended afterwards. `owner`: whose process it is."""
    process = subprocess.Popen(
        command,
        stdout=subprocess.DEVNULL,
        stderr=subprocess.DEVNULL,
        env=None if environment is None else {**os.environ, **environment},
        user=owner,
        group=owner,
    )
    try:
        until(lambda: takes_connections(port) or process.poll() is not None, command[0], 120.0)
        assert process.poll() is None, f"{command[0]} ended"
        yield port
    finally:
        process.terminate()
        try:
            process.wait(30)
        except subprocess.TimeoutExpired:
            process.kill()
            process.wait()


def takes_connections(port: int) -> bool:
    with socket.socket() as one:
        return one.connect_ex(("127.0.0.1", port)) == 0


@contextmanager
def redis_server(folder: Path) -> Iterator[str]:
    port = free_port()
    command = [needs("redis-server"), "--port", str(port), "--save", "", "--dir", str(folder)]
    with started(command, port):
        yield f"redis://127.0.0.1:{port}/0"


@contextmanager
def nats_server(folder: Path) -> Iterator[str]:
    port = free_port()
    command = [needs("nats-server"), "-js", "-sd", str(folder), "-a", "127.0.0.1", "-p", str(port)]
    with started(command, port):
        yield f"nats://127.0.0.1:{port}"


@contextmanager
def rabbitmq_server(folder: Path) -> Iterator[str]:
    port = free_port()
    (folder / "home").mkdir()
    environment = {
        "RABBITMQ_NODENAME": f"test{port}@localhost",
        "RABBITMQ_NODE_PORT": str(port),
        "RABBITMQ_NODE_IP_ADDRESS": "127.0.0.1",
        "RABBITMQ_DIST_PORT": str(free_port()),
        "RABBITMQ_MNESIA_BASE": str(folder),
        "RABBITMQ_LOG_BASE": str(folder),
        "RABBITMQ_ENABLED_PLUGINS_FILE": str(folder / "plugins"),
        "RABBITMQ_SERVER_START_ARGS": "-setcookie firsthand",
        "ERL_EPMD_PORT": str(free_port()),
        "HOME": str(folder / "home"),
    }
    (folder / "plugins").write_text("[].\n")
    server = next(Path("/usr/lib/rabbitmq").glob(RABBITMQ), None)
    if server is None:
        pytest.skip("needs rabbitmq-server")
    with started([str(server)], port, environment):
        yield f"amqp://guest:guest@127.0.0.1:{port}/"


@contextmanager
def postgres_server() -> Iterator[str]:
    """It refuses to be root's, so its folder is not a test's own."""
    if POSTGRES is None:
        pytest.skip("needs postgresql")
    folder, port = Path(tempfile.mkdtemp()), free_port()
    owner = "postgres" if os.getuid() == 0 else None
    if owner is not None:
        shutil.chown(folder, owner)
    made = [str(POSTGRES / "initdb"), "-D", str(folder), "-A", "trust", "-U", "test", "--no-sync"]
    try:
        subprocess.run(made, check=True, stdout=subprocess.DEVNULL, user=owner, group=owner)
        settings = ["-c", "fsync=off", "-c", "listen_addresses=127.0.0.1"]
        command = [str(POSTGRES / "postgres"), "-D", str(folder), "-p", str(port), "-k", ""]
        with started([*command, *settings], port, owner=owner):
            yield f"postgresql://test@127.0.0.1:{port}/postgres"
    finally:
        shutil.rmtree(folder)


@contextmanager
def kafka_mock() -> Iterator[str]:
    """A cluster inside a client of librdkafka, which others reach by the address that it names."""
    from confluent_kafka import Producer

    holder = Producer({"bootstrap.servers": "mock", "test.mock.num.brokers": 1})
    brokers = holder.list_topics(timeout=10).brokers.values()
    yield "kafka://" + ",".join(f"{one.host}:{one.port}" for one in brokers)


def produce(url: str, topic: str, bodies: Sequence[bytes]) -> None:
    from confluent_kafka import Producer

    producer = Producer({"bootstrap.servers": url.removeprefix("kafka://")})
    for body in bodies:
        producer.produce(topic, body, partition=0)
    assert producer.flush(30) == 0


class Servers:
    """Each kind is started when its address is asked for, once."""

    def __init__(self, folders: pytest.TempPathFactory) -> None:
        self._folders = folders
        self._running = ExitStack()
        self._urls: dict[str, str] = {"queue": "sqlite:queue.db", "sqlite": "sqlite:table.db"}

    def __enter__(self) -> Servers:
        return self

    def __exit__(self, *_: object) -> None:
        self._running.close()

    def url(self, kind: str) -> str:
        if kind not in self._urls:
            self._urls[kind] = self._running.enter_context(self._start(kind))
        return self._urls[kind]

    def _start(self, kind: str) -> AbstractContextManager[str]:
        if kind == "postgres":
            return postgres_server()
        if kind == "kafka":
            return kafka_mock()
        servers = {"redis": redis_server, "nats": nats_server, "rabbitmq": rabbitmq_server}
        return servers[kind](self._folders.mktemp(kind))


def rows_of(url: str, query: str, folder: Path) -> list[tuple[Any, ...]]:
    if url.startswith("sqlite:"):
        with closing(sqlite3.connect(folder / url.removeprefix("sqlite:"))) as small:
            return small.execute(query).fetchall()
    with psycopg.connect(url) as connection:
        return connection.execute(query.encode()).fetchall()
