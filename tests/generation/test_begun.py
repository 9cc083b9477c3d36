"""A request that another engine has begun: the joint cannot be seen. == on every bit.

Owns: whole = cut anywhere + gone on with. May not know: how an engine is lost. Read next:
`tests/generation/test_speculation.py`, for the other way in which a token comes at another time.
"""

from __future__ import annotations

import asyncio
import time
from collections.abc import Sequence
from dataclasses import replace
from pathlib import Path
from typing import Any

import pytest

from firsthand.errors import InvalidRequest
from firsthand.generation.assembly import Assembly, assemble
from firsthand.generation.choice import Choice, Job
from firsthand.generation.load_options import LoadOptions
from firsthand.generation.loading import LoadedModel, load_model
from firsthand.generation.options import read_options, request_of
from firsthand.generation.remote_stream import RemoteStream
from firsthand.request import (
    Finish,
    FinishReason,
    PromptPart,
    Request,
    SamplingParams,
    StopRules,
    TokenEvent,
    TokenScore,
)
from tests.generation.test_speculation import OPTIONS, PROMPTS

pytestmark = pytest.mark.native

Told = tuple[int | None, float | None, tuple[tuple[int, float], ...], Finish | None]


@pytest.fixture(scope="module")
def loaded(micro_folder: Path) -> LoadedModel:
    return load_model(micro_folder, LoadOptions(max_context=160, threads=1, max_sequences=4))


@pytest.fixture(scope="module")
def engine(loaded: LoadedModel) -> Assembly:
    loaded.claim()
    return assemble(loaded, time.perf_counter, lambda facts: None)


def asked(loaded: LoadedModel, options: dict[str, Any], prompt: str, n: int = 1) -> Request:
    tokenizer = loaded.text()
    checked = read_options({"ignore_end": False, **options, "n": n}, tokenizer.end_ids)
    return request_of(checked, 0, tuple(tokenizer.encode(prompt)), 0.0)


def run(engine: Assembly, request: Request) -> list[TokenEvent]:
    engine.engine.add(request)
    events: list[TokenEvent] = []
    while engine.engine.has_work:
        events += engine.engine.step()
        engine.scheduler.check_invariants()
    assert engine.scheduler.num_used_blocks == 0
    return events


def told(events: Sequence[TokenEvent], index: int = 0) -> list[Told]:
    return [
        (event.token_id, event.logprob, event.top_logprobs, event.finish)
        for event in events
        if event.index == index
    ]


def drawn(events: Sequence[TokenEvent]) -> tuple[int, ...]:
    return tuple(event.token_id for event in events if event.token_id is not None)


