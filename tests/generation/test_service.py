"""The service over a real child with a tiny model: answers, ends, losses, and what it tells."""

from __future__ import annotations

import asyncio
import gc
import os
import signal
import time
from collections.abc import Awaitable, Callable
from dataclasses import replace
from pathlib import Path
from typing import Any, TypeVar

import pytest

from firsthand.engine.facts import StepFacts
from firsthand.errors import (
    CapacityExceeded,
    CheckpointError,
    ContextLengthExceeded,
    EngineUnavailable,
    InvalidRequest,
    ModelNotFound,
)
from firsthand.generation import LLM, Completion
from firsthand.generation.load_options import LoadOptions
from firsthand.generation.options import Options
from firsthand.generation.service import ModelFacts, Service, ServiceOptions, Status
from firsthand.request import FinishReason

pytestmark = pytest.mark.native

CONTEXT = 256
LOAD = LoadOptions(max_context=CONTEXT, threads=1)
WAIT_S = 90.0
LONG: Options = {"max_tokens": 240, "ignore_end": True, "temperature": 0}
T = TypeVar("T")


def run(work: Callable[[Service], Awaitable[T]], options: ServiceOptions) -> T:
    """`work` with a service that is ready; at the end it is closed and its process is gone."""

    async def main() -> T:
        async with asyncio.timeout(60):
            async with await Service.start(options) as service:
                await service.wait_ready()
                return await work(service)

    return asyncio.run(main())


@pytest.fixture
def micro(micro_folder: Path) -> ServiceOptions:
    return ServiceOptions(micro_folder, LOAD, name="micro")


async def until(true: Callable[[], bool]) -> float:
    """Wait for something to become true; the seconds that it took."""
    started_s = time.monotonic()
    while not true():
        assert time.monotonic() - started_s < WAIT_S
        await asyncio.sleep(0.002)
    return time.monotonic() - started_s


def answer(completion: Completion) -> tuple[Any, ...]:
    """All that must not depend on where the engine lives."""
    return (
        completion.text,
        completion.token_ids,
        completion.finish,
        completion.usage,
        completion.seed,
        completion.logprobs,
        completion.index,
    )


ASKED: list[tuple[int, Options]] = [
    (1, {"temperature": 0, "max_tokens": 20, "seed": 4}),
    (1, {"seed": 5, "max_tokens": 30, "logprobs": 3, "top_p": 0.9}),
    (1, {"seed": 7, "max_tokens": 40, "stop": ["a", "e"]}),
    (4, {"seed": 2**64 - 2, "max_tokens": 40, "stop": ["e"], "logprobs": 1}),
    (1, {"seed": 9, "max_tokens": 9, "logit_bias": {65: 100.0}, "repetition_guard": True}),
]


def test_the_answers_are_those_of_the_engine_in_this_process(
    micro_folder: Path, micro: ServiceOptions
) -> None:
    async def work(service: Service) -> list[list[Completion]]:
        streams = []
        for n, options in ASKED:
            prompt = await service.tokenize("hello")
            streams.append(service.submit(prompt, options, n=n))
        prompt = await service.render([{"role": "user", "content": "hi <|end|>"}])
        streams.append(service.submit(prompt, {"seed": 3, "max_tokens": 12}))
        return await asyncio.gather(*[stream.completions() for stream in streams])

    found = run(work, micro)
    with LLM(micro_folder, max_context=CONTEXT, threads=1) as llm:
        for (n, options), completions in zip(ASKED, found[:-1], strict=True):
            expected = llm.stream("hello", n=n, **options).completions()
            assert [answer(one) for one in completions] == [answer(one) for one in expected]
        said = llm.chat([{"role": "user", "content": "hi <|end|>"}], seed=3, max_tokens=12)
    assert answer(found[-1][0]) == answer(said)


