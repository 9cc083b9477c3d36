"""Labs of scheduling: a batch that nobody joins, requests that are never next.

Owns: the faulty queue; a small driver over the real scheduler, whose model
draws the same token again and again and whose clock is counted.
May not know: what a token costs.
Read next: `scheduling/scheduler.py`; `scheduling/waiting.py`.
"""

from __future__ import annotations

from collections.abc import Set
from itertools import count

from firsthand.kvcache.blocks import BlockPool
from firsthand.labs.charts import Lanes, Lines, Series, Span
from firsthand.labs.lab import Evidence, Lab
from firsthand.labs.words import OURS, Words
from firsthand.labs.workbench import Workbench
from firsthand.request import Priority, Request, SamplingParams, StopRules
from firsthand.scheduling.limits import Limits
from firsthand.scheduling.plan import Drawn, StepResult
from firsthand.scheduling.policy import Policy, class_index, level, longest_wait_s
from firsthand.scheduling.scheduler import Scheduler
from firsthand.scheduling.sequence import Sequence
from firsthand.scheduling.waiting import Queue, StaticQueue
from firsthand.values import dataclass

PLACES = 4
BLOCK_SIZE = 16


def a_request(
    name: str, num_tokens: int, priority: Priority = Priority.NORMAL, prompt: int = 1
) -> Request:
    sampling = SamplingParams(temperature=0.0)
    return Request(name, (0,) * prompt, sampling, StopRules(num_tokens), 0, priority=priority)


def a_scheduler(queue: Queue | None = None, policy: Policy | None = None) -> Scheduler:
    limits = Limits(vocab_size=2, context_length=256, max_sequences=PLACES, max_step_tokens=64)
    return Scheduler(limits, BlockPool(1024, BLOCK_SIZE), policy=policy, queue=queue)


def step(scheduler: Scheduler, now_s: float) -> tuple[str, ...]:
    """Plan, run, commit; whose tokens were computed."""
    plan = scheduler.plan(now_s)
    ran = scheduler.request_ids(plan)
    drawn = tuple(Drawn(piece.sequence_id, 0) for piece in plan.slices if piece.draw is not None)
    scheduler.commit(plan, StepResult(drawn, 0.0, 0.0), now_s)
    return ran


# ---- a batch that nobody joins ------------------------------------------------------------------

LENGTHS = (24, 4, 6, 3, 5, 22, 4, 3, 20, 5, 4, 6, 3, 18, 5, 4)


@dataclass(frozen=True, slots=True)
class Run:
    """`steps` whose requests ran in each step, `idle` places that were empty while somebody waited,
    of `places` in those steps."""

    steps: tuple[tuple[str, ...], ...]
    idle: int
    places: int


def run_all(queue: Queue | None) -> Run:
    scheduler = a_scheduler(queue)
    for number, length in enumerate(LENGTHS):
        scheduler.add(a_request(chr(ord("A") + number), length), 0.0)
    steps: list[tuple[str, ...]] = []
    idle = places = 0
    while scheduler.num_waiting or scheduler.num_running:
        ran = step(scheduler, float(len(steps)))
        steps.append(ran)
        if scheduler.num_waiting:
            idle += PLACES - len(ran)
            places += PLACES
    return Run(tuple(steps), idle, places)


def continuous_batching(bench: Workbench) -> Evidence:
    ways = (
        (
            Words("static: a batch, then the next", "静态：一批完了再下一批"),
            run_all(StaticQueue(PLACES)),
        ),
        (OURS, run_all(None)),
    )
    (_, static), (_, ours) = ways
    return Evidence(
        measure=Words(
            "share of places that stand empty while a request waits",
            "有请求在等待时空着的位置所占份额",
        ),
        fault_shows=static.idle / static.places,
        ours_does_not=ours.idle / ours.places,
        limit=0.2,
        headings=(
            Words("way", "做法"),
            Words("steps for all answers", "全部回答所需步数"),
            Words("tokens a step", "每步 token 数"),
            Words("mean end of an answer, steps", "回答结束的平均步数"),
        ),
        rows=tuple(
            (
                what,
                len(run.steps),
                sum(map(len, run.steps)) / len(run.steps),
                sum(_ends(run).values()) / len(LENGTHS),
            )
            for what, run in ways
        ),
        charts=tuple(
            Lanes(
                what,
                Words("steps", "步"),
                tuple((str(place + 1), spans) for place, spans in enumerate(_by_place(run))),
                float(len(static.steps)),
            )
            for what, run in ways
        ),
    )


