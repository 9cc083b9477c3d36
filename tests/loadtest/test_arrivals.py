"""When requests arrive: the rate is kept, the process is what it says, bad traces are refused."""

from __future__ import annotations

import json
import math
import os
import random
import statistics
import time
from itertools import pairwise
from pathlib import Path

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from firsthand.errors import InvalidRequest
from firsthand.loadtest.arrivals import (
    CONSTANT,
    Lengths,
    custom_requests,
    prompt_of,
    ramped_times,
    random_requests,
    read_prompts,
    read_trace,
    times_at,
)

LENGTHS = Lengths(5, 7)


@given(st.floats(0.1, 1000), st.integers(1, 300), st.sampled_from([0.3, 1.0, 5.0, CONSTANT]))
@settings(deadline=None, max_examples=60)
def test_a_rate_is_kept_whatever_its_bursts(rate: float, num: int, burstiness: float) -> None:
    times = times_at(rate, num, burstiness, random.Random(1))
    assert len(times) == num
    assert times[0] == 0
    assert all(before <= after for before, after in pairwise(times))
    assert times[-1] <= num / rate * (1 + 1e-9)


def test_a_burstiness_of_1_is_a_poisson_process() -> None:
    """Its gaps vary by as much as their mean; constant ones not at all."""
    for burstiness, spread in ((1.0, 1.0), (4.0, 0.5), (0.25, 2.0), (CONSTANT, 0.0)):
        times = times_at(100, 20_000, burstiness, random.Random(2))
        gaps = [after - before for before, after in pairwise(times)]
        assert statistics.fmean(gaps) == pytest.approx(0.01, rel=0.01)
        assert statistics.pstdev(gaps) / 0.01 == pytest.approx(spread, abs=0.05)


def test_all_at_once_and_a_ramp() -> None:
    assert times_at(math.inf, 3, 1.0, random.Random(1)) == [0, 0, 0]
    linear = ramped_times(10, 100, 500, is_linear=True)
    gaps = [after - before for before, after in pairwise(linear)]
    assert gaps[0] == pytest.approx(0.1)
    assert gaps[-1] == pytest.approx(0.01, rel=0.01)
    exponential = ramped_times(10, 100, 500, is_linear=False)
    assert exponential[250] - exponential[249] == pytest.approx(1 / math.sqrt(1000), rel=0.01)


def test_prompts_differ_and_repeat_with_their_seed() -> None:
    draw = random.Random(3)
    prompts = [prompt_of(20, draw) for _ in range(50)]
    assert all(len(prompt.split()) == 20 for prompt in prompts)
    assert len({prompt[:20] for prompt in prompts}) == 50
    assert prompt_of(20, random.Random(3)) == prompts[0]


def test_traces_of_both_forms_are_read(tmp_path: Path) -> None:
    file = tmp_path / "trace.csv"
    file.write_text(
        "TIMESTAMP,ContextTokens,GeneratedTokens\n"
        "2023-11-16 18:15:46.6805900,12,34\n"
        "2023-11-16 18:15:48.1805900,3,4\n",
        encoding="utf-8",
    )
    first, second = read_trace(file, LENGTHS, random.Random(1))
    assert (first.at_s, first.output_tokens, len(first.prompt.split())) == (0, 34, 12)
    assert second.at_s == pytest.approx(1.5)
    lines = tmp_path / "trace.jsonl"
    rows: list[dict[str, object]] = [{"timestamp": 20, "prompt": "b"}, {"timestamp": 10.5}]
    lines.write_text("\n\n".join(map(json.dumps, rows)), encoding="utf-8")
    first, second = read_trace(lines, LENGTHS, random.Random(1))
    assert (first.at_s, first.output_tokens, len(first.prompt.split())) == (0, 7, 5)
    assert (second.at_s, second.prompt) == (0.0095, "b")


