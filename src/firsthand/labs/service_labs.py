"""Labs of a service under load: an upstream that slows down, a queue without a bound.

Owns: a server of counted time: callers who come, places that work, and a door.
May not know: HTTP. The door of ours is the real one, under a clock of the lab.
Read next: `server/guard/gate.py`.
"""

from __future__ import annotations

from collections import deque
from collections.abc import Callable
from dataclasses import field
from typing import Protocol

from firsthand.labs.charts import Lines, Series
from firsthand.labs.lab import Evidence, Lab
from firsthand.labs.words import OURS, Words
from firsthand.labs.workbench import Workbench
from firsthand.server.guard.call import Call, Caller
from firsthand.server.guard.gate import Gate, Grant
from firsthand.server.guard.queue import Bounds
from firsthand.server.guard.refusal import Refused
from firsthand.server.guard.work import Work
from firsthand.values import dataclass

TICK_S = 0.01
NO_BOUND = Words("a queue without a bound", "没有上限的队列")


@dataclass(slots=True, eq=False)
class Visitor:
    """`until_s`: then it has gone. `ended_s` None: no answer; `refused`: told so at once."""

    came_s: float
    until_s: float
    began_s: float | None = None
    ended_s: float | None = None
    refused: bool = False
    grant: Grant | None = None

    @property
    def is_served(self) -> bool:
        return self.ended_s is not None and self.ended_s <= self.until_s


class Door(Protocol):
    """Who gets in, who is next, and what is told at the end."""

    def enter(self, caller: Visitor, now_s: float) -> None: ...
    def next(self, now_s: float) -> Visitor | None: ...
    def ended(self, caller: Visitor, now_s: float) -> None: ...
    @property
    def num_waiting(self) -> int: ...


class OpenDoor:
    """Everybody gets in, and is served in turn, whether he still waits or not."""

    def __init__(self) -> None:
        self._waiting: deque[Visitor] = deque()

    @property
    def num_waiting(self) -> int:
        return len(self._waiting)

    def enter(self, caller: Visitor, now_s: float) -> None:
        self._waiting.append(caller)

    def next(self, now_s: float) -> Visitor | None:
        return self._waiting.popleft() if self._waiting else None

    def ended(self, caller: Visitor, now_s: float) -> None:
        """Nobody is told."""


class RealDoor:
    """The gate of the server: bounds, expected waits, deadlines."""

    def __init__(self, bounds: Bounds) -> None:
        self._now_s = 0.0
        self._gate = Gate(bounds, lambda: self._now_s, lambda: 0.5)
        self._waiting: deque[Visitor] = deque()

    @property
    def num_waiting(self) -> int:
        return len(self._waiting)

    def enter(self, caller: Visitor, now_s: float) -> None:
        self._now_s = now_s
        work = Work(num_prompt_tokens=1, max_tokens=1, timeout_s=caller.until_s - now_s)
        try:
            caller.grant = self._gate.admit(Call("lab", Caller(), now_s), [work])[0]
        except Refused:
            caller.refused = True
            return
        self._waiting.append(caller)

    def next(self, now_s: float) -> Visitor | None:
        """Whoever's deadline is past is ended before it has cost anything."""
        self._now_s = now_s
        while self._waiting:
            caller = self._waiting.popleft()
            assert caller.grant is not None
            if now_s < caller.grant.deadline_s:
                return caller
            caller.grant.close()
        return None

    def ended(self, caller: Visitor, now_s: float) -> None:
        self._now_s = now_s
        assert caller.grant is not None
        caller.grant.close(1)


@dataclass(frozen=True, slots=True)
class Scene:
    """`service_s` of the time at which a place begins."""

    places: int
    arrivals_per_s: float
    patience_s: float
    horizon_s: float
    service_s: Callable[[float], float]


@dataclass(slots=True, eq=False)
class Played:
    callers: list[Visitor] = field(default_factory=list)
    waiting: list[tuple[float, int]] = field(default_factory=list)
    worked_s: float = 0.0
    wasted_s: float = 0.0  # for callers who had gone by then

    @property
    def served(self) -> list[Visitor]:
        return [one for one in self.callers if one.is_served]