@pytest.mark.parametrize("at", range(len(OPTIONS)))
def test_what_goes_on_elsewhere_is_what_would_have_come(
    loaded: LoadedModel, engine: Assembly, at: int
) -> None:
    request = asked(loaded, OPTIONS[at], PROMPTS[at % len(PROMPTS)])
    whole = run(engine, request)
    num_tokens = len(drawn(whole))
    assert num_tokens > 1
    for cut in {0, 1, num_tokens // 2, num_tokens - 2, num_tokens - 1}:
        rest = run(engine, replace(request, begun=(drawn(whole)[:cut],)))
        assert told(rest) == told(whole[cut:]), cut


def test_stop_strings_end_the_text_at_the_same_place(loaded: LoadedModel, engine: Assembly) -> None:
    """The text knows of no joint: it is fed the events of both."""
    options = {"seed": 1, "temperature": 0, "max_tokens": 60, "ignore_end": True}
    request = asked(loaded, options, PROMPTS[1])
    whole = run(engine, request)
    text, _ = text_of(loaded, request, whole, ())
    stop = (text[20:24],)
    wanted = text_of(loaded, request, whole, stop)
    assert wanted[1] is not None and wanted[1].cause == stop[0]
    for cut in (0, 5, 19, 21, 22):
        rest = run(engine, replace(request, begun=(drawn(whole)[:cut],)))
        assert text_of(loaded, request, [*whole[:cut], *rest], stop) == wanted


def text_of(
    loaded: LoadedModel, request: Request, events: Sequence[TokenEvent], stop: tuple[str, ...]
) -> tuple[str, Finish | None]:
    job = Job(request, stop, True, 0.0, 0.0)
    choice = Choice(job, 0, loaded.text(), time.perf_counter)
    for event in events:
        finish = choice.take(event)
        if finish is not None:
            return choice.chunk().text, finish
    return choice.chunk().text, None


def test_each_of_several_goes_on_and_what_has_ended_does_not(
    loaded: LoadedModel, engine: Assembly
) -> None:
    request = asked(loaded, {"seed": 3, "max_tokens": 24, "ignore_end": True}, PROMPTS[0], n=3)
    whole = run(engine, request)
    tokens = [drawn([one for one in whole if one.index == index]) for index in range(3)]
    rest = run(engine, replace(request, begun=(tokens[0][:9], None, ())))
    assert told(rest, 0) == told(whole, 0)[9:]
    assert told(rest, 1) == []
    assert told(rest, 2) == told(whole, 2)


def test_a_prompt_that_was_read_is_not_read_again(loaded: LoadedModel, engine: Assembly) -> None:
    options = {"seed": 3, "max_tokens": 8, "prompt_logprobs": 1, "ignore_end": True}
    request = asked(loaded, options, PROMPTS[0])
    whole = run(engine, request)
    events = [event for event in whole if event.token_id is not None]
    rest = run(engine, replace(request, begun=(drawn(whole)[:3],)))
    assert told(rest) == told(events[3:]) and all(event.prompt is None for event in rest)
    again = run(engine, replace(request, begun=((),)))
    assert [event.prompt for event in again] == [event.prompt for event in whole]


def test_it_counts_as_begun_and_goes_before_those_that_have_not(
    loaded: LoadedModel, engine: Assembly
) -> None:
    rules = StopRules(4, ignore_end=True)
    for number in range(6):
        engine.engine.add(Request(f"{number}", (1, 2), SamplingParams(), rules, seed=number))
    late = Request("late", (1, 2), SamplingParams(), rules, seed=1, begun=((5,),))
    engine.engine.add(late)
    ends = []
    while engine.engine.has_work:
        ends += [one.request_id for one in engine.engine.step() if one.finish is not None]
    assert "late" in ends[:4] and len(ends) == 7


def test_what_cannot_have_been_begun_is_refused_by_name(
    loaded: LoadedModel, engine: Assembly
) -> None:
    rules = StopRules(4)

    def begun(*tokens: tuple[int, ...] | None, n: int = 1) -> Request:
        return Request("r", (1, 2), SamplingParams(), rules, seed=1, n=n, begun=tokens)

    for wrong in (((1,), (2,)), (None,), ((1, 2, 3, 4),)):
        with pytest.raises(InvalidRequest, match="begun"):
            begun(*wrong)
    for refused in (
        begun((1, 99999)),
        replace(begun((1,)), stop=StopRules(500), begun=((1,) * 158,)),
    ):
        with pytest.raises(InvalidRequest, match="begun"):
            engine.engine.add(refused)
    assert not engine.engine.has_work


def test_a_stream_knows_what_another_engine_has_still_to_do() -> None:
    request = Request("r", (1, 2, 3), SamplingParams(), StopRules(9), seed=1, n=2)
    asks = replace(request, prompt_logprobs=0)
    stream = RemoteStream(asks, lambda request_id, index: None)
    assert stream.rest() == asks
    part = PromptPart((TokenScore(-1.0),))
    stream.put(TokenEvent("r", None, 0.0, prompt=part))
    assert stream.rest() == asks, "the prompt has to be read again"
    both = PromptPart((TokenScore(-1.0), TokenScore(-2.0)))
    stream.put(TokenEvent("r", 7, 0.0, prompt=both))
    end = Finish(FinishReason.LENGTH, 9)
    stream.put(TokenEvent("r", 8, 0.0, finish=end, index=1))
    assert stream.rest().begun == ((7,), None) and stream.open_indexes == (0,)

    async def read() -> list[TokenEvent]:
        return [await stream.get() for _ in range(3)]

    parts = [event.prompt for event in asyncio.run(read())]
    assert parts == [part, PromptPart((TokenScore(-2.0),)), None], "what was told is told once"
    assert stream.put(TokenEvent("r", 9, 0.0, finish=end))
