"""A node's network is cut: no answer is lost or wrong, none waits long, the node comes back. G38.

Owns: the cuts, at load. May not know: how a door learns of them. Read next: `nodes.py`, the
network; `test_soak.py`, replicas and heads that are killed.
"""

from __future__ import annotations

import signal
import time
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path

import pytest

from firsthand.cluster.closed import close
from tests.cluster.conftest import Figure
from tests.cluster.nodes import Net, net, ray_nodes
from tests.cluster.test_cluster import metric
from tests.cluster.test_soak import CUT_S, READY_S, ROTATION, Clients, answers_of, until
from tests.server.processes import Server, launched

pytestmark = [pytest.mark.native, pytest.mark.process, pytest.mark.slow, pytest.mark.soak]

NUM_NODES = 3
LONGEST_S = 15.0
FLAGS = ("--served-model-name", "micro", "--max-model-len", "256", "--max-num-seqs", "4")


@contextmanager
def served(model: Path, folder: Path) -> Iterator[tuple[Net, Server]]:
    """A replica on each node, the door beside the head."""
    home = folder / "home"
    close(home / "ray_token", alone=False)
    with net(NUM_NODES) as found, ray_nodes(found, home / "ray_token") as address:
        verb = ("cluster", "serve", "--address", address, "--replicas", str(NUM_NODES))
        variables = {"FIRSTHAND_HOME": str(home)}
        with found.inside(0), launched(folder, str(model), *FLAGS, verb=verb, **variables) as door:
            door.wait_ready(READY_S)
            until(lambda: metric(door, ROTATION) >= NUM_NODES)
            yield found, door
            door.end(signal.SIGTERM, 60.0)


def test_g_38_the_network_of_nodes_is_cut_at_load_and_no_answer_is_lost(
    micro_folder: Path, tmp_path: Path, figure: Figure
) -> None:
    with served(micro_folder, tmp_path) as (found, door):
        wanted = answers_of(door)
        cut_off(found, door, wanted, figure, 1)
        cut_off(found, door, wanted, figure, 1, 2)
        with Clients(door, wanted) as clients:
            found.flap(1, 0.4, time.monotonic() + CUT_S)
            back_s = until(lambda: metric(door, ROTATION) >= NUM_NODES)
        told(clients, figure, "G38: a link that is down half of the time", 0.0)
        figure("G38: a link that was down half of the time: back after", back_s, "s")


def cut_off(found: Net, door: Server, wanted: dict[str, str], figure: Figure, *nodes: int) -> None:
    name = f"G38: {len(nodes)} of {NUM_NODES} nodes cut off for {CUT_S:.0f} s"
    with Clients(door, wanted) as clients:
        time.sleep(5)
        began_s = time.monotonic()
        with found.cut(*nodes):
            noticed_s = until(lambda: metric(door, ROTATION) <= NUM_NODES - len(nodes))
            time.sleep(began_s + CUT_S - time.monotonic())
        back_s = until(lambda: metric(door, ROTATION) >= NUM_NODES)
    figure(f"{name}: noticed after", noticed_s, "s")
    told(clients, figure, name, noticed_s)
    figure(f"{name}: back after", back_s, "s")


def told(clients: Clients, figure: Figure, name: str, noticed_s: float) -> None:
    wrong = [outcome for _, _, outcome in clients.answers if outcome != "right"]
    longest_s = max(took_s for _, took_s, _ in clients.answers)
    figure(f"{name}: answers", len(clients.answers), "answers")
    figure(f"{name}: not right", len(wrong), "answers", "0")
    figure(f"{name}: longest answer", longest_s, "s", f"at most {noticed_s + LONGEST_S:.0f}")
    assert not wrong, wrong[:3]
    assert longest_s <= noticed_s + LONGEST_S
