"""Load that feeds on refusals, and work that nobody waits for any more.

Owns: proof that a storm of retries dies out, that a flood stays with its model, and that little is
computed for those who have gone; at the size of `make test` and at that of `make soak`.
May not know: how fast a machine is; the full size measures it first.
Read next: `serving.py`, `test_overload.py`.
"""

from __future__ import annotations

import json
import subprocess
import sys
from collections import Counter
from collections.abc import Iterator
from dataclasses import dataclass
from pathlib import Path

import pytest

from firsthand.cli.micro_model import write_micro_model
from tests.soak.clients import Load
from tests.soak.conftest import Figure
from tests.soak.serving import ROOT, Server, quantile, served, until

pytestmark = [
    pytest.mark.native,
    pytest.mark.process,
    pytest.mark.oracle,
    pytest.mark.skipif(sys.platform != "linux", reason="reads Linux's account of processes"),
]
FULL = pytest.param(True, marks=[pytest.mark.soak, pytest.mark.slow], id="full")
SIZES = [pytest.param(False, id="small"), FULL]
NUM_RUNNING, NUM_WAITING = 4, 16
FLAGS = ("--max-num-seqs", str(NUM_RUNNING), "--max-num-queued-reqs", str(NUM_WAITING), "--no-shed")
NORMAL = 8  # clients, each of which asks again when it was answered: all have room


@pytest.fixture(scope="module")
def server(micro_folder: Path, tmp_path_factory: pytest.TempPathFactory) -> Iterator[Server]:
    folder = tmp_path_factory.mktemp("serve")
    with served(micro_folder, folder, "--served-model-name", "micro", *FLAGS) as found:
        yield found


@dataclass(frozen=True)
class Storm:
    ended: Counter[str]
    most_tries: int
    tries: int


def storm(server: Server, num: int, max_tokens: int) -> Storm:
    command = [sys.executable, "-m", "tests.soak.official_clients"]
    numbers = map(str, (server.port, num, max_tokens))
    done = subprocess.run([*command, *numbers], capture_output=True, text=True, cwd=ROOT)
    assert done.returncode == 0, done.stderr
    said = json.loads(done.stdout)
    return Storm(Counter(said["ended"]), said["most_tries"], said["tries"])


@pytest.mark.slow
@pytest.mark.parametrize("full", SIZES)
def test_o_5_g_22_a_storm_of_retries_dies_out(server: Server, full: bool, figure: Figure) -> None:
    """The official library tries three times in all, when it is told to. Afterwards everything is
    as it was: nobody is refused who asks no more than can be served."""
    num, lasts_s = (200, 10.0) if full else (40, 0.5)
    normal = Load(server.port, workers=NORMAL, lasts_s=lasts_s, max_tokens=100, stream=False)
    before = server.play(normal)
    seen = storm(server, num, 400 if full else 100)
    assert seen.ended.total() == num and seen.most_tries <= 3
    assert set(seen.ended) <= {"done", "503"}, seen
    assert seen.ended["done"] > NUM_RUNNING + NUM_WAITING // 2
    until(server.is_empty, "not back to normal")
    after = server.play(normal)
    assert {one.ended for one in after} == {"done"}, "it is refused still"
    if full:
        figure("O-5, G22: of 200 official clients answered", seen.ended["done"], "clients")
        figure("O-5, G22: they asked", seen.tries / num, "times each", "at most 3")
        share = len(after) / len(before)
        figure("O-5, G22: goodput after the storm", share, "of before", "at least 0.95; goal 0.99")
        assert share >= 0.95


@pytest.mark.slow
@pytest.mark.parametrize("full", SIZES)
def test_o_4_g_29_little_is_computed_for_those_who_have_gone(
    server: Server, full: bool, figure: Figure
) -> None:
    """Each gives its own limit of time; more come than can be served within it. Who cannot be in
    time is refused at the door, or dropped while it waits."""
    before = server.metrics()["firsthand_tokens_total"]
    load = Load(
        server.port, num=1500 if full else 80, per_s=150.0, max_tokens=300, stream=False,
        headers={"X-Request-Deadline-Ms": "2000"},
    )  # fmt: skip
    seen = server.play(load)
    until(server.is_empty, "blocks or places are never free again")
    ended = Counter(one.code or one.ended for one in seen)
    assert set(ended) <= {"done", "deadline_exceeded", "queue_full"}, ended
    assert ended["done"], ended
    computed = server.metrics()["firsthand_tokens_total"] - before
    assert computed > 0
    if full:
        late = [one for one in seen if one.code == "deadline_exceeded" and one.total_s > 1.0]
        figure("O-4, G29: ended late, of those that were let in",
               len(late) / max(1, len(late) + ended["done"]), "", "at most 0.02")  # fmt: skip
        refused = [one.head_s for one in seen if one.status in (408, 503) and one not in late]
        figure("O-4, G29: refusals p99", quantile(refused, 0.99) * 1e3, "ms", "at most 50")
        assert len(late) <= 0.02 * (len(late) + ended["done"])
        assert quantile(refused, 0.99) <= 0.050


@pytest.mark.slow
@pytest.mark.parametrize("full", SIZES)
def test_a_flood_for_one_model_neither_refuses_nor_holds_up_anothers_callers(
    tmp_path: Path, full: bool, figure: Figure
) -> None:
    """Two engines with a core each, where there are two."""
    models = [tmp_path / name for name in ("one", "two")]
    for seed, path in enumerate(models):
        path.mkdir()
        write_micro_model(path, seed)
    with served(models[0], tmp_path, str(models[1]), *FLAGS) as server:
        calm = Load(server.port, workers=2, lasts_s=5.0 if full else 0.5, max_tokens=50,
                    stream=False, body={"model": "two"})  # fmt: skip
        quiet = server.play(calm)
        assert {seen.ended for seen in quiet} == {"done"}, quiet[:3]
        flood = Load(server.port, num=1000 if full else 200, per_s=125.0, max_tokens=400,
                     stream=False, body={"model": "one"})  # fmt: skip
        with server.under(flood) as outcomes:
            until(lambda: server.metrics()["firsthand_refused_total"] > 20, "it is no flood")
            beside = server.play(calm)
            flooded = outcomes()
        assert {seen.ended for seen in beside} == {"done"}
        assert {seen.code for seen in flooded if seen.ended == "refused"} == {"queue_full"}
    if full:
        times = [quantile([seen.total_s for seen in part], 0.5) for part in (beside, quiet)]
        figure("a model's callers beside a flood for another, median", times[0] / times[1],
               "x quiet", "at most 3: three processes on the machine's cores")  # fmt: skip
        assert times[0] <= 3 * times[1]