@pytest.mark.parametrize(
    ("name", "content"),
    [
        ("t.jsonl", ""),
        ("t.jsonl", "[1]"),
        ("t.jsonl", "{"),
        ("t.jsonl", "[" * 100_000),
        ("t.jsonl", '{"timestamp": true}'),
        ("t.jsonl", '{"timestamp": NaN}'),
        ("t.jsonl", '{"timestamp": 1' + "0" * 400 + "}"),
        ("t.jsonl", '{"timestamp": 1764547200000000}'),
        ("t.jsonl", '{"timestamp": 1, "timestamp": 2}'),
        ("t.jsonl", '{"timestamp": 1, "prompt": 3}'),
        ("t.jsonl", '{"timestamp": 1, "prompt": ""}'),
        ("t.jsonl", '{"timestamp": 1}\n{"timestamp": 700000001}'),
        ("t.jsonl", '{"timestamp": 1, "input_length": 1048576}\n' * 200),
        ("t.jsonl", '{"timestamp": 1, "input_length": 0}'),
        ("t.jsonl", '{"timestamp": 1, "output_length": 1e9}'),
        ("t.csv", "TIMESTAMP,ContextTokens\n2023-11-16 18:15:46,1\n"),
        ("t.csv", "TIMESTAMP,ContextTokens,GeneratedTokens\nsoon,1,2\n"),
        ("t.csv", "TIMESTAMP,ContextTokens,GeneratedTokens\n2023-11-16 18:15:46,1,-2\n"),
        ("t.csv", "TIMESTAMP,ContextTokens,GeneratedTokens\n" + "9" * 200_000 + ",1,2\n"),
    ],
)
def test_a_bad_trace_is_refused_by_name(tmp_path: Path, name: str, content: str) -> None:
    file = tmp_path / name
    file.write_text(content, encoding="utf-8")
    with pytest.raises(InvalidRequest, match="dataset_path"):
        read_trace(file, LENGTHS, random.Random(1))


def test_a_trace_is_cut_before_its_prompts_are_made(tmp_path: Path) -> None:
    """Of a file whose prompts would not fit into memory two requests are wanted."""
    file = tmp_path / "t.jsonl"
    row = '{"timestamp": 1, "input_length": %d}\n'
    file.write_text(row % 2 * 2 + row % (1 << 20) * 200, encoding="utf-8")
    found = read_trace(file, LENGTHS, random.Random(1), 2)
    assert [len(one.prompt.split()) for one in found] == [2, 2]


def test_a_line_ends_where_json_lines_end(tmp_path: Path) -> None:
    """Not where Unicode, too, sees an end."""
    file = tmp_path / "prompts.jsonl"
    text = "a\u2028b\x85c\u2029d"
    file.write_bytes(json.dumps({"prompt": text}, ensure_ascii=False).encode() + b"\r\n")
    assert read_prompts(file, 4) == [(text, 4)]
    os.mkfifo(tmp_path / "pipe")
    with pytest.raises(InvalidRequest, match="not a regular file"):
        read_prompts(tmp_path / "pipe", 4)


def test_times_without_a_zone_are_as_far_apart_everywhere(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """In Berlin an hour was left out between these two."""
    monkeypatch.setenv("TZ", "Europe/Berlin")
    time.tzset()
    try:
        file = tmp_path / "t.csv"
        rows = ("2024-03-31 01:59:59,1,2", "2024-03-31 03:00:00,1,2")
        file.write_text("\n".join(("TIMESTAMP,ContextTokens,GeneratedTokens", *rows)))
        assert read_trace(file, LENGTHS, random.Random(1))[1].at_s == 3601
    finally:
        monkeypatch.undo()
        time.tzset()


def test_a_load_that_would_not_end_or_not_fit_is_refused() -> None:
    draw = random.Random(1)
    for rate in (5e-324, 1e-6):
        for burstiness in (1.0, CONSTANT):
            with pytest.raises(InvalidRequest, match="request_rate: the load would last"):
                times_at(rate, 2, burstiness, draw)
        with pytest.raises(InvalidRequest, match="ramp_up_start_rps"):
            ramped_times(rate, 1, 3, is_linear=False)
    with pytest.raises(InvalidRequest, match="random_input_len"):
        random_requests([0.0] * 1000, Lengths(1 << 20, 1), draw)
    with pytest.raises(InvalidRequest, match="num_prompts"):
        custom_requests([0.0] * 1100, [("x" * 1_000_000, 1)])


def test_bad_prompts_are_refused(tmp_path: Path) -> None:
    file = tmp_path / "prompts.jsonl"
    for content in (b"", b'{"prompt": ""}', b'{"prompt": 3}', b"\xff\xfe"):
        file.write_bytes(content)
        with pytest.raises(InvalidRequest, match="dataset_path"):
            read_prompts(file, 4)
