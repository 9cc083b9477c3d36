"""The thread: bounded in, ordered out, and nobody is left waiting."""

from __future__ import annotations

import random
import threading
import time
from collections.abc import Iterator
from contextlib import contextmanager

import pytest

from firsthand.engine.engine import Engine
from firsthand.engine.worker import EventStream, Worker
from firsthand.errors import CapacityExceeded, EngineError, InvalidRequest
from firsthand.kvcache.blocks import BlockPool
from firsthand.kvcache.prefix import PrefixCache
from firsthand.request import FinishReason, Request, SamplingParams, StopRules, TokenEvent
from firsthand.scheduling.limits import Limits
from firsthand.scheduling.plan import Drawn, StepPlan, StepResult
from firsthand.scheduling.scheduler import Scheduler

WAIT_S = 5.0


class FakeRunner:
    """Draws the position; waits in a step while `gate` is closed; dies when `dies` is set."""

    def __init__(self) -> None:
        self.gate = threading.Event()
        self.gate.set()
        self.in_step = threading.Event()
        self.dies = False
        self.pause_in: int | None = None  # the number of a step that closes the gate itself
        self.num_steps = 0

    def run(self, plan: StepPlan) -> StepResult:
        self.num_steps += 1
        if self.num_steps == self.pause_in:
            self.gate.clear()
        self.in_step.set()
        assert self.gate.wait(WAIT_S)
        if self.dies:
            raise SystemExit  # not an Exception: it passes the engine's boundary
        drawn = tuple(
            Drawn(piece.sequence_id, piece.draw.position) for piece in plan.slices if piece.draw
        )
        return StepResult(drawn, 0.0, 0.0)


@contextmanager
def running(runner: FakeRunner, max_requests: int = 8, *, start: bool = True) -> Iterator[Worker]:
    scheduler = Scheduler(Limits(1000, 500, 2, 8), BlockPool(2, 500))
    engine = Engine(scheduler, runner, time.monotonic, lambda fact: None)
    worker = Worker(engine, time.monotonic, max_requests)
    if start:
        worker.start()
    try:
        yield worker
    finally:
        runner.gate.set()
        worker.close(WAIT_S)


def request(name: str, prompt: int = 2, new: int = 3, n: int = 1) -> Request:
    return Request(name, (1,) * prompt, SamplingParams(), StopRules(new), 0, n)


def reason(events: list[TokenEvent]) -> FinishReason:
    (finish,) = [event.finish for event in events if event.finish]
    return finish.reason


def test_each_stream_has_its_own_events_in_order() -> None:
    with running(FakeRunner()) as worker:
        streams = [worker.submit(request(f"r{n}", prompt=1 + n, new=3)) for n in range(5)]
        for n, stream in enumerate(streams):
            events = list(stream)
            assert [event.token_id for event in events] == [n + 1, n + 2, n + 3]
            assert reason(events) is FinishReason.LENGTH
            assert list(stream) == []
        assert worker.num_requests == 0


def test_what_can_never_run_is_refused_at_once() -> None:
    with running(FakeRunner()) as worker:
        with pytest.raises(InvalidRequest):
            worker.submit(request("a", prompt=500))
        assert worker.num_requests == 0
        assert len(list(worker.submit(request("b")))) == 3


def test_one_request_too_many_is_refused_and_the_place_comes_back() -> None:
    runner = FakeRunner()
    runner.gate.clear()
    with running(runner, max_requests=2) as worker:
        streams = [worker.submit(request("a")), worker.submit(request("b"))]
        with pytest.raises(CapacityExceeded, match="2 requests"):
            worker.submit(request("c"))
        runner.gate.set()
        for stream in streams:
            list(stream)
        assert len(list(worker.submit(request("c")))) == 3


def test_sched_7_the_same_id_twice_is_refused() -> None:
    runner = FakeRunner()
    runner.gate.clear()
    with running(runner) as worker:
        first = worker.submit(request("same"))
        while worker.num_requests == 0:
            time.sleep(0.001)
        with pytest.raises(InvalidRequest, match="in progress"):
            worker.submit(request("same"))
        runner.gate.set()
        list(first)
        assert len(list(worker.submit(request("same")))) == 3


def test_sched_7_the_same_id_twice_at_once_ends_the_second() -> None:
    """Both are in the inbox before the thread has looked: the second ends alone."""
    with running(FakeRunner(), start=False) as worker:
        first, second = worker.submit(request("same")), worker.submit(request("same"))
        worker.start()
        (refused,) = second
        assert refused.finish is not None
        assert refused.finish.reason is FinishReason.ERROR
        assert "in progress" in str(refused.finish.cause)
        assert len(list(first)) == 3