def test_blocks_are_counted_alike_in_both_stores(micro_folder: Path, micro: ServiceOptions) -> None:
    """A contiguous store's own block is a whole context; what is counted are blocks of 16."""

    async def work(service: Service) -> tuple[ModelFacts, Completion]:
        prompt = await service.tokenize("hello")
        found = await service.submit(prompt, {"max_tokens": 4, "seed": 1}).completions()
        return service.model, found[0]

    contiguous = replace(LOAD, kv_store="contiguous")
    with LLM(micro_folder, max_context=CONTEXT, threads=1, kv_store="contiguous") as llm:
        expected = llm.generate("hello", max_tokens=4, seed=1)
    model, answered = run(work, replace(micro, load=contiguous))
    _, paged = run(work, micro)
    assert answer(answered) == answer(expected)
    num_tokens = model.num_blocks * model.block_size
    assert model.block_size == 16
    assert num_tokens >= model.max_sequences * CONTEXT
    reserved_bytes = answered.report.memory.kv_reserved_bytes
    assert num_tokens * answered.report.memory.kv_used_bytes <= 16 * reserved_bytes
    assert answered.report.memory.kv_used_bytes == paged.report.memory.kv_used_bytes > 0


def test_chunks_joined_are_the_completion_and_the_times_add_up(micro: ServiceOptions) -> None:
    async def work(service: Service) -> None:
        prompt = await service.tokenize("hello")
        stream = service.submit(prompt, {"max_tokens": 30, "ignore_end": True, "seed": 1})
        chunks = [chunk async for chunk in stream]
        done = chunks[-1].completion
        assert (
            done is not None and [c.completion for c in chunks[:-1]].count(None) == len(chunks) - 1
        )
        assert "".join(chunk.text for chunk in chunks) == done.text
        assert sum((chunk.token_ids for chunk in chunks), ()) == done.token_ids
        usage, report = stream.usage, done.report
        assert (usage.prompt_tokens, usage.completion_tokens, usage.total_tokens) == (5, 30, 35)
        assert usage.cached_tokens == report.num_cached_tokens == 0
        stages = report.tokenize_ms + report.queue_ms + report.prompt_ms
        assert stages == pytest.approx(report.ttft_ms)
        assert min(report.tokenize_ms, report.queue_ms, report.prompt_ms) >= 0
        assert report.ttft_ms + sum(report.token_ms) <= report.total_ms
        assert len(report.token_ms) == 29
        assert report.memory.weights_bytes > 0 and report.memory.kv_used_bytes > 0
        with pytest.raises(StopAsyncIteration):
            await anext(stream)

    run(work, micro)


def test_tokens_that_were_found_computed_are_told(micro: ServiceOptions) -> None:
    async def work(service: Service) -> None:
        prompt = await service.tokenize("the same words, and again the same words")
        for expected in (0, 32):
            stream = service.submit(prompt, {"max_tokens": 2, "ignore_end": True}, n=2)
            completions = await stream.completions()
            assert stream.usage.cached_tokens == expected
            assert completions[0].report.num_cached_tokens == expected
        salted = service.submit(prompt, {"max_tokens": 2, "cache_salt": "other"})
        await salted.completions()
        assert salted.usage.cached_tokens == 0

    run(work, micro)


def test_what_ends_a_text_is_part_of_it_when_asked(micro: ServiceOptions) -> None:
    async def work(service: Service) -> None:
        prompt = await service.tokenize("x")
        force: Options = {"logit_bias": {65: 100.0}, "max_tokens": 4, "stop": "A"}

        async def text(**how: bool) -> str:
            return (await service.submit(prompt, force, **how).completions())[0].text

        assert (await text(), await text(include_stop_string=True)) == ("", "A")
        force = {"logit_bias": {256: 100.0}, "max_tokens": 2, "ignore_end": True}
        assert (await text(), await text(skip_special_tokens=False)) == ("", "<|end|>" * 2)
        force = {"logit_bias": {256: 100.0}, "max_tokens": 2}
        assert await text(skip_special_tokens=False) == ""
        assert await text(skip_special_tokens=False, include_stop_string=True) == "<|end|>"

    run(work, micro)


