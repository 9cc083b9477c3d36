"""The façade over a real, if tiny, model: what must be equal is compared with ==."""

from __future__ import annotations

import gc
import os
import random
import signal
import threading
import time
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any

import numpy as np
import pytest
from numpy.typing import NDArray

from firsthand.compute.batch import FlatBatch
from firsthand.errors import ContextLengthExceeded, EngineError, InvalidRequest
from firsthand.generation import LLM, Completion
from firsthand.generation.load_options import LoadOptions
from firsthand.generation.loading import LoadedModel, load_model
from firsthand.kvcache.store import KVStore
from firsthand.request import FinishReason, RepetitionGuard

pytestmark = pytest.mark.native

CONTEXT = 64
WAIT_S = 60.0


@pytest.fixture(scope="module")
def loaded(micro_folder: Path) -> LoadedModel:
    return load_model(micro_folder, LoadOptions(max_context=CONTEXT, threads=1))


@pytest.fixture
def llm(loaded: LoadedModel) -> Iterator[LLM]:
    with LLM(loaded) as model:
        yield model


def bits(completion: Completion) -> tuple[Any, ...]:
    """All of an answer that must not depend on how it was computed."""
    return (
        completion.text,
        completion.token_ids,
        completion.finish,
        completion.usage,
        completion.seed,
        completion.logprobs,
    )


OPTIONS: list[dict[str, Any]] = [
    {"temperature": 0, "max_tokens": 20, "seed": 4},
    {"seed": 5, "max_tokens": 30, "logprobs": 3},
    {"seed": 6, "max_tokens": 30, "top_k": 20, "top_p": 0.9, "repetition_penalty": 1.3},
    {"seed": 7, "max_tokens": 40, "stop": ["a", "e"]},
    {"seed": 8, "max_tokens": 1},
]


@pytest.mark.parametrize("options", OPTIONS)
def test_stream_is_not_streamed(llm: LLM, options: dict[str, Any]) -> None:
    whole = llm.generate("hello", **options)
    chunks = list(llm.stream("hello", **options))
    assert chunks[-1].completion is not None
    assert bits(chunks[-1].completion) == bits(whole)
    assert "".join(chunk.text for chunk in chunks) == whole.text
    assert sum(len(chunk.token_ids) for chunk in chunks) == whole.usage.completion_tokens


def test_batched_is_alone(llm: LLM) -> None:
    prompts = [f"{'word ' * (n % 7)}{n}" for n in range(13)]
    options: dict[str, Any] = {"seed": 3, "max_tokens": 20, "logprobs": 2}
    together = llm.generate(prompts, **options)
    assert max(completion.report.peak_batch for completion in together) > 1
    for prompt, completion in zip(prompts, together, strict=True):
        assert bits(llm.generate(prompt, **options)) == bits(completion)


@pytest.mark.parametrize("n", [2, 4, 8])
def test_logprob_4_logprob_6_several_answers_are_those_of_their_seeds(llm: LLM, n: int) -> None:
    options: dict[str, Any] = {"max_tokens": 12, "logprobs": 2}
    together = llm.generate("hello", n=n, seed=7, **options)
    assert [answer.index for answer in together] == list(range(n))
    assert len({answer.token_ids for answer in together}) == n
    for index, answer in enumerate(together):
        alone = llm.generate("hello", seed=7 + index, **options)
        assert bits(answer) == bits(alone)
    assert [bits(a) for a in llm.generate("hello", n=n, seed=7, **options)] == [
        bits(a) for a in together
    ]


def test_several_answers_to_each_of_several_prompts(llm: LLM) -> None:
    options: dict[str, Any] = {"max_tokens": 5, "seed": 1}
    prompts = ["one", "and two"]
    answers = llm.generate(prompts, n=3, **options)
    for prompt, found in zip(prompts, answers, strict=True):
        alone = llm.generate(prompt, n=3, **options)
        assert [bits(answer) for answer in found] == [bits(answer) for answer in alone]
    assert llm.generate("one", n=1, **options).token_ids == answers[0][0].token_ids


