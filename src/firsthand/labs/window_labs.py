"""Lab of a batching window: without a timer nobody starts the batch.

Owns: the window as it is often written.
May not know: who sleeps.
Read next: `engine/microbatch.py`.
"""

from __future__ import annotations

from collections import deque
from collections.abc import Callable, Iterator

from firsthand.engine.microbatch import MicroBatcher, Window
from firsthand.labs.charts import Lanes, Span
from firsthand.labs.lab import Evidence, Lab
from firsthand.labs.words import OURS, Words
from firsthand.labs.workbench import Workbench
from firsthand.request import Pooling, Request, SamplingParams, StopRules

ARRIVALS_S = (0.0, 0.005, 0.4, 0.41, 1.3, 2.2)
WINDOW = Window(max_batch=8, max_wait_s=0.05, min_batch=8)
LATER_S = 3.0  # nobody comes any more; it is looked at what still waits


class SourcesBatcher:
    """As it is often written: the clock is looked at when a request arrives."""

    def __init__(self, window: Window) -> None:
        self._window = window
        self._waiting: deque[float] = deque()

    def add(self, now_s: float) -> list[float]:
        """The arrivals of the batch that starts now."""
        self._waiting.append(now_s)
        is_full = len(self._waiting) >= self._window.max_batch
        if is_full or now_s - self._waiting[0] >= self._window.max_wait_s:
            batch = list(self._waiting)
            self._waiting.clear()
            return batch
        return []


def waits_without_timer() -> dict[float, float]:
    """By arrival, when its batch started."""
    batcher = SourcesBatcher(WINDOW)
    started = {one: now_s for now_s in ARRIVALS_S for one in batcher.add(now_s)}
    return {one: started.get(one, LATER_S) for one in ARRIVALS_S}


def waits_with_timer() -> dict[float, float]:
    """Ours: whoever sleeps is told when to look again."""
    batcher = MicroBatcher(WINDOW)
    started: dict[float, float] = {}
    for number, (now_s, next_s) in enumerate(
        zip(ARRIVALS_S, (*ARRIVALS_S[1:], LATER_S), strict=True)
    ):
        batcher.add(_to_pool(str(number)), now_s)
        for at_s in _alarms(batcher.due_s, next_s):
            for one in batcher.take(at_s):
                started[one.arrival_s] = at_s
                batcher.ended(one.request.request_id)
    return started


def _alarms(due_s: Callable[[], float | None], until_s: float) -> Iterator[float]:
    while (at_s := due_s()) is not None and at_s < until_s:
        yield at_s


def _to_pool(name: str) -> Request:
    stop = StopRules(0)
    return Request(name, (0,), SamplingParams(), stop, 0, pooling=Pooling.LAST)


def window_timer(bench: Workbench) -> Evidence:
    ways = (
        (Words("looked at on arrival", "只在到达时查看"), waits_without_timer()),
        (OURS, waits_with_timer()),
    )
    waits = [[1e3 * (at - one) for one, at in started.items()] for _, started in ways]
    return Evidence(
        measure=Words(
            f"longest wait for company, ms (the window: {WINDOW.max_wait_s * 1e3:g} ms)",
            f"等待同批请求的最长时间（毫秒）（窗口：{WINDOW.max_wait_s * 1e3:g} 毫秒）",
        ),
        fault_shows=max(waits[0]),
        ours_does_not=max(waits[1]),
        limit=WINDOW.max_wait_s * 1e3 + 1,
        headings=(
            Words("way", "做法"),
            Words("mean wait, ms", "平均等待（毫秒）"),
            Words("longest wait, ms", "最长等待（毫秒）"),
            Words("never started", "从未开始"),
        ),
        rows=tuple(
            (
                what,
                sum(found) / len(found),
                max(found),
                sum(at >= LATER_S for at in started.values()),
            )
            for (what, started), found in zip(ways, waits, strict=True)
        ),
        charts=tuple(
            Lanes(
                what,
                Words("s; # waits", "秒；# 表示等待"),
                tuple(
                    (Words(f"request {number + 1}", f"请求 {number + 1}"), (Span(one, at, "#"),))
                    for number, (one, at) in enumerate(sorted(started.items()))
                ),
                LATER_S,
            )
            for what, started in ways
        ),
    )


LABS = (
    Lab(
        name="window-timer",
        title=Words("A batching window without a timer", "没有定时器的批处理窗口"),
        question=Words(
            "Wait at most 50 ms for company, then start. Who starts the batch if nobody comes?",
            "最多等别的请求 50 毫秒就开始。如果没有人再来，由谁来启动这一批？",
        ),
        run=window_timer,
        cause=Words(
            "The time is only compared when a request arrives. A lone request waits for the next "
            "one, and the last of the evening for ever.",
            "只有请求到达时才比较时间。单独的请求要等下一个，晚上最后一个则永远等下去。",
        ),
        cure=Words(
            "The window says when it is due; whoever sleeps wakes at that time, whether somebody "
            "comes or not.",
            "窗口说出到期时刻；睡眠者到点醒来，不管有没有人来。",
        ),
        places=(
            "firsthand.engine.microbatch.MicroBatcher.due_s",
            "firsthand.engine.worker.Worker",
        ),
        sources=("B §3.3", "A §5.4"),
        seconds=1,
    ),
)
