"""Stages in workers of Ray: the bits of one process, and what happens when one is lost.

Owns: the tests that `test_actors.py` runs, in a process of their own: Ray's settings are those of
its process, and it leaves much behind. One Ray serves all of them. May not know: who runs them.
Read next: `test_pipeline.py`, for all that needs no Ray.
"""

from __future__ import annotations

import os
import signal
from collections.abc import Iterator
from contextlib import closing
from pathlib import Path
from typing import Any

import pytest

from firsthand.cluster.pipeline.loading import Wanted
from firsthand.cluster.pipeline.opening import load_on_ray
from firsthand.cluster.session import begin_own
from firsthand.errors import EngineError, EngineLost, InvalidRequest
from firsthand.generation.llm import LLM
from firsthand.generation.load_options import LoadOptions
from firsthand.processes import resident_bytes
from tests.cluster.pipeline.asking import answers_of
from tests.observe.monitoring import until

OPTIONS = LoadOptions(threads=1, max_context=160, max_sequences=4, max_step_tokens=64)


@pytest.fixture(scope="module", autouse=True)
def ray_here(tmp_path_factory: pytest.TempPathFactory) -> Iterator[None]:
    session = begin_own(tmp_path_factory.mktemp("home"), 3)
    yield
    session.end()


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
    with closing(load_on_ray(str(six_layers), OPTIONS, wanted, num_stages)) as pipeline:
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
    with closing(load_on_ray(str(six_layers), OPTIONS, wanted, 2)) as pipeline:
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
    with (
        closing(load_on_ray(str(six_layers), OPTIONS, wanted, 2)) as again,
        LLM(again.loaded) as llm,
    ):
        assert llm.generate("abc", max_tokens=2, ignore_end=True).usage.completion_tokens == 2