def test_refusals_are_typed_and_leave_nothing_behind(micro: ServiceOptions) -> None:
    async def work(service: Service) -> None:
        prompt = await service.tokenize("x")
        with pytest.raises(InvalidRequest, match="temperature") as bad:
            service.submit(prompt, {"temperature": -1})
        assert bad.value.field == "temperature"
        with pytest.raises(InvalidRequest, match="prompt"):
            service.submit(service.prompt_of([999]), {})
        with pytest.raises(InvalidRequest, match="prompt"):
            service.submit(service.prompt_of([]), {})
        with pytest.raises(ContextLengthExceeded):
            service.submit(service.prompt_of([1] * CONTEXT), {})
        with pytest.raises(ContextLengthExceeded):
            await service.tokenize("x" * 100_000)
        with pytest.raises(InvalidRequest, match="role"):
            await service.render([{"role": "boss", "content": "hi"}])
        with pytest.raises(InvalidRequest, match="tokens"):
            await service.detokenize([300])
        streams = [service.submit(prompt, LONG) for _ in range(3)]
        with pytest.raises(CapacityExceeded):
            service.submit(prompt, {})
        for stream in streams:
            stream.close()
        await until(lambda: service.load.num_open == 0)
        assert (await service.submit(prompt, {"max_tokens": 1}).completions())[0].text is not None

    run(work, replace(micro, max_requests=3))


def test_text_goes_both_ways_and_long_texts_too(micro: ServiceOptions) -> None:
    async def work(service: Service) -> None:
        for text in ("héllo 你好", "ab" * 2000):
            prompt = await service.tokenize(text[:250])
            assert bytes(prompt.token_ids).decode() == text[:250] == prompt.text
            ids = list(text.encode())
            assert await service.detokenize(ids) == text
        assert await service.detokenize([65, 256]) == "A<|end|>"
        assert await service.detokenize([65, 256], skip_special=True) == "A"
        assert service.token_text(66) == "B"
        messages = [{"role": "user", "content": "hi"}, {"role": "assistant", "content": "well, "}]
        rendered = await service.render(messages)
        assert rendered.text == "user: hi\nassistant: well, \nassistant: "
        assert not rendered.continues
        cut = await service.render(
            messages, add_generation_prompt=False, continue_final_message=True
        )
        assert cut.text == "user: hi\nassistant: well, "
        assert cut.continues
        with pytest.raises(InvalidRequest, match="continue_final_message"):
            await service.render(messages, continue_final_message=True)

    run(work, micro)


def test_facts_of_the_model_and_numbers_for_admission(micro: ServiceOptions) -> None:
    async def work(service: Service) -> None:
        model = service.model
        assert (model.name, model.context_length, model.vocab_size) == ("micro", CONTEXT, 257)
        assert model.end_token_ids == (256,)
        assert model.has_chat_template and model.num_blocks > 0 and model.block_size == 16
        assert model.created_s <= time.time() and os.sep not in model.file
        steps: list[StepFacts] = []
        quiet = service.listen(steps.append)
        prompt = await service.tokenize("hello")
        stream = service.submit(prompt, {"max_tokens": 8, "ignore_end": True})
        before = service.load
        assert (before.num_open, before.num_waiting_tokens, before.num_owed_tokens) == (1, 5, 13)
        await stream.completions()
        after = service.load
        assert (after.num_open, after.num_waiting_tokens, after.num_owed_tokens) == (0, 0, 0)
        assert (after.total_submitted, after.total_ended) == (1, 1)
        assert (after.total_computed_tokens, after.total_drawn_tokens) == (12, 8)
        assert after.drawn_tokens_per_s > 0 and after.ended_per_s > 0
        assert after.num_used_blocks == after.num_running == 0
        assert len(steps) == 8
        quiet()
        await service.submit(prompt, {"max_tokens": 2, "ignore_end": True}).completions()
        assert len(steps) == 8

    run(work, micro)


