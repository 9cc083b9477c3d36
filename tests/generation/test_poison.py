"""One request at fault in a step of a real model: the others get the same bits as without it."""

from __future__ import annotations

import time
from collections import defaultdict
from dataclasses import replace
from pathlib import Path

import numpy as np
import pytest
from numpy.typing import NDArray

from firsthand.compute.batch import FlatBatch
from firsthand.compute.executor import Executor
from firsthand.engine.facts import StepFacts
from firsthand.generation.assembly import assemble
from firsthand.generation.load_options import LoadOptions
from firsthand.generation.loading import load_model
from firsthand.kvcache.store import KVStore
from firsthand.request import FinishReason, Request, SamplingParams, StopRules, TokenEvent

pytestmark = pytest.mark.native

BAD_TOKEN = 77  # whoever reads it is at fault
NEVER_DRAWN = ((BAD_TOKEN, -100.0),)
OPTIONS = LoadOptions(max_context=64, threads=2, max_step_tokens=24, max_sequences=8)
Told = dict[tuple[str, int], list[TokenEvent]]


class Poisoned:
    """An executor that computes, writes into the store, and then fails over one token."""

    def __init__(self, executor: Executor, *, with_nan: bool) -> None:
        self._executor = executor
        self._with_nan = with_nan

    def run(self, batch: FlatBatch, store: KVStore) -> NDArray[np.float32]:
        logits = self._executor.run(batch, store)
        bad_rows = np.flatnonzero(batch.token_ids == BAD_TOKEN)
        if not len(bad_rows):
            return logits
        if not self._with_nan:
            raise FloatingPointError("a bad row")
        logits = logits.copy()
        logits[np.isin(batch.logit_rows, bad_rows)] = np.nan
        return logits


def request(name: str, prompt: tuple[int, ...], **more: object) -> Request:
    sampling = SamplingParams(temperature=0.9, top_p=0.95, logprobs=2, logit_bias=NEVER_DRAWN)
    return replace(Request(name, prompt, sampling, StopRules(12), seed=len(name)), **more)  # type: ignore[arg-type]


GOOD = (
    request("short", (5, 6, 7)),
    request("long", tuple(range(100, 140))),  # its prompt takes several steps
    request("three", tuple(range(200, 220)), n=3),  # its blocks are shared, and copied
    request("last", (9,)),
)
BAD = request("bad", (*range(30, 40), BAD_TOKEN))


def answers(
    folder: Path, requests: tuple[Request, ...], poison: bool | None, options: LoadOptions
) -> tuple[Told, list[StepFacts]]:
    """Without the times. The bad one comes into the middle of what the others do."""
    facts: list[StepFacts] = []
    loaded = load_model(folder, options)
    assembly = assemble(loaded, time.perf_counter, facts.append)
    if poison is not None:
        assembly.runner._executor = Poisoned(loaded.executor, with_nan=poison)  # type: ignore[assignment]
    told: Told = defaultdict(list)
    for number, one in enumerate(requests):
        assembly.engine.add(one)
        if number == 2:
            events = [*assembly.engine.step(), *assembly.engine.step()]
            for event in events:
                told[event.request_id, event.index].append(event._replace(at_s=0.0))
    while assembly.engine.has_work:
        for event in assembly.engine.step():
            told[event.request_id, event.index].append(event._replace(at_s=0.0))
    assembly.scheduler.check_invariants()
    assert assembly.scheduler.num_used_blocks == 0
    return told, facts


@pytest.mark.parametrize("with_nan", [False, True], ids=["raises", "nan"])
@pytest.mark.parametrize("kv_dtype", ["int16", "float16", "int8"])
def test_s_45_g6_the_others_get_the_same_bits(
    micro_folder: Path, with_nan: bool, kv_dtype: str
) -> None:
    """Tokens, log-probabilities and ends, of prompts in parts, shared blocks, and drawn tokens."""
    options = replace(OPTIONS, kv_dtype=kv_dtype)  # type: ignore[arg-type]
    quiet, _ = answers(micro_folder, GOOD, None, options)
    told, facts = answers(micro_folder, (*GOOD[:3], BAD, GOOD[3]), with_nan, options)
    (event,) = told.pop(("bad", 0))
    assert event.finish is not None and event.finish.reason is FinishReason.ERROR
    assert told == quiet
    attempts = [fact for fact in facts if fact.error is not None]
    assert [fact.num_failed for fact in attempts] == ([] if with_nan else [1])
    for fact in attempts:
        assert 0 < fact.num_attempts <= 8 and "a bad row" in str(fact.error)


def test_everybody_at_fault_is_told_and_the_engine_goes_on(micro_folder: Path) -> None:
    bad = tuple(request(f"bad {each}", (each, BAD_TOKEN)) for each in range(1, 4))
    told, _ = answers(micro_folder, (*bad, *GOOD), False, OPTIONS)
    assert {
        name
        for (name, _), events in told.items()
        if events[-1].finish is not None and events[-1].finish.reason is FinishReason.ERROR
    } == {one.request_id for one in bad}