def test_kv_1_closing_a_stream_ends_the_request() -> None:
    runner = FakeRunner()
    runner.pause_in = 3
    with running(runner) as worker:
        stream = worker.submit(request("a", new=490))
        next(stream)
        stream.close()
        stream.close()
        assert list(stream) == []
        runner.gate.set()
        assert len(list(worker.submit(request("b")))) == 3
        assert worker.num_requests == 0
        assert runner.num_steps == 6


def test_kv_3_a_request_closed_while_it_waits_is_never_run() -> None:
    runner = FakeRunner()
    runner.gate.clear()
    with running(runner) as worker:
        first = worker.submit(request("a", new=1))
        assert runner.in_step.wait(WAIT_S)
        worker.submit(request("b", new=400)).close()
        runner.gate.set()
        list(first)
        list(worker.submit(request("c", new=1)))
        assert runner.num_steps == 2


def test_abort_by_id_is_told_in_the_stream() -> None:
    runner = FakeRunner()
    runner.pause_in = 2
    with running(runner) as worker:
        stream = worker.submit(request("a", new=490))
        next(stream)
        worker.abort("a")
        worker.abort("nobody")
        runner.gate.set()
        assert reason(list(stream)) is FinishReason.CANCELLED


def ends(events: list[TokenEvent]) -> dict[int, FinishReason]:
    """By index; none has two."""
    found = [(event.index, event.finish.reason) for event in events if event.finish is not None]
    assert len(dict(found)) == len(found)
    return dict(found)


def test_logprob_5_a_stream_ends_with_the_last_of_its_sequences() -> None:
    with running(FakeRunner()) as worker:
        stream = worker.submit(request("a", new=4, n=5))
        events = list(stream)
        assert ends(events) == dict.fromkeys(range(5), FinishReason.LENGTH)
        for index in range(5):
            own = [event for event in events if event.index == index]
            assert [event.token_id for event in own] == [2, 3, 4, 5]
            assert own[-1].finish is not None
        assert list(stream) == []
        assert worker.num_requests == 0


def test_one_sequence_of_several_is_aborted_alone() -> None:
    runner = FakeRunner()
    runner.pause_in = 2
    with running(runner) as worker:
        stream = worker.submit(request("a", new=4, n=2))
        first = next(stream)
        stream.close_index(first.index)
        runner.gate.set()
        events = [first, *stream]
        assert ends(events) == {
            first.index: FinishReason.CANCELLED,
            1 - first.index: FinishReason.LENGTH,
        }
        assert sum(event.index == 1 - first.index for event in events) == 4
        stream.close_index(0)
        stream.close()
        assert len(list(worker.submit(request("b")))) == 3
        assert worker.num_requests == 0


def test_every_sequence_is_told_when_the_engine_stops_or_dies(
    caplog: pytest.LogCaptureFixture,
) -> None:
    for dies, wanted in ((False, FinishReason.CANCELLED), (True, FinishReason.ERROR)):
        runner = FakeRunner()
        runner.pause_in = 2
        with running(runner) as worker:
            stream = worker.submit(request("a", new=400, n=3))
            assert next(stream).finish is None
            runner.dies = dies
            if not dies:
                worker.close(0.05)
            runner.gate.set()
            assert ends(list(stream)) == dict.fromkeys(range(3), wanted)
        assert ("SystemExit" in caplog.text) is dies, "the log has the traceback"


def test_kv_1_an_abort_takes_effect_within_one_step_from_any_state() -> None:
    """Waiting, in a long prompt, generating, following the first sequence, and ended."""
    for new, prompt, n in ((400, 2, 1), (400, 60, 1), (400, 60, 4), (1, 2, 1)):
        for num_steps in range(4):
            runner = FakeRunner()
            runner.pause_in = num_steps + 1
            with running(runner) as worker:
                other = worker.submit(request("other", new=30))
                stream = worker.submit(request("a", prompt=prompt, new=new, n=n))
                while runner.gate.is_set():
                    time.sleep(0.001)
                worker.abort("a")
                before = runner.num_steps
                runner.gate.set()
                events = list(stream)
                assert set(ends(events)) == set(range(n))
                late = [event for event in events if event.token_id is not None]
                assert len(late) <= n * (before + 1)
                assert reason(list(other)) is FinishReason.LENGTH
                assert worker.num_requests == 0


def test_an_idle_worker_sleeps() -> None:
    runner = FakeRunner()
    with running(runner) as worker:
        list(worker.submit(request("a")))
        before = time.process_time()
        time.sleep(0.2)
        assert time.process_time() - before < 0.1
        assert runner.num_steps == 3


