"""Prometheus and Alertmanager, the real ones, for as long as a test needs them.

Owns: `monitored`. May not know: what is watched. Read next: `test_alerts_live.py`.
"""

from __future__ import annotations

import shutil
import socket
import subprocess
import threading
import time
from collections.abc import Callable, Iterator
from contextlib import ExitStack, contextmanager
from dataclasses import replace
from pathlib import Path

import httpx
import pytest

from firsthand.observe.alert_settings import AlertSettings
from firsthand.observe.exports import alert_files, write
from firsthand.observe.received import AlertRecord, Receiver
from firsthand.observe.routing import alertmanager_file
from firsthand.observe.yaml_text import as_yaml

PROGRAMS = ("prometheus", "prometheus-alertmanager")
needs_both = pytest.mark.skipif(
    any(shutil.which(one) is None for one in PROGRAMS), reason="needs prometheus and alertmanager"
)
LIMIT_S = 60.0


def free_port() -> int:
    with socket.socket() as free:
        free.bind(("127.0.0.1", 0))
        port: int = free.getsockname()[1]
        return port


def until(holds: Callable[[], bool], what: str, limit_s: float = LIMIT_S) -> None:
    end = time.perf_counter() + limit_s
    while not holds():
        assert time.perf_counter() < end, what
        time.sleep(0.05)


@contextmanager
def receiving(record: AlertRecord) -> Iterator[str]:
    """Our receiver of webhooks. Its address."""
    receiver = Receiver(record, 0, time.time)
    thread = threading.Thread(target=receiver.run, daemon=True)
    thread.start()
    try:
        yield f"http://127.0.0.1:{receiver.port}"
    finally:
        receiver.close()
        thread.join(10)


@contextmanager
def monitored(folder: Path, settings: AlertSettings, group_wait_s: float = 0.2) -> Iterator[str]:
    """Both, with the files that are exported for these settings. The address of Prometheus."""
    manager, prometheus = (f"127.0.0.1:{free_port()}" for _ in range(2))
    settings = replace(settings, alertmanager=manager)
    quick = as_yaml(alertmanager_file(settings, group_wait_s))
    write(alert_files(settings) | {"alertmanager.yml": quick}, folder)
    with ExitStack() as running:
        for name, address, *flags in (
            (
                *("prometheus-alertmanager", manager),
                *("--config.file=alertmanager.yml", "--storage.path=alertmanager"),
                "--cluster.listen-address=",
            ),
            (
                *("prometheus", prometheus),
                *("--config.file=prometheus.yml", "--storage.tsdb.path=tsdb"),
            ),
        ):
            log = running.enter_context((folder / f"{name}.log").open("w"))
            process = subprocess.Popen(
                [name, f"--web.listen-address={address}", *flags],
                cwd=folder,
                stdout=log,
                stderr=log,
            )
            running.callback(process.wait)
            running.callback(process.kill)
        for address in (manager, prometheus):
            until(lambda at=address: _is_ready(at), f"{address} does not answer")  # type: ignore[misc]
        yield f"http://{prometheus}"


def _is_ready(address: str) -> bool:
    try:
        return httpx.get(f"http://{address}/-/ready", timeout=5).status_code == 200
    except httpx.TransportError:
        return False
