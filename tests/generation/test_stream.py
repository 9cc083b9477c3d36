"""From events to text: a stream fed by hand."""

from __future__ import annotations

import gc
from collections.abc import Callable
from itertools import count

import pytest

from firsthand.engine.worker import EventStream
from firsthand.errors import EngineError
from firsthand.generation.choice import Job
from firsthand.generation.completion import Chunk, Completion
from firsthand.generation.report import LoadTimes, Memory, Report, StepLedger, build_report
from firsthand.generation.stream import TextStream
from firsthand.request import (
    Finish,
    FinishReason,
    Request,
    SamplingParams,
    StopRules,
    TokenEvent,
)

LOAD = LoadTimes(0.0, 0.0, 0.0, 0.0, 0.0, 0.0)
END = Finish(FinishReason.END_TOKEN, 0)
LENGTH = Finish(FinishReason.LENGTH, 9)


class Pieces:
    """Token i has the bytes of piece i; token 0 is a control token."""

    strip_first_space = True

    def __init__(self, *pieces: bytes) -> None:
        self.pieces = (b"<end>", *pieces)

    def token_bytes(self, token_id: int, *, skip_special: bool = False) -> bytes:
        return b"" if skip_special and token_id == 0 else self.pieces[token_id]


class Harness:
    """A stream over scripted events; `aborted` are the ids that it asked the engine to end."""

    def __init__(
        self,
        pieces: list[bytes],
        finish: Finish = END,
        *,
        stop: tuple[str, ...] = (),
        logprobs: int | None = None,
        continues: bool = True,
        deadline_s: float | None = None,
    ) -> None:
        self.aborted: list[str] = []
        self.events = EventStream(
            "r", (0,), lambda request_id, index: self.aborted.append(request_id)
        )
        self.ledger = StepLedger(8)
        tokens = list(range(1, len(pieces) + 1))
        tokens += [0] if finish.reason is FinishReason.END_TOKEN else []
        for at, token in enumerate(tokens):
            last = at == len(tokens) - 1
            self.events.put(
                TokenEvent("r", token, 10.0 + at, -0.5, ((0, -1.0),), finish if last else None)
            )
        sampling = SamplingParams(logprobs=logprobs)
        request = Request("r", (1, 2, 3), sampling, StopRules(99), seed=11, deadline_s=deadline_s)
        ticks = count(20)
        self.stream = TextStream(
            self.events,
            Job(request, stop, continues, called_s=8.0, tokenized_s=9.0),
            Pieces(*pieces),
            lambda: float(next(ticks)),
            self.ledger,
            lambda request, timeline, steps: build_report(
                LOAD, Memory(0, 0, 0, 0, 0), 3, timeline, steps
            ),
        )

    def read(self) -> tuple[list[Chunk], Completion]:
        chunks = list(self.stream)
        completion = chunks[-1].completion
        assert completion is not None
        assert [chunk.completion for chunk in chunks[:-1]] == [None] * (len(chunks) - 1)
        assert "".join(chunk.text for chunk in chunks) == completion.text
        joined = tuple(token for chunk in chunks for token in chunk.token_ids)
        assert joined == completion.token_ids
        assert completion.usage.completion_tokens == len(joined)
        return chunks, completion


def test_the_end_token_counts_but_has_no_text() -> None:
    chunks, completion = Harness([b"blue", b" jar"]).read()
    assert [chunk.text for chunk in chunks] == ["blue", " jar", ""]
    assert completion.token_ids == (1, 2, 0)
    assert completion.finish == END
    assert completion.finish_reason == "end_token"
    assert (completion.usage.prompt_tokens, completion.seed) == (3, 11)
    assert completion.logprobs is None


def test_a_stop_id_has_no_text_either() -> None:
    _, completion = Harness([b"a", b"b"], Finish(FinishReason.STOP_ID, 2)).read()
    assert (completion.text, completion.token_ids) == ("a", (1, 2))


def test_stop_1_the_pieces_of_a_stop_string_are_never_sent() -> None:
    pieces = [b"alpha", b" beta ", b"HALT", b"NO", b"W gamma", b"never"]
    harness = Harness(pieces, LENGTH, stop=("HALTNOW",))
    chunks, completion = harness.read()
    assert completion.text == "alpha beta "
    assert completion.finish == Finish(FinishReason.STOP_STRING, "HALTNOW")
    assert completion.token_ids == (1, 2, 3, 4, 5)
    assert [chunk.text for chunk in chunks] == ["alpha", " beta ", "", "", ""]
    assert harness.aborted == ["r"]


