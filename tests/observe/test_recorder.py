"""The flight recorder, told by hand: what is kept, for how long, and that the stages add up."""

from __future__ import annotations

import json
from dataclasses import replace
from pathlib import Path
from typing import Any, cast

import pytest

from firsthand.cascade.decision import Decision, Spent
from firsthand.cascade.decision import Told as CascadeTold
from firsthand.engine.facts import StepFacts
from firsthand.generation.completion import Completion
from firsthand.generation.service import Service
from firsthand.observe.kept_failures import KeptFailures, failures, find
from firsthand.observe.record_trace import trace
from firsthand.observe.record_views import summary, told
from firsthand.observe.recorder import MAX_REFUSED, Recorder
from firsthand.observe.records import STAGES, Arrival, Ending, Record
from firsthand.observe.step_ring import ROW_BYTES, StepRing
from firsthand.request import (
    Finish,
    FinishReason,
    Priority,
    Request,
    SamplingParams,
    StopRules,
    TokenEvent,
    Usage,
)
from firsthand.scheduling.facts import Admitted, PlanFacts, Preempted
from tests.server.fakes import report

MODEL = "m"


class Told:
    """In place of a service: what listens to it is told by the test."""

    class model:
        name = MODEL

    def listen(self, step: Any) -> None:
        self.step = step

    def listen_events(self, events: Any) -> None:
        self.events = events


class Flight:
    """A recorder with a clock of its own, and one service."""

    def __init__(self, max_bytes: int = 1 << 20, *, content: bool = False) -> None:
        self.now_s = 0.0
        self.recorder = Recorder(max_bytes, lambda: self.now_s, records_content=content)
        self.service = Told()
        self.recorder.follow(cast(Service, self.service))

    def submit(self, name: str, n: int = 1, priority: Priority = Priority.NORMAL) -> Arrival:
        arrival = Arrival(name, "key", "/v1/completions", MODEL, 10.0)
        request = Request(
            f"e-{name}", (1, 2, 3), SamplingParams(), StopRules(8), 5, n, priority, "t", "salt"
        )
        self.recorder.submitted(arrival, MODEL, request, 10.1, 10.2)
        return arrival

    def record(self, arrival: Arrival) -> Record:
        return next(one for one in self.recorder.records() if one.arrival is arrival)

    def step(self, names: dict[str, int], started_s: float, **planned: Any) -> None:
        self.service.step(step(names, started_s, **planned))

    def token(self, name: str, at_s: float, token_id: int = 7, index: int = 0) -> None:
        self.service.events((TokenEvent(f"e-{name}", token_id, at_s, -0.5, index=index),))


def step(names: dict[str, int], started_s: float, **planned: Any) -> StepFacts:
    """Of 8 ms: plan 1, run 6 (forward 4, sample 1), commit 1."""
    return StepFacts(
        started_s=started_s,
        request_ids=tuple(f"e-{name}" for name in names),
        slice_tokens=tuple(names.values()),
        num_drawn=len(names),
        num_finished=0,
        num_waiting=1,
        num_running=len(names),
        num_used_blocks=5,
        plan_ms=1.0,
        run_ms=6.0,
        forward_ms=4.0,
        sample_ms=1.0,
        commit_ms=1.0,
        planned=PlanFacts(**planned),
    )


def completion(num_tokens: int, index: int = 0) -> Completion:
    ids = (7,) * num_tokens
    finish = Finish(FinishReason.STOP_STRING, "x")
    return Completion("", ids, finish, Usage(3, num_tokens), 5, report(3, num_tokens), index=index)


def test_the_oldest_of_each_class_that_waits() -> None:
    flight = Flight()
    flight.submit("a")
    flight.submit("b", priority=Priority.URGENT)
    flight.now_s = 12.2
    assert list(flight.recorder.oldest_waiting()) == [
        (MODEL, "urgent", pytest.approx(2)),
        (MODEL, "normal", pytest.approx(2)),
        (MODEL, "background", 0),
    ]
    flight.step({"b": 3}, 12.2, admitted=(Admitted("e-b", 0, 0.1, 2, num_blocks=1),))
    assert [age_s for _, _, age_s in flight.recorder.oldest_waiting()] == [0, pytest.approx(2), 0]