@pytest.mark.parametrize("way", ["close", "drop", "cancel", "leave"])
def test_a_reader_who_leaves_frees_the_blocks_within_a_step(
    micro: ServiceOptions, way: str
) -> None:
    async def work(service: Service) -> None:
        steps: list[StepFacts] = []
        prompt = await service.tokenize("hello")
        other = service.submit(prompt, LONG)  # so that steps go on
        stream = service.submit(prompt, LONG)
        await anext(stream)
        service.listen(steps.append)
        request_id = stream.request_id
        if way == "close":
            stream.close()
            stream.close()
        elif way == "drop":
            del stream
            gc.collect()
        elif way == "leave":
            async with stream:
                pass
        else:

            async def read() -> None:
                async with stream:
                    async for _ in stream:
                        pass

            task = asyncio.create_task(read())
            await asyncio.sleep(0)
            task.cancel()
            with pytest.raises(asyncio.CancelledError):
                await task
        left_s = service.clock()
        await other.completions()
        await until(lambda: service.load.num_open == 0)
        in_steps = [s for s in steps if request_id in s.request_ids and s.started_s > left_s]
        assert len(in_steps) <= 3  # what was under way when the abort was sent, and its arrival
        assert service.load.num_used_blocks == 0

    run(work, micro)


def test_an_abort_from_elsewhere_ends_the_stream_with_its_reason(micro: ServiceOptions) -> None:
    async def work(service: Service) -> None:
        stream = service.submit(await service.tokenize("hello"), LONG, n=2)
        first = await anext(stream)
        assert service.abort(stream.request_id)
        completions = await stream.completions()
        assert {one.finish.reason for one in completions} == {FinishReason.CANCELLED}
        assert completions[first.index].text.startswith(first.text)
        assert not service.abort(stream.request_id)

    run(work, micro)


def test_a_deadline_counts_from_the_prompt(micro: ServiceOptions) -> None:
    async def work(service: Service) -> None:
        prompt = await service.tokenize("hello")
        await asyncio.sleep(0.06)
        stream = service.submit(prompt, {**LONG, "timeout_s": 0.05})
        assert (await stream.completions())[0].finish.reason is FinishReason.DEADLINE

    run(work, micro)


def test_a_slow_reader_holds_nobody_up_and_loses_nothing(micro: ServiceOptions) -> None:
    async def work(service: Service) -> None:
        prompt = await service.tokenize("hello")
        slow = service.submit(prompt, LONG)
        quick = await service.submit(prompt, LONG).completions()
        await until(lambda: service.load.num_open == 0)
        chunks = [chunk async for chunk in slow]
        assert len(chunks) == 1  # all that had come, at once
        assert chunks[0].completion is not None
        assert chunks[0].completion.token_ids == quick[0].token_ids

    run(work, micro)


@pytest.mark.parametrize("kill", [signal.SIGKILL, signal.SIGSEGV])
def test_a_dead_engine_is_seen_told_and_replaced(
    micro: ServiceOptions, kill: signal.Signals
) -> None:
    async def work(service: Service) -> None:
        prompt = await service.tokenize("hello")
        streams = [service.submit(prompt, LONG, n=n) for n in (1, 2)]
        for stream in streams:
            await anext(stream)
        pid = service.state.pid
        assert pid is not None
        os.kill(pid, kill)
        started_s = time.monotonic()
        for stream in streams:
            with pytest.raises(EngineUnavailable, match=f"lost.*{kill.name}"):
                await stream.completions()
        assert time.monotonic() - started_s < 2.0
        state = service.state
        assert state.status is Status.RESTARTING and kill.name in state.reason
        assert service.load.num_open == service.load.num_running == 0
        with pytest.raises(EngineUnavailable, match="restarting"):
            service.submit(prompt, {})
        await service.wait_ready()
        assert service.state.num_restarts == 1 and service.state.pid != pid
        assert service.state.status is Status.READY
        assert (await service.submit(prompt, {"max_tokens": 2}).completions())[0].token_ids

    run(work, micro)


def test_a_hung_engine_is_seen_and_replaced(micro: ServiceOptions) -> None:
    """With the default limit: the goal is 10 s."""

    async def work(service: Service) -> None:
        stream = service.submit(await service.tokenize("hello"), LONG)
        await anext(stream)
        pid = service.state.pid
        assert pid is not None
        os.kill(pid, signal.SIGSTOP)
        started_s = time.monotonic()
        with pytest.raises(EngineUnavailable, match="hung"):
            await stream.completions()
        assert 4.0 < time.monotonic() - started_s < 10.0
        await service.wait_ready()
        assert service.state.status is Status.READY and service.state.num_restarts == 1

    run(work, micro)


