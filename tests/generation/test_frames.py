"""What crosses the border between service and engine: whole, checked, bounded."""

from __future__ import annotations

import struct
from dataclasses import fields, replace
from typing import Any

import msgspec
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from firsthand import errors
from firsthand.engine.facts import StepFacts
from firsthand.errors import CapacityExceeded, CheckpointError, EngineError, InvalidRequest
from firsthand.generation import frames
from firsthand.generation.frames import (
    Abort,
    Declined,
    EngineFacts,
    Failed,
    Loading,
    LoadModel,
    Logged,
    Look,
    Pace,
    Ping,
    Pong,
    Ready,
    Seen,
    Stepped,
    Submit,
    child_reader,
    encode,
    from_fault,
    parent_reader,
    to_fault,
)
from firsthand.generation.load_options import LoadOptions
from firsthand.generation.report import AdapterFacts, LoadTimes, Memory
from firsthand.request import (
    Finish,
    FinishReason,
    Grammar,
    GrammarKind,
    Pooling,
    Priority,
    PromptPart,
    RepetitionGuard,
    Request,
    SamplingParams,
    StopRules,
    TokenEvent,
    TokenScore,
)
from firsthand.scheduling.facts import Admitted, PlanFacts, Preempted
from firsthand.scheduling.limits import Limits
from firsthand.scheduling.picture import Picture, Pictured

REQUEST = Request(
    request_id="request-7",
    prompt_token_ids=(1, 2, 2**31 - 1),
    sampling=SamplingParams(0.5, 3, 0.5, 0.1, 1.5, -2.0, 2.0, ((3, 1.0), (4, -100.0)), 20),
    stop=StopRules(5, 2, frozenset({2}), frozenset({9, 8}), True, RepetitionGuard(4, 3)),
    seed=2**64 - 1,
    n=3,
    priority=Priority.BACKGROUND,
    tenant="你",
    cache_salt="salt",
    deadline_s=4.5,
    adapter="sql",
    begun=((7,), None, (8, 9)),
)
# A form of the answer and `ignore_end` exclude each other, so it has a request of its own.
FORMED = replace(
    REQUEST,
    stop=StopRules(5),
    grammar=Grammar(GrammarKind.REGEX, "ä+", "lead: /x/", "pattern"),
)
# What is read of a prompt alone goes with nothing that is generated.
SCORED = replace(FORMED, grammar=None, stop=StopRules(0), n=1, prompt_logprobs=3, begun=())
POOLED = replace(SCORED, prompt_logprobs=None, pooling=Pooling.MEAN)
EVENTS = (
    TokenEvent("request-7", 5, 1.25, -0.5, ((5, -0.5), (6, -1.5)), None, 1),
    TokenEvent("request-7", None, 2.5, finish=Finish(FinishReason.ERROR, "a fault")),
    TokenEvent("request-7", 2, 2.5, finish=Finish(FinishReason.END_TOKEN, 2), index=2),
    TokenEvent("request-7", None, 2.5, prompt=PromptPart((TokenScore(-1.5, ((3, -0.5),)),))),
    TokenEvent("request-8", None, 2.5, prompt=PromptPart(pooled=bytes(range(16)))),
)
FACTS = StepFacts(
    1.0, ("a", "b"), (5, 1), 2, 1, 3, 4, 5, 0.1, 0.2, 0.3, 0.4, 0.5, "bad", (0, 1, 2), (1, 0, 0),
    6, 7,
    PlanFacts((Admitted("a", 0, 0.5, 16, True, 4),), (Preempted("b", 1, 2, 30),), 2, 3, (1, 2, 3)),
)  # fmt: skip
ENGINE = EngineFacts(
    Limits(100, 50, 4, 8),
    10,
    16,
    4096,
    LoadTimes(1, 2, 3, 4, 5, 15),
    Memory(1, 2, 3, 4, 5),
    9.5,
    8.5,
    {"sql": AdapterFacts("1f", 8, 512)},
)
PICTURE = Picture(
    1.5, (Pictured("a", 1, 2, 1, 0.5, 9, 12, 11, 3, ((0, 2), (7, 1))),), (), ((4, 2),), (8, 4, 1)
)
TO_CHILD: list[Any] = [
    LoadModel("model", LoadOptions(max_context=64, disabled_rules=["x"], memory_limit="2GiB")),
    LoadModel("model", LoadOptions(disabled_rules=[], lora={"sql": "folder"})),
    Submit(REQUEST),
    Submit(FORMED),
    Submit(SCORED),
    Submit(POOLED),
    Abort("request-7"),
    Abort("request-7", 2),
    Ping(3),
    Look(),
    Pace(True, 2, 0.5),
]
FROM_CHILD: list[Any] = [
    Loading(1, 2),
    Ready(ENGINE),
    Failed(to_fault(CheckpointError("f", "bad", "t"))),
    Stepped(EVENTS, FACTS),
    Stepped(EVENTS),
    Declined("request-7", to_fault(InvalidRequest("seed", "bad"))),
    Pong(3, 10**10),
    Logged(30, "module", "a line", "ValueError", ("a.py:1 f",)),
    Seen(PICTURE),
]