def done(at_s: float, status: int = 200, outcome: str = "done") -> Ending:
    return Ending(status, outcome, at_s, 99, 10.34)


def test_what_was_given_up_is_a_stage_and_no_part_of_the_answer() -> None:
    """A cascade: the small model is asked, then the large one, here of the same name."""
    flight = Flight()
    arrival = flight.submit("a")
    flight.step({"a": 3}, 10.3, admitted=(Admitted("e-a", 0, 0.1, 2, num_blocks=1),))
    flight.token("a", 10.307)
    flight.now_s = 10.4
    flight.recorder.gave_up(MODEL, ["e-a", "e-unknown"])
    request = Request("e-b", (1, 2, 3, 4), SamplingParams(), StopRules(8), 5)
    flight.recorder.submitted(arrival, MODEL, request, 10.4, 10.4)
    flight.step({"b": 4}, 10.5, admitted=(Admitted("e-b", 0, 0.1, 0, num_blocks=1),))
    flight.token("b", 10.507)
    flight.recorder.finished(MODEL, "e-b", completion(1))
    spent = Spent("m", 4, 1, 10)
    cascade = CascadeTold("quick", Decision("unsure", 0.8, 0.3), spent, spent, 200.0)
    ending = replace(done(10.6), cascade=cascade)
    found = told(flight.recorder.ended(arrival, ending), flight.recorder)
    assert [one["name"] for one in found["stages"]] == list(STAGES)
    assert sum(one["ms"] for one in found["stages"]) == pytest.approx(found["total_ms"])
    spent_ms = {one["name"]: one["ms"] for one in found["stages"]}
    assert spent_ms["attempt"] == pytest.approx(200, abs=0.1)
    assert (found["prompt_tokens"], found["output_tokens"], found["num_steps"]) == (4, 1, 1)
    assert [one["given_up_ms"] is None for one in found["parts"]] == [False, True]
    assert found["cascade"] == cascade.to_dict()


def test_stages_and_steps_add_up_to_the_whole() -> None:
    flight = Flight()
    arrival = flight.submit("a")
    flight.step({"a": 3}, 10.3, admitted=(Admitted("e-a", 0, 0.1, 2, num_blocks=1),))
    flight.token("a", 10.307)
    flight.step({"b": 1}, 10.32)
    flight.step({"a": 1, "b": 1}, 10.33)
    flight.recorder.finished(MODEL, "e-a", completion(2))
    record = flight.recorder.ended(arrival, done(10.4))
    found = told(record, flight.recorder)
    assert [one["name"] for one in found["stages"]] == [s for s in STAGES if s != "attempt"]
    spent = {one["name"]: round(one["ms"], 3) for one in found["stages"]}
    assert spent == {
        "receive": 100, "tokenize": 100, "queue": 100, "prefill": 7, "decode": 30, "send": 63,
    }  # fmt: skip
    assert sum(spent.values()) == pytest.approx(found["total_ms"]) == pytest.approx(400)
    assert sum(found["step_ms"].values()) == pytest.approx(37)
    assert found["step_ms"] == pytest.approx(
        {"plan": 2, "forward": 8, "sample": 2, "other": 2, "commit": 1, "between": 22}
    )
    assert (found["num_steps"], found["batch_max"], found["cached_tokens"]) == (2, 2, 2)
    assert [one["tokens"] for one in found["steps"]] == [3, 1]
    (part,) = found["parts"]
    assert part["queue"] == {"class": "normal", "ahead": 0, "age_ms": 100}
    assert part["admissions"][0]["reused_tokens"] == 2
    assert part["first_token_ms"] == pytest.approx(307)
    assert part["choices"] == [{"choice": 0, "finish_reason": "stop_string", "output_tokens": 2}]
    assert "content" not in part and found["sent_bytes"] == 99