def test_stop_2_text_held_back_arrives_when_the_run_ends() -> None:
    _, completion = Harness([b"w", b"xyz"], LENGTH, stop=("xyz!",)).read()
    assert (completion.text, completion.finish_reason) == ("wxyz", "length")
    _, completion = Harness([b"w", b"xyz"], END, stop=("xyz!",)).read()
    assert (completion.text, completion.finish_reason) == ("wxyz", "end_token")


@pytest.mark.parametrize("deadline_s", [11.0, 11.5, None])
def test_a_stop_string_may_come_too_late(deadline_s: float | None) -> None:
    """The engine does not know that a token was the last one, so its deadline is looked at here."""
    _, completion = Harness([b"ab", b"cd"], END, stop=("c",), deadline_s=deadline_s).read()
    late = deadline_s == 11.0
    assert completion.finish_reason == ("deadline" if late else "stop_string")


def test_a_stop_string_in_the_last_token_wins_over_its_length() -> None:
    harness = Harness([b"ab", b"cd"], LENGTH, stop=("c",))
    _, completion = harness.read()
    assert completion.text == "ab"
    assert completion.finish == Finish(FinishReason.STOP_STRING, "c")
    assert harness.aborted == []  # it has ended already


def test_stream_3_a_character_that_is_never_finished() -> None:
    _, completion = Harness([b"A", b"\xe9\xbe"], LENGTH).read()
    assert (completion.text, completion.finish_reason) == ("A\ufffd", "length")


def test_stream_2_a_character_in_two_tokens_arrives_with_the_second() -> None:
    chunks, _ = Harness([b"\xe4\xb8", b"\xad"]).read()
    assert [chunk.text for chunk in chunks] == ["", "中", ""]


def test_stream_5_a_last_token_without_text_ends_the_stream() -> None:
    chunks, completion = Harness([]).read()
    assert [chunk.text for chunk in chunks] == [""]
    assert completion.token_ids == (0,)


@pytest.mark.parametrize(("continues", "text"), [(True, " blue jar"), (False, "blue jar")])
def test_stream_4_only_an_answer_drops_the_space_before_its_first_word(
    continues: bool, text: str
) -> None:
    _, completion = Harness([b" blue", b" jar"], continues=continues).read()
    assert completion.text == text


def test_logprob_2_one_entry_per_token_also_while_text_is_held() -> None:
    chunks, completion = Harness([b"z", b"z", b"y"], stop=("zzzz",), logprobs=1).read()
    assert completion.logprobs is not None
    assert len(completion.logprobs) == completion.usage.completion_tokens == 4
    assert [entry.token_id for entry in completion.logprobs] == [1, 2, 3, 0]
    joined = tuple(entry for chunk in chunks for entry in chunk.logprobs or ())
    assert joined == completion.logprobs
    assert completion.logprobs[0].top == ((0, "<end>", -1.0),)


def test_logprob_3_half_characters_have_their_bytes() -> None:
    _, completion = Harness([b"\xf0\x9f", b"\x99\x82"], logprobs=0).read()
    assert completion.logprobs is not None
    assert [list(entry.raw) for entry in completion.logprobs[:2]] == [[240, 159], [153, 130]]
    assert completion.text == "🙂"


def test_the_report_has_the_times_of_the_events() -> None:
    _, completion = Harness([b"a", b"b"], LENGTH).read()
    report: Report = completion.report
    assert (report.tokenize_ms, report.ttft_ms, report.token_ms) == (1000.0, 2000.0, (1000.0,))
    assert report.detokenize_ms == 2000.0  # two events, one tick of the clock each
    assert completion.to_dict()["timings"]["predicted_n"] == 2


def test_a_fault_raises_and_keeps_what_was_there() -> None:
    harness = Harness([b"a", b"b"], Finish(FinishReason.ERROR, "no finite logit"))
    assert next(harness.stream).text == "a"
    with pytest.raises(EngineError, match="no finite logit"):
        next(harness.stream)
    assert list(harness.stream) == []
    assert harness.stream.failed is not None
    assert harness.stream.failed.finish.cause == "no finite logit"


class Interrupted:
    """A queue in whose `get` the user presses Ctrl-C."""

    def get(self) -> TokenEvent:
        raise KeyboardInterrupt