def _ends(run: Run) -> dict[str, int]:
    return {name: at + 1 for at, ran in enumerate(run.steps) for name in ran}


def _by_place(run: Run) -> list[tuple[Span, ...]]:
    """Each request on the first place that was free when it began."""
    ends, place_of, begun = _ends(run), dict[str, int](), dict[str, int]()
    free_from = [0] * PLACES
    for at, ran in enumerate(run.steps):
        for name in ran:
            if name not in place_of:
                place = next(one for one in range(PLACES) if free_from[one] <= at)
                place_of[name], begun[name], free_from[place] = place, at, ends[name]
    return [
        tuple(
            Span(begun[name], ends[name], name) for name, place in place_of.items() if place == one
        )
        for one in range(PLACES)
    ]


# ---- who is never next --------------------------------------------------------------------------

STEP_S, HORIZON_S = 0.1, 120.0
NUM_BACKGROUND, ANSWER = 6, 10


class PriorityQueue:
    """The highest class first, always. With `ageing_s` a request rises by a class in that time."""

    whole_length = False

    def __init__(self, ageing_s: float | None) -> None:
        self._ageing_s = ageing_s
        self._waiting: dict[int, Sequence] = {}

    @property
    def num_waiting(self) -> tuple[int, ...]:
        classes = [one.class_index for one in self._waiting.values()]
        return tuple(classes.count(index) for index in range(len(Priority)))

    def sequences(self) -> dict[int, Sequence]:
        return dict(self._waiting)

    def begin_step(self, num_running: int) -> None:
        """Nothing is counted."""

    def add(self, sequence: Sequence) -> None:
        self._waiting[sequence.sequence_id] = sequence

    def remove(self, sequence: Sequence) -> None:
        del self._waiting[sequence.sequence_id]

    def heads(self, now_s: float, skip: Set[int]) -> list[Sequence]:
        def order(one: Sequence) -> tuple[int, int]:
            if self._ageing_s is None:
                return one.class_index, one.sequence_id
            risen = level(one.class_index, now_s - one.arrival_s, self._ageing_s)
            return risen, one.sequence_id

        found = [one for one in self._waiting.values() if one.sequence_id not in skip]
        return [min(found, key=order)] if found else []

    def admitted(self, sequence: Sequence) -> None:
        self.remove(sequence)

    def left(self, sequence: Sequence) -> None:
        """Nothing is counted."""

    def served(self, sequence: Sequence, num_tokens: int) -> None:
        """Nothing is counted."""


def waits_under(queue: Queue | None) -> list[float]:
    """How long each background request waited, or has waited at the end, while there is always
    urgent work for more places than there are."""
    scheduler = a_scheduler(queue)
    for number in range(NUM_BACKGROUND):
        scheduler.add(a_request(f"background-{number}", ANSWER, Priority.BACKGROUND), 0.0)
    began: dict[str, float] = {}
    numbers = count()
    for at in range(round(HORIZON_S / STEP_S)):
        now_s = at * STEP_S
        while scheduler.waiting_by_class[class_index(Priority.URGENT)] < 2 * PLACES:
            scheduler.add(a_request(f"urgent-{next(numbers)}", ANSWER, Priority.URGENT), now_s)
        for name in step(scheduler, now_s):
            began.setdefault(name, now_s)
    return [began.get(f"background-{number}", HORIZON_S) for number in range(NUM_BACKGROUND)]