def test_an_engine_that_only_pauses_is_late_and_then_ready(micro: ServiceOptions) -> None:
    async def work(service: Service) -> None:
        stream = service.submit(await service.tokenize("hello"), LONG)
        pid = service.state.pid
        assert pid is not None
        os.kill(pid, signal.SIGSTOP)
        await until(lambda: service.state.status is Status.DEGRADED)
        heartbeat_age_s = service.state.heartbeat_age_s
        assert heartbeat_age_s is not None and heartbeat_age_s > 2.0
        os.kill(pid, signal.SIGCONT)
        await until(lambda: service.state.status is Status.READY)
        assert (await stream.completions())[0].finish.reason is FinishReason.LENGTH
        assert service.state.num_restarts == 0

    run(work, micro)


def test_sleep_gives_the_memory_back_and_wake_serves_again(micro: ServiceOptions) -> None:
    async def work(service: Service) -> None:
        prompt = await service.tokenize("hello")
        pid = service.state.pid
        assert pid is not None
        await service.sleep()
        assert service.state.status is Status.ASLEEP and service.state.pid is None
        with pytest.raises(ProcessLookupError):
            os.kill(pid, 0)
        with pytest.raises(EngineUnavailable, match="asleep"):
            service.submit(prompt, {})
        assert (await service.tokenize("x")).token_ids == (120,)
        await service.wake()
        await service.wait_ready()
        await service.wake()
        assert (await service.submit(prompt, {"max_tokens": 2}).completions())[0].token_ids

    run(work, micro)


def test_closing_ends_what_is_open(micro: ServiceOptions) -> None:
    async def work(service: Service) -> None:
        stream = service.submit(await service.tokenize("hello"), LONG)
        await service.close()
        await service.close()
        with pytest.raises(EngineUnavailable, match="closed"):
            await stream.completions()
        with pytest.raises(EngineUnavailable, match="closed"):
            await service.wait_ready()
        await service.wake()
        assert service.state.status is Status.CLOSED

    run(work, micro)


def test_what_is_wrong_with_a_model_reaches_the_caller_typed(
    micro_folder: Path, tmp_path: Path
) -> None:
    with pytest.raises(ModelNotFound):
        asyncio.run(Service.start(ServiceOptions(tmp_path / "none", LOAD)))
    for file in micro_folder.iterdir():
        (tmp_path / file.name).write_bytes(file.read_bytes())
    weights = tmp_path / "model.safetensors"
    # An infinity in a weight: only the engine reads so far.
    data = bytearray(weights.read_bytes())
    data[-4:] = b"\x00\x00\x80\x7f"
    weights.write_bytes(data)

    async def main() -> None:
        async with await Service.start(ServiceOptions(tmp_path, LOAD)) as service:
            with pytest.raises(CheckpointError) as wrong:
                await service.wait_ready()
            assert wrong.value.tensor is not None and wrong.value.file.endswith(".safetensors")
            assert service.state.status is Status.FAILED
            assert "tensor" in service.state.reason

    asyncio.run(main())


def test_the_loop_is_not_held_by_long_texts(micro: ServiceOptions) -> None:
    async def work(service: Service) -> float:
        longest_s = 0.0
        done = asyncio.Event()

        async def watch() -> None:
            """The processor time that the loop's thread takes between two of its turns."""
            nonlocal longest_s
            while not done.is_set():
                started_s = time.thread_time()
                await asyncio.sleep(0)
                longest_s = max(longest_s, time.thread_time() - started_s)

        task = asyncio.create_task(watch())
        messages = [{"role": "user", "content": "long " * 40} for _ in range(100)]
        for _ in range(3):
            await service.render(messages)
            await service.detokenize([65] * 200_000)
        done.set()
        await task
        return longest_s

    assert run(work, micro) < 0.02