def test_ctrl_c_ends_the_generation_with_what_was_certain_and_held(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    harness = Harness([b"a", b"xy", b"\xe4"], LENGTH, stop=("xyz",))
    chunks = [next(harness.stream), next(harness.stream)]
    monkeypatch.setattr(harness.events, "_events", Interrupted())
    chunks += list(harness.stream)
    completion = chunks[-1].completion
    assert completion is not None
    assert completion.text == "axy"
    assert completion.finish.reason is FinishReason.CANCELLED
    assert completion.token_ids == (1, 2)
    assert harness.aborted == ["r"]


@pytest.mark.parametrize("how", ["close", "with", "drop", "drop unread"])
def test_kv_3_a_stream_left_early_aborts_its_request(how: str) -> None:
    harness = Harness([b"a", b"b", b"c"])
    ways: dict[str, Callable[[], None]] = {
        "close": harness.stream.close,
        "with": lambda: harness.stream.__exit__(None, None, None),
    }
    if how != "drop unread":
        next(harness.stream)
    if how in ways:
        ways[how]()
        assert list(harness.stream) == []
        with pytest.raises(EngineError, match="closed before its end"):
            harness.stream.completion()
    else:
        ways.clear()
        del harness.stream
        gc.collect()
    assert harness.aborted == ["r"]


def test_a_stream_read_to_its_end_aborts_nothing() -> None:
    harness = Harness([b"a"])
    harness.read()
    harness.stream.close()
    del harness.stream
    gc.collect()
    assert harness.aborted == []


class Several(Harness):
    """Three sequences whose events are put by the test."""

    def __init__(self, *, stop: tuple[str, ...] = ()) -> None:
        super().__init__([b"a", b"b", b"STOP"], stop=stop)
        self.closed: list[tuple[str, int | None]] = []
        self.events = EventStream("r", (0, 1, 2), lambda *closed: self.closed.append(closed))
        request = Request("r", (1, 2, 3), SamplingParams(), StopRules(99), seed=2**64 - 1, n=3)
        ticks = count(20)
        self.stream = TextStream(
            self.events,
            Job(request, stop, continues=True, called_s=8.0, tokenized_s=9.0),
            Pieces(b"a", b"b", b"STOP"),
            lambda: float(next(ticks)),
            self.ledger,
            lambda request, timeline, steps: build_report(
                LOAD, Memory(0, 0, 0, 0, 0), 3, timeline, steps
            ),
        )

    def put(self, index: int, token_id: int | None, finish: Finish | None = None) -> None:
        self.events.put(TokenEvent("r", token_id, 10.0, finish=finish, index=index))


def test_logprob_5_each_index_has_one_end_and_nothing_after_it() -> None:
    harness = Several()
    for index, token_id, finish in (
        (0, 1, None),
        (2, 2, LENGTH),
        (1, 2, None),
        (0, 1, LENGTH),
        (1, 0, END),
    ):
        harness.put(index, token_id, finish)
    chunks = list(harness.stream)
    assert [chunk.index for chunk in chunks] == [0, 2, 1, 0, 1]
    assert [chunk.finish_reason for chunk in chunks] == [
        None,
        "length",
        None,
        "length",
        "end_token",
    ]
    answers = harness.stream.completions()
    assert [answer.text for answer in answers] == ["aa", "b", "b"]
    assert [answer.index for answer in answers] == [0, 1, 2][: len(answers)]
    assert [answer.seed for answer in answers] == [2**64 - 1, 0, 1]
    assert harness.closed == []


def test_stop_6_a_stop_string_ends_its_own_sequence() -> None:
    harness = Several(stop=("STOP",))
    harness.put(1, 3)
    assert next(harness.stream).finish_reason == "stop_string"
    assert harness.closed == [("r", 1)]
    harness.put(1, 1)  # the engine did not know yet
    harness.put(1, None, Finish(FinishReason.CANCELLED))
    harness.put(0, 1, LENGTH)
    harness.put(2, 3)
    assert [chunk.index for chunk in harness.stream] == [0, 2]
    assert [answer.text for answer in harness.stream.completions()] == ["a", "", ""]
    assert harness.closed == [("r", 1), ("r", None)]


def test_a_fault_of_one_sequence_is_its_own_end() -> None:
    harness = Several()
    harness.put(1, None, Finish(FinishReason.ERROR, "logits hold NaN"))
    harness.put(0, 1, LENGTH)
    harness.put(2, 2, LENGTH)
    reasons = [answer.finish_reason for answer in harness.stream.completions()]
    assert reasons == ["length", "error", "length"]


def test_ctrl_c_ends_every_sequence_that_has_not_ended(monkeypatch: pytest.MonkeyPatch) -> None:
    harness = Several()
    harness.put(1, 1, LENGTH)
    harness.put(2, 2)
    chunks = [next(harness.stream), next(harness.stream)]
    monkeypatch.setattr(harness.events, "_events", Interrupted())
    chunks += list(harness.stream)
    reasons = [answer.finish_reason for answer in harness.stream.completions()]
    assert reasons == ["cancelled", "length", "cancelled"]
    assert [chunk.index for chunk in chunks] == [1, 2, 0, 2]
    assert harness.closed == [("r", None)]
