"""Nodes of Ray in network namespaces of their own, with a link to each that can be cut.

Owns: the namespaces, the links, the nodes. May not know: what runs there. Read next:
`test_cut.py`.

The first node is the hub: it has the bridge to which the others' links go. Processes are started in
a namespace by a thread that is in it (`inside`), and end with it.
"""

from __future__ import annotations

import ctypes
import os
import shutil
import signal
import subprocess
import sys
import tempfile
import time
from collections.abc import Iterator
from contextlib import ExitStack, contextmanager, suppress
from pathlib import Path

import pytest

from firsthand.cluster.closed import VARIABLES

CLONE_NEWNET = 0x40000000
PORT = 6379
START_S = 120.0
# As docs/cluster.md and deploy/kuberay ask of a head.
PATIENT = {"RAY_health_check_failure_threshold": "12"}
RAY = "from ray.scripts.scripts import main; main()"


def address(node: int) -> str:
    return f"10.97.0.{node + 1}"


class Net:
    """`cut` is of one node from all others: the far end of its link goes down, as a plug that is
    pulled, so nobody is told anything."""

    def __init__(self, names: list[str]) -> None:
        self.names = names

    @contextmanager
    def inside(self, node: int) -> Iterator[None]:
        """This thread, and all processes and threads that it starts meanwhile."""
        home = os.open("/proc/thread-self/ns/net", os.O_RDONLY)
        try:
            _enter(Path(f"/run/netns/{self.names[node]}"))
            yield
        finally:
            _enter(home)
            os.close(home)

    @contextmanager
    def cut(self, *nodes: int) -> Iterator[None]:
        for node in nodes:
            self._set(node, "down")
        try:
            yield
        finally:
            for node in nodes:
                self._set(node, "up")

    def flap(self, node: int, half_s: float, until_s: float) -> None:
        """Cut and mended in turns, until that time of the monotonic clock."""
        while time.monotonic() < until_s:
            with self.cut(node):
                time.sleep(half_s)
            time.sleep(half_s)

    def pids(self, node: int) -> list[int]:
        return [int(word) for word in _ip("netns", "pids", self.names[node]).split()]

    def _set(self, node: int, state: str) -> None:
        _ip("-n", self.names[0], "link", "set", f"port{node}", state)


@contextmanager
def net(num_nodes: int) -> Iterator[Net]:
    """Left out where this process may make none."""
    if shutil.which("ip") is None or os.geteuid() != 0:
        pytest.skip("needs root and iproute2, for network namespaces")
    found = Net([f"fh{os.getpid()}-{node}" for node in range(num_nodes)])
    with ExitStack() as held:
        for name in found.names:
            try:
                _ip("netns", "add", name)
            except subprocess.CalledProcessError as error:
                pytest.skip(f"no network namespaces here: {error.stderr}")
            held.callback(_remove, found, name)
            _ip("-n", name, "link", "set", "lo", "up")
        hub, *others = found.names
        _ip("-n", hub, "link", "add", "bridge", "type", "bridge")
        _ip("-n", hub, "addr", "add", f"{address(0)}/24", "dev", "bridge")
        _ip("-n", hub, "link", "set", "bridge", "up")
        for node, name in enumerate(others, 1):
            link = ("link", "add", f"port{node}", "type", "veth", "peer", "name", "eth0")
            _ip("-n", hub, *link, "netns", name)
            _ip("-n", hub, "link", "set", f"port{node}", "master", "bridge", "up")
            _ip("-n", name, "addr", "add", f"{address(node)}/24", "dev", "eth0")
            _ip("-n", name, "link", "set", "eth0", "up")
        yield found


@contextmanager
def ray_nodes(found: Net, token: Path) -> Iterator[str]:
    """A node of Ray of one core in each namespace, the head in the first one; its address."""
    variables = os.environ | VARIABLES | PATIENT | {"RAY_AUTH_TOKEN_PATH": str(token)}
    where = f"{address(0)}:{PORT}"
    processes: list[subprocess.Popen[bytes]] = []
    with tempfile.TemporaryDirectory(prefix="fh-cut-", ignore_cleanup_errors=True) as folder:
        for node in range(len(found.names)):
            head = ("--head", f"--port={PORT}", "--include-dashboard=false")
            command = [sys.executable, "-c", RAY, "start", "--block", "--disable-usage-stats"]
            command += head if node == 0 else (f"--address={where}",)
            command += [f"--node-ip-address={address(node)}", f"--temp-dir={folder}/{node}"]
            command += ["--num-cpus=1", "--num-gpus=0", f"--object-store-memory={80 << 20}"]
            with found.inside(node), open(f"{folder}/log{node}", "w") as log:
                processes.append(subprocess.Popen(command, env=variables, stdout=log, stderr=log))
            until_s = time.monotonic() + START_S
            while "Ray runtime started" not in (told := Path(log.name).read_text()):
                assert processes[-1].poll() is None and time.monotonic() < until_s, told
                time.sleep(0.1)
        try:
            yield where
        finally:
            for node in range(len(found.names)):
                _end(found.pids(node))
            for process in processes:
                process.wait()


def _remove(found: Net, name: str) -> None:
    _end(found.pids(found.names.index(name)))
    _ip("netns", "del", name)


def _end(pids: list[int]) -> None:
    for pid in pids:
        if pid != os.getpid():
            with suppress(ProcessLookupError):
                os.kill(pid, signal.SIGKILL)


def _enter(namespace: int | Path) -> None:
    libc = ctypes.CDLL(None, use_errno=True)
    where = namespace if isinstance(namespace, int) else os.open(namespace, os.O_RDONLY)
    try:
        if libc.setns(where, CLONE_NEWNET) != 0:
            raise OSError(ctypes.get_errno(), "setns")
    finally:
        if where is not namespace:
            os.close(where)


def _ip(*words: str) -> str:
    done = subprocess.run(["ip", *words], check=True, capture_output=True, text=True)
    return done.stdout