def test_every_message_arrives_as_it_was_sent() -> None:
    for reader, messages in ((child_reader(), TO_CHILD), (parent_reader(), FROM_CHILD)):
        data = b"".join(encode(message) for message in messages)
        assert reader.feed(data) == messages


def test_the_samples_name_no_default() -> None:
    """So that a field which does not cross would be seen."""
    default = Request("", (1,), SamplingParams(), StopRules(1), 0)
    for one, other in ((REQUEST, default), (REQUEST.sampling, default.sampling)):
        for field in fields(one):
            if field.name not in ("grammar", "prompt_logprobs", "pooling"):
                assert getattr(one, field.name) != getattr(other, field.name)


@settings(deadline=None, max_examples=50)
@given(st.lists(st.integers(1, 400), max_size=30))
def test_a_frame_may_come_in_any_pieces(sizes: list[int]) -> None:
    data = b"".join(encode(message) for message in FROM_CHILD)
    reader = parent_reader()
    found: list[Any] = []
    for size in sizes:
        found += reader.feed(data[:size])
        data = data[size:]
    found += reader.feed(data)
    assert found == FROM_CHILD


def frame(body: object) -> bytes:
    data = msgspec.msgpack.encode(body)
    return struct.pack(">I", len(data)) + data


def changed(**changes: object) -> bytes:
    body = msgspec.to_builtins(Submit(REQUEST))
    body["request"] |= changes
    return frame(body)


@pytest.mark.parametrize(
    "data",
    [
        b"\xff\xff\xff\xff",
        struct.pack(">I", frames.MAX_FRAME_BYTES + 1),
        struct.pack(">I", 3) + b"\xc1\xc1\xc1",
        struct.pack(">I", 0),
        frame({"type": "Nothing"}),
        frame([1, 2]),
        encode(Pong(1, 2)),  # of the other direction
        changed(seed=-1),
        changed(n=0),
        changed(prompt_token_ids=[]),
        changed(prompt_token_ids=["1"]),
        changed(priority="boss"),
        changed(sampling={"temperature": -1.0}),
    ],
)
def test_what_is_no_frame_is_refused(data: bytes) -> None:
    with pytest.raises(EngineError, match="frame"):
        child_reader().feed(data)


def test_a_message_that_is_too_long_is_not_sent(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(frames, "MAX_FRAME_BYTES", 300)
    with pytest.raises(EngineError, match="over 300"):
        encode(Submit(REQUEST))


def every_error() -> list[errors.FirsthandError]:
    found: list[errors.FirsthandError] = []
    for kind in vars(errors).values():
        if isinstance(kind, type) and issubclass(kind, errors.FirsthandError):
            if issubclass(kind, InvalidRequest | errors.SourceRefused):
                found.append(kind("field", "field: is wrong"))
            elif issubclass(kind, CheckpointError):
                found += [kind("file", "is wrong"), kind("file", "is wrong", "tensor")]
            else:
                found.append(kind("is wrong"))
    return found


@pytest.mark.parametrize("error", every_error(), ids=repr)
def test_an_error_keeps_its_class_its_fields_and_its_text(error: errors.FirsthandError) -> None:
    [message] = parent_reader().feed(encode(Failed(to_fault(error))))
    assert isinstance(message, Failed)
    again = from_fault(message.fault)
    assert type(again) is type(error)
    assert str(again) == str(error)
    assert vars(again) == vars(error)


def test_an_error_that_is_not_of_the_tree_becomes_the_nearest() -> None:
    assert type(from_fault(to_fault(MemoryError()))) is CapacityExceeded
    again = from_fault(to_fault(ZeroDivisionError("by zero")))
    assert type(again) is EngineError
    assert str(again) == "ZeroDivisionError: by zero"
    for kind in ("annotations", "Nothing", "__builtins__"):
        assert type(from_fault(frames.Fault(kind, "x"))) is EngineError
    assert len(to_fault(ValueError("x" * 10**6)).message) < 3000