def play(scene: Scene, door: Door) -> Played:
    """The same callers at any door."""
    played = Played()
    busy: list[tuple[float, Visitor]] = []
    for tick in range(round(scene.horizon_s / TICK_S)):
        now_s = tick * TICK_S
        while len(played.callers) < now_s * scene.arrivals_per_s:
            caller = Visitor(now_s, now_s + scene.patience_s)
            played.callers.append(caller)
            door.enter(caller, now_s)
        for at_s, caller in [one for one in busy if one[0] <= now_s]:
            busy.remove((at_s, caller))
            caller.ended_s = now_s
            assert caller.began_s is not None
            played.worked_s += now_s - caller.began_s
            played.wasted_s += 0.0 if caller.is_served else now_s - caller.began_s
            door.ended(caller, now_s)
        while len(busy) < scene.places and (found := door.next(now_s)) is not None:
            found.began_s = now_s
            busy.append((now_s + scene.service_s(now_s), found))
        if tick % 50 == 0:
            played.waiting.append((now_s, door.num_waiting))
    return played


def _waiting_chart(what: Words, played: Played) -> Series:
    return Series(
        what,
        tuple(at_s for at_s, _ in played.waiting),
        tuple(float(number) for _, number in played.waiting),
    )


def _chart(ways: tuple[tuple[Words, Played], ...], title: Words) -> Lines:
    return Lines(
        title,
        Words("seconds", "秒"),
        Words("callers who wait", "等待的调用者"),
        tuple(_waiting_chart(what, played) for what, played in ways),
    )


# ---- a queue without a bound --------------------------------------------------------------------

FLOOD = Scene(
    places=4, arrivals_per_s=20.0, patience_s=5.0, horizon_s=60.0, service_s=lambda now_s: 0.4
)


def unbounded_queue(bench: Workbench) -> Evidence:
    bounds = Bounds(max_running=FLOOD.places, max_waiting=16, shed=False)
    ways = ((NO_BOUND, play(FLOOD, OpenDoor())), (OURS, play(FLOOD, RealDoor(bounds))))
    capacity = FLOOD.places / FLOOD.service_s(0.0) * FLOOD.horizon_s
    return Evidence(
        measure=Words(
            "share of the work done for callers who had gone",
            "为已离开的调用者所做工作的份额",
        ),
        fault_shows=ways[0][1].wasted_s / ways[0][1].worked_s,
        ours_does_not=ways[1][1].wasted_s / ways[1][1].worked_s,
        limit=0.3,
        headings=(
            Words("way", "做法"),
            Words("came", "到达"),
            Words("served in time", "按时得到服务"),
            Words("of what is possible", "占可能的份额"),
            Words("refused at once", "立即被拒"),
            Words("most that waited", "最多等待人数"),
        ),
        rows=tuple(
            (
                what,
                len(played.callers),
                len(played.served),
                f"{len(played.served) / capacity:.0%}",
                sum(one.refused for one in played.callers),
                max(number for _, number in played.waiting),
            )
            for what, played in ways
        ),
        charts=(
            _chart(
                ways,
                Words(
                    "Twice as many come as can be served; each waits 5 s at most",
                    "到达者是可服务数的两倍；每人最多等 5 秒",
                ),
            ),
        ),
    )


# ---- an upstream that slows down ----------------------------------------------------------------

NORMAL_S, SLOW_S = 0.8, 3.0
SLOW_FROM_S, SLOW_UNTIL_S = 20.0, 60.0


def _upstream(now_s: float) -> float:
    return SLOW_S if SLOW_FROM_S <= now_s < SLOW_UNTIL_S else NORMAL_S


UPSTREAM = Scene(
    places=10, arrivals_per_s=8.0, patience_s=10.0, horizon_s=120.0, service_s=_upstream
)