def test_where_it_is_now_is_a_state() -> None:
    flight = Flight()
    first, second = flight.submit("a"), flight.submit("b", priority=Priority.URGENT)
    record = flight.record(first)
    assert record.state == "queued"
    assert record.parts[0].num_ahead == 0
    assert flight.record(second).parts[0].num_ahead == 0
    assert flight.record(flight.submit("c")).parts[0].num_ahead == 2
    flight.step({"a": 3}, 10.3, admitted=(Admitted("e-a", 0, 0.1, 0),))
    assert record.state == "prefill"
    flight.token("a", 10.307)
    assert record.state == "decode"
    flight.step({}, 10.4, preempted=(Preempted("e-a", 0, 4, 3),))
    assert record.state == "preempted"
    flight.step({"a": 4}, 10.5, admitted=(Admitted("e-a", 0, 0.3, 0, resumed=True),))
    assert record.state == "decode"
    flight.now_s = 11.0
    live = told(record, flight.recorder)
    assert live["status"] is None and live["total_ms"] == 1000
    assert live["parts"][0]["preemptions"][0]["lost_tokens"] == 3
    flight.recorder.finished(MODEL, "e-a", completion(2))
    assert record.state == "sending"


def test_what_ends_early_ends_in_the_stage_it_had_come_to() -> None:
    flight = Flight()
    waiting, running = flight.submit("a"), flight.submit("b")
    flight.step({"b": 3}, 10.3, admitted=(Admitted("e-b", 0, 0.1, 0),))
    lost = done(10.5, 503, "engine_lost")
    first = summary(flight.recorder.ended(waiting, lost), flight.recorder)
    assert [one["name"] for one in first["stages"]] == ["receive", "tokenize", "queue"]
    second = summary(flight.recorder.ended(running, lost), flight.recorder)
    assert second["stages"][-1]["name"] == "prefill"
    assert second["stages"][-1]["ms"] == pytest.approx(200)
    assert lost.is_failure and not done(1.0).is_failure
    assert flight.submit("d") and next(flight.recorder.records()).parts[0].num_ahead == 0


def test_memory_is_bounded_and_what_runs_is_kept() -> None:
    """The oldest that ended go first; the ring of steps forgets by itself."""
    flight = Flight(64 << 10)
    for number in range(200):
        arrival = flight.submit(str(number))
        flight.step({str(number): 3}, 10.3)
        flight.recorder.ended(arrival, done(10.4))
    kept = list(flight.recorder.records())
    assert 2 < len(kept) < 20 and kept[0].arrival.request_id == "199"
    assert flight.recorder.num_bytes <= 32 << 10
    arrival = flight.submit("long")
    for number in range(5000):
        flight.step({"long": 1}, 10.0 + number)
    (only,) = flight.recorder.records()
    assert len(only.parts[0].steps) == 5000
    flight.recorder.ended(arrival, done(20.0))
    assert list(flight.recorder.records()) == [] and flight.recorder.num_bytes == 0


def test_steps_that_are_forgotten_leave_the_stages() -> None:
    flight = Flight(4 * ROW_BYTES)
    arrival = flight.submit("a")
    for number in range(5):
        flight.step({"a": 1}, 10.3 + number / 10, admitted=(Admitted("e-a", 0, 0.1, 0),))
    found = told(flight.record(arrival), flight.recorder)
    assert (found["num_steps"], found["steps_left_out"], len(found["steps"])) == (5, 3, 2)
    assert [one["number"] for one in found["steps"]] == [3, 4]


def test_a_row_of_the_ring_gives_back_what_went_in() -> None:
    ring = StepRing(10 * ROW_BYTES)
    number = ring.add(step({"a": 3, "b": 1}, 2.5), 4, 1)
    found = ring.get(number)
    assert found is not None and found.total_ms == 8.0
    assert (found.started_s, found.num_sequences, found.num_tokens, found.model) == (2.5, 2, 4, 1)
    assert (found.num_used_blocks, found.failed, ring.get(1)) == (5, False, None)