def test_logprob_5_pieces_of_several_answers_tell_whose_they_are(llm: LLM) -> None:
    """Different lengths by a stop string: one end each, and the others go on."""
    options: dict[str, Any] = {"max_tokens": 40, "seed": 5, "stop": ["e", "a"]}
    stream = llm.stream("hello", n=6, **options)
    chunks = list(stream)
    for index, answer in enumerate(stream.completions()):
        own = [chunk for chunk in chunks if chunk.index == index]
        assert [chunk.completion for chunk in own] == [None] * (len(own) - 1) + [answer]
        assert "".join(chunk.text for chunk in own) == answer.text
        assert bits(answer) == bits(llm.generate("hello", **{**options, "seed": 5 + index}))
    report = chunks[-1].completion.report if chunks[-1].completion else None
    assert report is not None
    assert report.num_steps <= 41 * 6


def test_a_time_limit_ends_what_is_not_done(llm: LLM) -> None:
    done = llm.generate("hello", max_tokens=5, timeout_s=60.0, priority="urgent", tenant="t")
    assert done.finish.reason is FinishReason.LENGTH
    late = llm.generate("hello", max_tokens=50, timeout_s=1e-6, ignore_end=True)
    assert late.finish.reason is FinishReason.DEADLINE


def test_chunked_is_whole(micro_folder: Path, llm: LLM) -> None:
    prompt = "a prompt that is longer than a step of seven tokens"
    options: dict[str, Any] = {"seed": 3, "max_tokens": 10, "logprobs": 2}
    small = LoadOptions(max_context=CONTEXT, threads=1, max_step_tokens=7)
    with LLM(load_model(micro_folder, small)) as chunked:
        piecewise = chunked.generate(prompt, **options)
    assert piecewise.report.num_steps == -(-len(prompt) // 7) + 9
    assert bits(piecewise) == bits(llm.generate(prompt, **options))


def test_sample_7_neighbours_change_nothing(llm: LLM) -> None:
    alone = llm.generate("me", seed=42, temperature=0.8, max_tokens=16)
    neighbours = [llm.stream("them", max_tokens=30) for _ in range(3)]
    next(neighbours[0])
    among = llm.generate("me", seed=42, temperature=0.8, max_tokens=16)
    assert among.token_ids == alone.token_ids


def test_sample_8_unseeded_answers_differ_and_can_be_repeated(llm: LLM) -> None:
    answers = [llm.generate("x", max_tokens=8, temperature=3) for _ in range(10)]
    assert len({answer.token_ids for answer in answers}) == 10
    for answer in answers[:3]:
        again = llm.generate("x", max_tokens=8, temperature=3, seed=answer.seed)
        assert bits(again) == bits(answer)
    assert llm.generate("x", seed=0, max_tokens=3) != answers[0]


@pytest.mark.parametrize(
    ("prompt", "new", "count", "reason"),
    [
        (63, 1, 1, "length"),
        (40, 24, 24, "length"),
        (40, 25, 24, "context"),
        (40, 1000, 24, "context"),
    ],
)
def test_stop_7_the_context_ends_what_max_tokens_does_not(
    llm: LLM, prompt: int, new: int, count: int, reason: str
) -> None:
    completion = llm.generate([65] * prompt, max_tokens=new, ignore_end=True)
    assert completion.usage.completion_tokens == count
    assert completion.finish_reason == reason
    (*_, last) = llm.stream([65] * prompt, max_tokens=new, ignore_end=True)
    assert last.finish_reason == reason


@pytest.mark.parametrize("length", [64, 65, 1000])
def test_stop_8_stop_10_a_prompt_that_fills_the_context_is_refused(llm: LLM, length: int) -> None:
    with pytest.raises(ContextLengthExceeded, match=rf"{length} .*64"):
        llm.generate([65] * length)
    assert llm.generate("next", max_tokens=1).usage.completion_tokens == 1


@pytest.mark.parametrize(
    "prompt", [[-1], [257], [2**40], [1, "a"], [True], [], "", b"bytes", 7, None, [None]]
)
def test_prompt_9_a_prompt_that_is_none_is_refused(llm: LLM, prompt: Any) -> None:
    with pytest.raises(InvalidRequest):
        llm.generate(prompt)
    with pytest.raises(InvalidRequest):
        llm.stream(prompt)


def test_stop_5_sample_9_ids_outside_the_vocabulary_are_refused(llm: LLM) -> None:
    with pytest.raises(InvalidRequest, match="stop_token_ids"):
        llm.generate("x", stop_token_ids=[257])
    with pytest.raises(InvalidRequest, match="logit_bias"):
        llm.stream("x", logit_bias={257: 1.0})


def test_one_bad_prompt_of_a_list_is_refused_before_any_is_run(llm: LLM) -> None:
    with pytest.raises(InvalidRequest):
        llm.generate([[65], [999]], max_tokens=2)
    assert llm._worker.num_requests == 0


def test_prompt_1_white_space_is_text(llm: LLM) -> None:
    assert llm.generate(" ", max_tokens=1).usage.prompt_tokens == 1
    assert llm.tokenize("\n\n") == [10, 10]


def test_biases_force_the_tokens_and_so_each_reason_to_end(llm: LLM) -> None:
    force_a: dict[int, float] = {97: 100.0}
    assert llm.generate("x", logit_bias=force_a, max_tokens=3).text == "aaa"
    stopped = llm.generate("x", logit_bias=force_a, stop="aa", max_tokens=9)
    assert (stopped.text, stopped.finish_reason, stopped.token_ids) == (
        "",
        "stop_string",
        (97,) * 2,
    )
    by_id = llm.generate("x", logit_bias=force_a, stop_token_ids=[97], min_tokens=3, max_tokens=9)
    assert (by_id.text, by_id.finish_reason, len(by_id.token_ids)) == ("aa", "stop_id", 3)
    ended = llm.generate("x", logit_bias={256: 100.0}, max_tokens=9)
    assert (ended.text, ended.finish_reason, ended.token_ids) == ("", "end_token", (256,))
    guard = RepetitionGuard(max_run=2, times=4)
    repeated = llm.generate("x", logit_bias=force_a, repetition_guard=guard, max_tokens=9)
    assert (repeated.text, repeated.finish_reason) == ("aaaa", "repetition")


def test_logprobs_come_with_every_token(llm: LLM) -> None:
    completion = llm.generate("x", max_tokens=5, temperature=0, logprobs=2)
    assert completion.logprobs is not None
    assert [entry.token_id for entry in completion.logprobs] == list(completion.token_ids)
    for entry in completion.logprobs:
        assert len(entry.top) == 2
        assert entry.top[0] == (entry.token_id, entry.text, entry.logprob)
        assert entry.top[0][2] >= entry.top[1][2]


def test_chat_renders_the_template(llm: LLM) -> None:
    messages = [{"role": "user", "content": "hi"}]
    rendered = "user: hi\nassistant: "
    assert bytes(llm.tokenize_chat(messages)).decode() == rendered
    answer = llm.chat(messages, seed=1, max_tokens=6)
    assert answer.token_ids == llm.generate(rendered, seed=1, max_tokens=6).token_ids
    (*_, last) = llm.stream_chat(messages, seed=1, max_tokens=6)
    assert last.completion is not None
    assert bits(last.completion) == bits(answer)
    with pytest.raises(InvalidRequest, match="role"):
        llm.chat([{"role": "nobody", "content": "hi"}])


def test_unknown_names_are_refused_with_a_suggestion(llm: LLM, micro_folder: Path) -> None:
    with pytest.raises(InvalidRequest, match="did you mean 'max_tokens'"):
        llm.generate("x", max_token=3)  # type: ignore[call-overload]
    with pytest.raises(InvalidRequest, match="did you mean 'quantization'"):
        LLM(micro_folder, quantisation="int8")  # type: ignore[call-arg]
    with pytest.raises(InvalidRequest, match="loaded already"):
        LLM(llm.loaded, threads=2)


Run = Callable[[FlatBatch, KVStore], NDArray[np.float32]]


def test_ctrl_c_ends_the_generation_and_leaves_the_engine_usable(
    llm: LLM, monkeypatch: pytest.MonkeyPatch
) -> None:
    run: Run = llm.loaded.executor.run
    released = threading.Event()
    steps: list[int] = []

    def interrupt_in_the_third(batch: FlatBatch, store: KVStore) -> NDArray[np.float32]:
        steps.append(batch.num_tokens)
        if len(steps) == 3:
            os.kill(os.getpid(), signal.SIGINT)
            assert released.wait(WAIT_S)
        return run(batch, store)

    with monkeypatch.context() as patch:
        patch.setattr(llm.loaded.executor, "run", interrupt_in_the_third)
        completion = llm.generate("x", max_tokens=50, ignore_end=True)
        released.set()
    assert completion.finish.reason is FinishReason.CANCELLED
    assert len(completion.token_ids) <= 2
    assert llm.generate("y", max_tokens=2, ignore_end=True).usage.completion_tokens == 2


def test_ctrl_c_in_a_list_cancels_all_that_has_not_ended(
    llm: LLM, monkeypatch: pytest.MonkeyPatch
) -> None:
    run: Run = llm.loaded.executor.run
    released = threading.Event()
    steps: list[int] = []

    def interrupt_in_the_fifth(batch: FlatBatch, store: KVStore) -> NDArray[np.float32]:
        steps.append(batch.num_tokens)
        if len(steps) == 5:
            os.kill(os.getpid(), signal.SIGINT)
            assert released.wait(WAIT_S)
        return run(batch, store)

    with monkeypatch.context() as patch:
        patch.setattr(llm.loaded.executor, "run", interrupt_in_the_fifth)
        completions = llm.generate(["x"] * 20, max_tokens=30, ignore_end=True)
        released.set()
    assert [c.finish.reason for c in completions] == [FinishReason.CANCELLED] * 20
    assert llm.generate("y", max_tokens=2, ignore_end=True).usage.completion_tokens == 2


def test_s_45_a_step_that_fails_is_an_error_and_the_engine_lives(
    llm: LLM, monkeypatch: pytest.MonkeyPatch
) -> None:
    run: Run = llm.loaded.executor.run
    steps: list[int] = []

    def fail_once(batch: FlatBatch, store: KVStore) -> NDArray[np.float32]:
        steps.append(batch.num_tokens)
        if len(steps) == 2:
            raise RuntimeError("a fault on purpose")
        return run(batch, store)

    with monkeypatch.context() as patch:
        patch.setattr(llm.loaded.executor, "run", fail_once)
        with pytest.raises(EngineError, match="a fault on purpose"):
            llm.generate("x", max_tokens=9, ignore_end=True)
        steps.clear()
        completions = llm.generate(["x"] * 24, max_tokens=9, ignore_end=True)
    reasons = [completion.finish.reason for completion in completions]
    assert reasons == [FinishReason.LENGTH] * 24  # computed again in halves
    assert llm._engine._scheduler.num_used_blocks == 0


def test_kv_1_a_stream_left_early_frees_its_place(llm: LLM) -> None:
    for _ in range(12):
        for _chunk in llm.stream("x", max_tokens=60, ignore_end=True):
            break
    gc.collect()
    assert llm.generate("y", max_tokens=2, ignore_end=True).usage.completion_tokens == 2


def test_trace_does_not_touch_a_running_sequence(llm: LLM) -> None:
    expected = llm.generate("abc", seed=1, max_tokens=40).token_ids
    stream = llm.stream("abc", seed=1, max_tokens=40)
    next(stream)
    prompt = llm.trace("0123456789")
    token = llm.trace("0123456789", step="token")
    assert stream.completion().token_ids == expected
    assert prompt[0].shape == (10, 64)
    assert token[0].shape == (1, 64)
    assert prompt[-1].shape == token[-1].shape == (1, 257)


def test_the_report_adds_up(llm: LLM) -> None:
    report = llm.generate("hello", max_tokens=5, ignore_end=True).report
    assert (report.num_prompt_tokens, report.num_tokens, report.num_steps) == (5, 5, 5)
    assert len(report.token_ms) == 4
    stages = report.tokenize_ms + report.queue_ms + report.prompt_ms
    assert stages == pytest.approx(report.ttft_ms)
    assert report.ttft_ms + report.predicted_ms <= report.total_ms
    assert 0 < report.forward_ms + report.sample_ms <= report.prompt_ms + report.predicted_ms
    memory = report.memory
    assert memory.kv_used_bytes == llm.loaded.store.resident_bytes(9)
    assert memory.weights_bytes == llm.memory().weights_bytes > 0


def test_the_weights_are_asked_for_their_size_once_not_for_each_report(
    llm: LLM, monkeypatch: pytest.MonkeyPatch
) -> None:
    first = llm.generate("hello", max_tokens=2).report.memory
    monkeypatch.setattr(type(llm.loaded.executor), "memory", None)
    second = llm.generate("hello", max_tokens=2).report.memory
    assert second.weights_bytes == first.weights_bytes > 0
    assert second.scratch_bytes == first.scratch_bytes


def test_a_closed_model_refuses(loaded: LoadedModel) -> None:
    model = LLM(loaded)
    stream = model.stream("x", max_tokens=1000, ignore_end=True)
    model.close()
    model.close()
    assert stream.completion().finish.reason in (FinishReason.CANCELLED, FinishReason.CONTEXT)
    with pytest.raises(EngineError, match="does not run"):
        model.generate("x")


def test_a_forgotten_model_ends_its_thread(loaded: LoadedModel) -> None:
    model = LLM(loaded)
    thread = model._worker._thread
    del model
    gc.collect()
    thread.join(WAIT_S)
    assert not thread.is_alive()


@pytest.mark.model
def test_the_real_model_knows_a_capital_and_ends_its_turn(smollm2_path: Path) -> None:
    with LLM(smollm2_path, max_context=256) as llm:
        answer = llm.generate("The capital of France is", max_tokens=8, temperature=0, logprobs=1)
        assert answer.text.startswith(" Paris")
        prompts = ["The capital of France is", "Once upon a time", "1 2 3 4"]
        together = llm.generate(prompts, max_tokens=8, temperature=0, logprobs=1)
        assert bits(together[0])[:4] == bits(answer)[:4]
        assert together[0].logprobs == answer.logprobs
        reply = llm.chat(
            [{"role": "user", "content": "What is 2+2?"}], max_tokens=60, temperature=0
        )
        assert reply.finish_reason == "end_token"
        assert "4" in reply.text
        assert "<|" not in reply.text


def test_a_loaded_model_has_one_engine_at_a_time(loaded: LoadedModel) -> None:
    """Two engines over one executor would share its scratch memory and its blocks."""
    with LLM(loaded) as first:
        with pytest.raises(InvalidRequest, match="another LLM"):
            LLM(loaded)
        assert first.generate("abc", max_tokens=2).usage.completion_tokens == 2
    LLM(loaded).close()


def test_a_forked_child_is_told_instead_of_hanging(llm: LLM) -> None:
    read_end, write_end = os.pipe()
    child = os.fork()
    if child == 0:
        try:
            llm.generate("abc", max_tokens=1)
            os.write(write_end, b"no error")
        except EngineError as fault:
            os.write(write_end, str(fault).encode())
        finally:
            os._exit(0)
    os.waitpid(child, 0)
    assert b"forked" in os.read(read_end, 1000)
    assert llm.generate("abc", max_tokens=1).usage.completion_tokens == 1
    os.close(read_end)
    os.close(write_end)


def test_cancelling_an_ended_stream_gives_its_end_again(llm: LLM) -> None:
    stream = llm.stream("abc", max_tokens=3, ignore_end=True)
    done = stream.completion()
    assert stream.cancel().completion == done
    assert done.finish.reason is FinishReason.LENGTH


@pytest.mark.parametrize(
    ("field", "options"),
    [
        ("max_step_tokens", {"max_step_tokens": 10**9}),
        ("max_step_tokens", {"max_step_tokens": 10**5000}),
        ("max_sequences", {"max_sequences": 10**6, "max_step_tokens": 10**4}),
        ("disabled_rules", {"disabled_rules": None}),
        ("disabled_rules", {"disabled_rules": 5}),
        ("disabled_rules", {"disabled_rules": "rope"}),
        ("chat_template", {"chat_template": 5}),
    ],
    ids=range(7),
)
def test_load_options_of_the_wrong_kind_or_size_are_refused_by_name(
    micro_folder: Path, field: str, options: dict[str, Any]
) -> None:
    with pytest.raises(InvalidRequest) as caught:
        LLM(micro_folder, **options)
    assert caught.value.field == field
    assert len(str(caught.value)) < 400


def test_trace_and_memory_check_what_they_are_asked(llm: LLM) -> None:
    step: Any = "bogus"
    with pytest.raises(InvalidRequest, match="step"):
        llm.trace("abc", step=step)
    with pytest.raises(InvalidRequest, match="num_tokens"):
        llm.memory(-1)
    with pytest.raises(InvalidRequest, match="model"):
        LLM(None)  # type: ignore[arg-type]


class Interrupts:
    """Ctrl-C at random moments of an action on the main thread. Python cannot raise inside a
    callback of its garbage collector, and other tests leave such callbacks behind: they rest."""

    def __init__(self, seed: int) -> None:
        self._rng = random.Random(seed)
        self._armed = False
        self.num_struck = 0

    def _strike(self, *_: object) -> None:
        if self._armed:
            raise KeyboardInterrupt

    def during(self, action: Callable[[], object]) -> None:
        callbacks, gc.callbacks[:] = gc.callbacks[:], []
        before = signal.signal(signal.SIGALRM, self._strike)
        self._armed = True
        try:
            signal.setitimer(signal.ITIMER_REAL, self._rng.uniform(1e-5, 3e-3))
            action()
            self._armed = False
        except KeyboardInterrupt:
            self._armed = False
            self.num_struck += 1
        signal.setitimer(signal.ITIMER_REAL, 0)
        signal.signal(signal.SIGALRM, before)
        gc.callbacks[:] = callbacks


# What is read of /proc for the report may be left to the collector, which closes it.
@pytest.mark.filterwarnings("ignore:unclosed file:ResourceWarning")
def test_ctrl_c_at_any_moment_leaves_a_whole_answer_and_a_living_engine(llm: LLM) -> None:
    """No lock may be left held, no token lost between its chunk and the completion."""
    want = bits(llm.generate("abc", max_tokens=8, seed=1, logprobs=1))
    broken: list[object] = []

    def read_a_stream() -> None:
        try:
            chunks = list(llm.stream("abc", max_tokens=8, seed=1, logprobs=1))
        except EngineError as fault:
            broken.append(fault)
            return
        done = chunks[-1].completion
        whole = (
            done is not None
            and len(done.logprobs or ()) == len(done.token_ids)
            and "".join(chunk.text for chunk in chunks) == done.text
            and sum((chunk.token_ids for chunk in chunks), ()) == done.token_ids
        )
        if not whole:
            broken.append(chunks)

    interrupts = Interrupts(5)
    for _ in range(400):
        interrupts.during(read_a_stream)
    assert not broken
    assert bits(llm.generate("abc", max_tokens=8, seed=1, logprobs=1)) == want


def test_an_interrupted_close_can_be_repeated(loaded: LoadedModel) -> None:
    interrupts = Interrupts(7)
    for _ in range(20):
        model = LLM(loaded)
        model.stream("abc", max_tokens=50)
        interrupts.during(model.close)
        model.close()
    with LLM(loaded) as again:
        assert again.generate("abc", max_tokens=1).usage.completion_tokens == 1


def test_prompt_10_a_text_that_can_only_be_too_long_is_refused_at_once(llm: LLM) -> None:
    began_s = time.monotonic()
    with pytest.raises(ContextLengthExceeded, match="at least"):
        llm.generate("a" * 10_000_000)
    assert time.monotonic() - began_s < 2.0