def slow_upstream(bench: Workbench) -> Evidence:
    bounds = Bounds(max_running=UPSTREAM.places, max_waiting=32, shed=False)
    ways = ((NO_BOUND, play(UPSTREAM, OpenDoor())), (OURS, play(UPSTREAM, RealDoor(bounds))))
    return Evidence(
        measure=Words(
            "seconds after the upstream is well again until callers are",
            "上游恢复之后，调用者还要多少秒才恢复",
        ),
        fault_shows=_well_again_s(ways[0][1]),
        ours_does_not=_well_again_s(ways[1][1]),
        limit=20.0,
        headings=(
            Words("way", "做法"),
            Words("served while it was slow", "变慢期间得到服务"),
            Words("served after it", "恢复之后得到服务"),
            Words("refused at once", "立即被拒"),
            Words("left without an answer", "未得应答而离开"),
            Words("slowest answer, s", "最慢的回答（秒）"),
        ),
        rows=tuple(
            (
                what,
                _share(played, SLOW_FROM_S, SLOW_UNTIL_S),
                _share(played, SLOW_UNTIL_S, UPSTREAM.horizon_s - UPSTREAM.patience_s),
                sum(one.refused for one in played.callers),
                sum(
                    not one.is_served and not one.refused
                    for one in played.callers
                    if one.until_s < UPSTREAM.horizon_s
                ),
                max(
                    (one.ended_s or 0.0) - one.came_s
                    for one in played.callers
                    if one.ended_s is not None
                ),
            )
            for what, played in ways
        ),
        charts=(
            _chart(
                ways,
                Words(
                    "The upstream takes 0.8 s, and 3 s from second 20 to 60; eight callers a "
                    "second",
                    "上游耗时 0.8 秒，第 20 到 60 秒变为 3 秒；每秒八个调用者",
                ),
            ),
        ),
    )


def _share(played: Played, from_s: float, until_s: float) -> str:
    came = [one for one in played.callers if from_s <= one.came_s < until_s]
    return f"{sum(one.is_served for one in came) / len(came):.0%}"


def _well_again_s(played: Played) -> float:
    """Until from some caller on all have been served within twice the normal time."""
    late = [
        one.came_s
        for one in played.callers
        if one.came_s < UPSTREAM.horizon_s - UPSTREAM.patience_s
        and not (one.ended_s is not None and one.ended_s - one.came_s <= 2 * NORMAL_S)
    ]
    return max(0.0, max(late, default=0.0) - SLOW_UNTIL_S)


LABS = (
    Lab(
        name="slow-upstream",
        title=Words("An upstream that goes from 800 ms to 3 s", "上游从 800 毫秒变成 3 秒"),
        question=Words(
            "Ten connections are plenty at 800 ms. What happens in the forty seconds at 3 s, and "
            "after them?",
            "800 毫秒时十条连接绰绰有余。变成 3 秒的那四十秒里会怎样？之后呢？",
        ),
        run=slow_upstream,
        cause=Words(
            "Work in progress is arrivals times duration: 8 × 0.8 is 6.4 places, 8 × 3 is 24. What "
            "exceeds the ten waits, its callers leave, and it is answered all the same, one after "
            "the other: long after the upstream is well, everybody still gets answers that nobody "
            "waits for.",
            "在途工作量等于到达率乘以时长：8 × 0.8 是 6.4 个位置，8 × 3 是 24 个。"
            "超出十个的在排队，"
            "调用者走了，系统仍一个个替他们算：上游早已恢复，大家得到的还是没人等的回答。",
        ),
        cure=Words(
            "A deadline with each call, a queue with a bound, and a refusal at once, with the time "
            "after which to come back, computed from how fast places become free.",
            "每次调用带截止时间，队列有上限，超出立即拒绝，并告知按位置释放速度算出的重试时间。",
        ),
        places=(
            "firsthand.server.guard.gate.Gate.admit",
            "firsthand.server.guard.queue.Queue.retry_after_s",
            "firsthand.server.chaos",
        ),
        sources=("A §1",),
        seconds=2,
    ),
    Lab(
        name="unbounded-queue",
        title=Words("A queue without a bound", "没有上限的队列"),
        question=Words(
            "Twice as many requests come as can be served. Is it better to take them all?",
            "来的请求是能处理的两倍。全部收下会更好吗？",
        ),
        run=unbounded_queue,
        cause=Words(
            "The queue grows until everybody waits longer than anybody is willing to. From then on "
            "every answer is for a caller who has gone: the machine is busy and serves nobody.",
            "队列越来越长，直到每个人的等待都超过任何人的耐心。此后每个回答都是给已离开的人："
            "机器很忙，却没服务任何人。",
        ),
        cure=Words(
            "Take what can be answered in time, refuse the rest at once with 503 and Retry-After; "
            "what is past its deadline is dropped before it costs anything.",
            "只收能按时答复的，其余立即以 503 与 Retry-After 拒绝；"
            "过了截止时间的在花费之前就丢掉。",
        ),
        places=(
            "firsthand.server.guard.queue.Bounds",
            "firsthand.server.guard.queue.Queue.expected_wait_s",
            "firsthand.scheduling.requests.Requests.expired",
        ),
        sources=("A §6.1", "B §1"),
        seconds=1,
    ),
)
