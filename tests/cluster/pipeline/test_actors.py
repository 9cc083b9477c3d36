"""Stages in workers of Ray: the bits of one process, and what happens when one is lost.

One Ray serves all of these tests; it starts in some seconds.
"""

from __future__ import annotations

import json
import os
import signal
from collections.abc import Iterator
from contextlib import closing
from pathlib import Path
from typing import Any

import pytest

from firsthand.cli.main import run_command
from firsthand.cluster.pipeline.loading import Wanted
from firsthand.cluster.pipeline.opening import open_pipeline
from firsthand.errors import EngineError, EngineLost, InvalidRequest
from firsthand.generation.llm import LLM
from firsthand.generation.load_options import LoadOptions
from firsthand.processes import resident_bytes
from tests.cluster.pipeline.asking import answers_of
from tests.observe.monitoring import until

pytest.importorskip("ray")

pytestmark = [pytest.mark.native, pytest.mark.process, pytest.mark.slow]

OPTIONS = LoadOptions(threads=1, max_context=160, max_sequences=4, max_step_tokens=64)


@pytest.fixture(scope="module", autouse=True)
def ray_here() -> Iterator[None]:
    from firsthand.cluster.pipeline.session import ray_session

    with ray_session(None, 3):
        yield


def pids_of(links: Any) -> list[int]:
    import ray

    return [ray.get(actor.__ray_call__.remote(lambda _: os.getpid())) for actor in links._actors]


def is_gone(pid: int) -> bool:
    return not resident_bytes(pid)


@pytest.mark.parametrize(
    ("num_stages", "num_parts"), [(2, None), pytest.param(3, 3, marks=pytest.mark.soak)]
)
def test_workers_give_the_bits_of_one_process(
    six_layers: Path, num_stages: int, num_parts: int | None
) -> None:
    """S107, S108: tokens and log-probabilities, greedy and drawn, together and alone."""
    with LLM(str(six_layers), threads=1, max_context=160, max_sequences=4) as llm:
        whole = answers_of(llm)
    wanted = Wanted(num_stages, num_parts=num_parts)
    with open_pipeline(str(six_layers), OPTIONS, wanted) as pipeline:
        with LLM(pipeline.loaded) as llm:
            assert answers_of(llm) == whole
        pids = pids_of(pipeline.links)
        assert len({os.getpid(), *pids}) == num_stages + 1
        assert all(count > 1 << 20 for count in pipeline.links.resident_bytes())
        with pytest.raises(InvalidRequest, match="split: no layers"):  # a worker's, as itself
            pipeline.links.load((5, 2, 2)[:num_stages])
    until(lambda: all(map(is_gone, pids)), "the workers of Ray end")


@pytest.mark.soak
def test_a_lost_worker_ends_what_runs_and_the_next_start_works(six_layers: Path) -> None:
    wanted = Wanted(2, split=(3, 3))
    with open_pipeline(str(six_layers), OPTIONS, wanted) as pipeline:
        pids = pids_of(pipeline.links)
        with (
            LLM(pipeline.loaded) as llm,
            closing(llm.stream("abc", max_tokens=150, ignore_end=True)) as stream,
        ):
            next(stream)
            os.kill(pids[1], signal.SIGKILL)
            with pytest.raises(EngineError, match="stage 1 of 2 was lost"):
                stream.completion()
        with pytest.raises(EngineLost, match="stage 1 of 2"):
            pipeline.links.resident_bytes()
    until(lambda: all(map(is_gone, pids)), "the workers of Ray end")
    with open_pipeline(str(six_layers), OPTIONS, wanted) as again, LLM(again.loaded) as llm:
        assert llm.generate("abc", max_tokens=2, ignore_end=True).usage.completion_tokens == 2


def test_the_command_shows_stages_bubbles_and_hops(
    six_layers: Path, tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    """S109: bytes and ms per hop are told, and stand in the trace."""
    trace = tmp_path / "steps.json"
    arguments = ["cluster", "run", str(six_layers), "one prompt", "another", "--stages", "2"]
    arguments += ["--split", "4,2", "--micro-batches", "2", "--max-tokens", "3", "--ignore-end"]
    arguments += ["--max-context", "160", "--seed", "3", "--compare", "--trace-out", str(trace)]
    assert run_command([*arguments, "--json"]) == 0
    said = json.loads(capsys.readouterr().out)
    assert said["is_equal"] is True
    assert said["split"] == [4, 2]
    assert [len(one["token_ids"]) for one in said["answers"]] == [3, 3]
    facts = said["pipeline"]
    assert facts["num_hops"] == facts["num_parts"] > facts["num_steps"] > 0
    assert facts["mean_hop_bytes"] > 256
    assert 0.0 < facts["bubble_share"] < 1.0
    spans = [e for e in json.loads(trace.read_text())["traceEvents"] if e["ph"] == "X"]
    assert {event["tid"] for event in spans} == {1, 2}


@pytest.mark.parametrize(
    ("more", "field"),
    [
        (["--stages", "0"], "stages"),
        (["--split", "9,9"], "split"),
        (["--micro-batches", "0"], "micro_batches"),
        (["--balance", "all"], "balance"),
        (["--address", "127.0.0.1:1"], "address"),
        (["--trace-out", "/no/such/folder/x"], "trace_out"),
    ],
)
def test_the_command_refuses_by_name(
    six_layers: Path, capsys: pytest.CaptureFixture[str], more: list[str], field: str
) -> None:
    assert run_command(["cluster", "run", str(six_layers), "abc", *more]) == 2
    assert f"error: {field}: " in capsys.readouterr().err


def test_another_ray_is_refused_while_this_one_is_joined() -> None:
    from firsthand.cluster.pipeline.session import ray_session

    with pytest.raises(InvalidRequest, match="address"), ray_session("127.0.0.1:1", 2):
        pass