def starvation(bench: Workbench) -> Evidence:
    policy = Policy()
    bound = longest_wait_s(class_index(Priority.BACKGROUND), policy.ageing_s)
    ways = (
        (Words("priority alone", "只看优先级"), waits_under(PriorityQueue(None))),
        (
            Words("priority that ages", "会老化的优先级"),
            waits_under(PriorityQueue(policy.ageing_s)),
        ),
        (Words("ours: ageing and shares", "本系统：老化加份额"), waits_under(None)),
    )
    return Evidence(
        measure=Words(
            f"longest wait of a background request, s (the bound: {bound:g} s, and what runs then)",
            f"后台请求的最长等待（秒）（上界：{bound:g} 秒，加当时正在运行的）",
        ),
        fault_shows=max(ways[0][1]),
        ours_does_not=max(ways[-1][1]),
        limit=bound + 2 * ANSWER * STEP_S,
        headings=(
            Words("way", "做法"),
            Words("began", "已开始"),
            Words("shortest wait, s", "最短等待（秒）"),
            Words("longest wait, s", "最长等待（秒）"),
        ),
        rows=tuple(
            (
                what,
                f"{sum(wait < HORIZON_S for wait in waits)}/{NUM_BACKGROUND}",
                min(waits),
                max(waits),
            )
            for what, waits in ways
        ),
        charts=(
            Lines(
                Words(
                    "Background requests that have begun, while urgent ones never end",
                    "在紧急请求源源不断时，已开始的后台请求数",
                ),
                Words("seconds", "秒"),
                Words("requests", "请求数"),
                tuple(Series(what, *_begun(waits)) for what, waits in ways),
            ),
        ),
    )


def _begun(waits: list[float]) -> tuple[tuple[float, ...], tuple[float, ...]]:
    times = [HORIZON_S * part / 60 for part in range(61)]
    begun = [float(sum(wait <= at and wait < HORIZON_S for wait in waits)) for at in times]
    return tuple(times), tuple(begun)


LABS = (
    Lab(
        name="continuous-batching",
        title=Words(
            "A batch that nobody joins before it has ended", "整批结束前谁也进不来的批处理"
        ),
        question=Words(
            "Four places, sixteen answers of different lengths. How long are places empty while "
            "requests wait?",
            "四个位置，十六个长短不一的回答。有请求在等时，位置会空多久？",
        ),
        run=continuous_batching,
        cause=Words(
            "A static batch ends with its longest answer. Each short one leaves a place that "
            "nobody may take.",
            "静态批在最长的回答结束时才结束。每个短回答都留下一个谁也不许用的位置。",
        ),
        cure=Words(
            "Who runs is decided anew in every step; what ends gives its place and its blocks back "
            "in that step.",
            "每一步都重新决定谁运行；结束者在当步交还位置与缓存块。",
        ),
        places=(
            "firsthand.scheduling.scheduler.Scheduler.plan",
            "firsthand.scheduling.waiting.StaticQueue",
        ),
        sources=("A §4.1",),
        seconds=1,
    ),
    Lab(
        name="starvation",
        title=Words("A low priority that is never next", "永远轮不到的低优先级"),
        question=Words(
            "Urgent requests keep all places busy, for ever. When does a background request begin?",
            "紧急请求永远占满所有位置。后台请求何时开始？",
        ),
        run=starvation,
        cause=Words(
            "Where the class alone decides, whoever is lower waits for a gap that never comes.",
            "只看类别时，低类别要等一个永远不会出现的空隙。",
        ),
        cure=Words(
            "Waiting lifts a request class by class, so its wait has a bound; and each class is "
            "guaranteed a share of the work, so mostly it does not come to that.",
            "等待使请求逐级上升，因此等待有上界；各类别还有保证的份额，多数时候到不了那一步。",
        ),
        places=(
            "firsthand.scheduling.policy.level",
            "firsthand.scheduling.policy.new_credits",
            "firsthand.scheduling.waiting.FairQueue",
        ),
        sources=("A §4.2",),
        seconds=2,
    ),
)