def test_refusals_are_kept_in_short_and_push_nothing_out() -> None:
    flight = Flight()
    flight.recorder.ended(flight.submit("good"), done(11.0))
    for number in range(MAX_REFUSED + 9):
        arrival = Arrival(f"r{number}", "", "/v1/completions", "", 1.0)
        flight.recorder.ended(arrival, Ending(503, "refused", 1.1, error_code="queue_full"))
    found = [one.arrival.request_id for one in flight.recorder.records()]
    assert found[0] == "good" and len(found) == MAX_REFUSED + 1
    last = told(next(x for x in flight.recorder.records() if not x.parts), flight.recorder)
    assert (last["state"], last["error_code"], last["stages"][0]["name"]) == (
        "refused", "queue_full", "receive",
    )  # fmt: skip


def test_content_is_kept_on_request_alone_and_ends_where_the_answer_did() -> None:
    flight = Flight(content=True)
    arrival = flight.submit("a", n=2)
    for index in (0, 1, 0, 0):
        flight.token("a", 10.3, 7 + index, index)
    flight.recorder.finished(MODEL, "e-a", completion(2))
    record = flight.recorder.ended(arrival, done(10.4))
    content = told(record, flight.recorder)["parts"][0]["content"]
    assert content["outputs"] == [[7, 7], [8]] and content["logprobs"] == [[-0.5] * 2, [-0.5]]
    kept = content["request"]
    assert (list(kept["prompt_token_ids"]), kept["seed"]) == ([1, 2, 3], 5)
    assert kept["tenant"] == kept["cache_salt"] == "" and json.dumps(content)


def test_a_trace_has_the_stages_the_steps_and_what_happened() -> None:
    flight = Flight()
    arrival = flight.submit("a")
    flight.step({"a": 3}, 10.3, admitted=(Admitted("e-a", 0, 0.1, 0),))
    flight.token("a", 10.307)
    found = trace(told(flight.recorder.ended(arrival, done(10.4)), flight.recorder))
    spans = [one for one in found["traceEvents"] if one["ph"] == "X"]
    steps = [one for one in spans if one["cat"] == "step"]
    assert (steps[0]["ts"], steps[0]["dur"]) == pytest.approx((300e3, 8e3))
    assert [one["name"] for one in spans if one["cat"] == "phase"] == [
        "plan", "forward", "sample", "commit",
    ]  # fmt: skip
    assert {one["name"] for one in found["traceEvents"] if one["ph"] == "i"} == {
        "admission", "first token",
    }  # fmt: skip
    assert found["otherData"]["id"] == "a" and json.dumps(found, allow_nan=False)


def test_failures_are_whole_files_and_never_many(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr("firsthand.observe.kept_failures.MAX_FILES", 3)
    folder = tmp_path / "failed"
    kept = KeptFailures(folder)
    assert find(folder, "a") is None and list(failures(folder)) == []
    for number in range(5):
        kept.keep(f"r-{number}", number, {"id": f"r-{number}", "text": "ä"})
    kept.close()
    assert [one["id"] for one in failures(folder)] == ["r-4", "r-3", "r-2"]
    assert find(folder, "r-3") == {"id": "r-3", "text": "ä"} and find(folder, "r-0") is None
    assert folder.stat().st_mode & 0o77 == 0
    assert all(one.stat().st_mode & 0o77 == 0 for one in folder.iterdir())
    (folder / f"{9:020}-r-9.json").write_text('{"half": ')
    assert find(folder, "r-9") is None and len(list(failures(folder))) == 3


def test_g_27_a_disk_that_takes_nothing_costs_the_file_alone(tmp_path: Path) -> None:
    (tmp_path / "file").touch()
    kept = KeptFailures(tmp_path / "file" / "folder")
    kept.keep("a", 1, {})
    kept.close()
    assert kept.num_dropped == 1