def test_close_cancels_what_is_open_and_refuses_what_comes() -> None:
    runner = FakeRunner()
    runner.gate.clear()
    with running(runner) as worker:
        stream = worker.submit(request("a", new=490))
        assert runner.in_step.wait(WAIT_S)
        threading.Timer(0.05, runner.gate.set).start()
        worker.close(WAIT_S)
        assert reason(list(stream)) is FinishReason.CANCELLED
        with pytest.raises(EngineError, match="it was closed"):
            worker.submit(request("b"))
        worker.close(WAIT_S)


def test_close_leaves_no_reader_behind_even_when_a_step_hangs() -> None:
    runner = FakeRunner()
    runner.gate.clear()
    with running(runner) as worker:
        stream = worker.submit(request("a"))
        assert runner.in_step.wait(WAIT_S)
        worker.close(0.05)
        assert reason(list(stream)) is FinishReason.CANCELLED


def test_a_thread_that_dies_fails_all_who_wait_and_all_who_come() -> None:
    runner = FakeRunner()
    runner.gate.clear()
    runner.dies = True
    with running(runner) as worker:
        streams = [worker.submit(request(name)) for name in "abc"]
        runner.gate.set()
        for stream in streams:
            assert reason(list(stream)) is FinishReason.ERROR
        with pytest.raises(EngineError, match="SystemExit"):
            worker.submit(request("d"))


def test_a_call_runs_on_the_engines_thread_between_two_steps() -> None:
    runner = FakeRunner()
    runner.pause_in = 2
    with running(runner) as worker:
        stream = worker.submit(request("a", new=5))
        threading.Timer(0.02, runner.gate.set).start()
        seen = worker.call(lambda: (threading.current_thread().name, runner.num_steps))
        assert seen[0] == "firsthand-engine"
        with pytest.raises(ZeroDivisionError):
            worker.call(lambda: 1 // 0)
        assert len(list(stream)) == 5


def test_a_call_that_the_engine_does_not_live_to_make_is_an_error() -> None:
    runner = FakeRunner()
    runner.gate.clear()
    runner.dies = True
    with running(runner) as worker:
        worker.submit(request("a"))
        assert runner.in_step.wait(WAIT_S)
        threading.Timer(0.05, runner.gate.set).start()
        with pytest.raises(EngineError, match="SystemExit"):
            worker.call(lambda: None)
        with pytest.raises(EngineError, match="does not run"):
            worker.call(lambda: None)


def test_r_a_thousand_aborts_at_random_moments_leak_no_block() -> None:
    choose = random.Random(5)
    pool = BlockPool(64, 16)
    scheduler = Scheduler(Limits(1000, 500, 8, 64), pool, prefix=PrefixCache(pool))
    engine = Engine(scheduler, FakeRunner(), time.monotonic, lambda fact: None)
    worker = Worker(engine, time.monotonic, 64)
    worker.start()
    try:
        open_streams: list[EventStream] = []
        for number in range(1000):
            n = choose.randrange(1, 4)
            prompt, new = choose.randrange(1, 100), choose.randrange(1, 50)
            open_streams.append(worker.submit(request(f"r{number}", prompt, new, n)))
            if len(open_streams) >= 12 or choose.random() < 0.7:
                stream = open_streams.pop(choose.randrange(len(open_streams)))
                for _ in range(choose.randrange(3)):
                    next(stream, None)
                stream.close_index(choose.randrange(n))
                stream.close()
        for stream in open_streams:
            stream.close()
        worker.call(scheduler.check_invariants)
        assert len(list(worker.submit(request("last")))) == 3
        assert (worker.num_requests, scheduler.num_used_blocks) == (0, 0)
    finally:
        worker.close(WAIT_S)


def test_many_threads_at_once() -> None:
    results: dict[str, int] = {}
    with running(FakeRunner(), max_requests=64) as worker:

        def client(name: str) -> None:
            for turn in range(5):
                stream: EventStream = worker.submit(request(f"{name}-{turn}", new=7))
                if turn % 2:
                    next(stream)
                    stream.close()
                else:
                    results[f"{name}-{turn}"] = len(list(stream))

        threads = [threading.Thread(target=client, args=(f"t{n}",)) for n in range(12)]
        for thread in threads:
            thread.start()
        for thread in threads:
            thread.join(WAIT_S)
        list(worker.submit(request("last")))
        assert worker.num_requests == 0
    assert set(results.values()) == {7}
    assert len(results) == 36
