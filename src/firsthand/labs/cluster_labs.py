"""Labs of several machines: a scaling rule without a memory, a pipeline that is none.

Owns: both, beside ours.
May not know: Ray.
Read next: `cluster/autoscaling/simulator.py`, which plays a load.
"""

from __future__ import annotations

from collections.abc import Sequence
from itertools import pairwise

from firsthand.cluster.autoscaling.limits import Limits
from firsthand.cluster.autoscaling.loads import drawn
from firsthand.cluster.autoscaling.simulator import (
    READINGS_EVERY_S,
    Outcome,
    Service,
    compared,
)
from firsthand.cluster.pipeline.timeline import Span as Work
from firsthand.cluster.pipeline.timeline import bubble_share, formula
from firsthand.labs.charts import Lanes, Lines, Series, Span
from firsthand.labs.lab import Evidence, Lab
from firsthand.labs.passages import PROSE
from firsthand.labs.words import OURS, Words
from firsthand.labs.workbench import Workbench

# ---- a rule without a memory --------------------------------------------------------------------

LOAD, PEAK = "sawtooth", 40.0
SERVICE = Service(rate=10.0, idle_s=1.0, busy_s=1.5)
LIMITS = Limits(max_replicas=6, ongoing_out=12.0)


def autoscaler(bench: Workbench) -> Evidence:
    arrivals = drawn(LOAD, PEAK, READINGS_EVERY_S)
    found = compared(arrivals, SERVICE, LIMITS, READINGS_EVERY_S)
    ways = (
        (Words("as many as are busy now", "此刻忙几个就开几个"), found["naive"]),
        (OURS, found["ours"]),
    )
    return Evidence(
        measure=Words(
            "changes that took back the one before, in two hours",
            "两小时内，撤销前一次改动的次数",
        ),
        fault_shows=float(ways[0][1].flaps),
        ours_does_not=float(ways[1][1].flaps),
        limit=4.0,
        headings=(
            Words("rule", "规则"),
            Words("changes", "改动次数"),
            Words("taken back", "被撤销"),
            Words("longest queue", "最长队列"),
            Words("machine hours", "机器小时"),
        ),
        rows=tuple(
            (
                what,
                len(outcome.changes),
                outcome.flaps,
                max(one.waiting for one in outcome.moments),
                outcome.machine_hours,
            )
            for what, outcome in ways
        ),
        charts=(
            Lines(
                Words(
                    "Replicas under a load that rises for five minutes and falls at once",
                    "负载每五分钟升高后骤降时的副本数",
                ),
                Words("minutes", "分钟"),
                Words("replicas", "副本数"),
                tuple(Series(what, *_replicas(outcome)) for what, outcome in ways),
            ),
        ),
    )


def _replicas(outcome: Outcome) -> tuple[tuple[float, ...], tuple[float, ...]]:
    """Of the first half hour."""
    seen = [one for one in outcome.moments if one.at_s <= 1800]
    return tuple(one.at_s / 60 for one in seen), tuple(float(one.target) for one in seen)


# ---- a pipeline that is none --------------------------------------------------------------------

STAGES, PARTS, ROWS = 3, 6, 16


def stage_ms(bench: Workbench) -> list[float]:
    """What each third of the model's operators takes for a micro-batch, measured."""
    with bench.engine(max_context=128) as llm:
        ids = llm.tokenize(PROSE)[:ROWS]
        llm.trace(ids)
        traces = [[op.ms for op in llm.trace(ids)] for _ in range(5)]
    least = [min(times) for times in zip(*traces, strict=True)]
    cuts = [len(least) * stage // STAGES for stage in range(STAGES + 1)]
    return [sum(least[first:last]) for first, last in pairwise(cuts)]


def one_after_another(times: Sequence[float]) -> list[Work]:
    """A loop over parts, and inside it one over stages."""
    done: list[Work] = []
    now_s = 0.0
    for part in range(PARTS):
        for stage, ms in enumerate(times):
            done.append(Work(0, part, stage, now_s, now_s + ms / 1e3, ROWS, 0))
            now_s = done[-1].ended_s
    return done


def in_flight(times: Sequence[float]) -> list[Work]:
    """A part goes on as soon as it is there and the stage is free."""
    done: list[Work] = []
    free_s = [0.0] * len(times)
    for part in range(PARTS):
        there_s = 0.0
        for stage, ms in enumerate(times):
            began_s = max(there_s, free_s[stage])
            there_s = free_s[stage] = began_s + ms / 1e3
            done.append(Work(0, part, stage, began_s, there_s, ROWS, 0))
    return done


def pipeline(bench: Workbench) -> Evidence:
    times = stage_ms(bench)
    ways = (
        (Words("one part after another", "一份接一份"), one_after_another(times)),
        (Words("ours, parts in flight", "本系统，多份在途"), in_flight(times)),
    )
    shares = [bubble_share(done, STAGES) for _, done in ways]
    whole_ms = [done[-1].ended_s * 1e3 for _, done in ways]
    return Evidence(
        measure=Words("share of the stages' time in which they stand idle", "各阶段空闲时间的份额"),
        fault_shows=shares[0],
        ours_does_not=shares[1],
        limit=0.5,
        headings=(
            Words("way", "做法"),
            Words("whole batch, ms", "整批（毫秒）"),
            Words("idle", "空闲"),
            Words("by the formula, were the stages equal", "各阶段等长时按公式"),
        ),
        rows=(
            (ways[0][0], whole_ms[0], f"{shares[0]:.0%}", f"{1 - 1 / STAGES:.0%}"),
            (ways[1][0], whole_ms[1], f"{shares[1]:.0%}", f"{formula(STAGES, PARTS):.0%}"),
        ),
        charts=tuple(
            Lanes(
                what,
                Words("ms", "毫秒"),
                tuple(
                    (Words(f"stage {stage + 1}", f"阶段 {stage + 1}"), _lane(done, stage))
                    for stage in range(STAGES)
                ),
                whole_ms[0],
            )
            for what, done in ways
        ),
    )


def _lane(done: Sequence[Work], stage: int) -> tuple[Span, ...]:
    return tuple(
        Span(one.began_s * 1e3, one.ended_s * 1e3, str(one.part + 1))
        for one in done
        if one.stage == stage
    )


LABS = (
    Lab(
        name="pipeline",
        title=Words("A pipeline by name", "名义上的流水线"),
        question=Words(
            "Layers on three machines, a batch in six parts. How much of the time does each "
            "compute?",
            "层分布在三台机器上，一批分成六份。每台有多少时间在计算？",
        ),
        run=pipeline,
        cause=Words(
            "A loop over parts with one over stages inside it sends the next part in when the one "
            "before has left the last stage: one machine computes, the others wait.",
            "外层循环遍历各份、内层遍历各阶段，则前一份离开最后阶段，下一份才进入：一台在算，"
            "其余在等。",
        ),
        cure=Words(
            "The next part enters as soon as the first stage is free. What is left idle is the "
            "beginning and the end: (S − 1) / (M + S − 1) of S equal stages and M equal parts. "
            "The stages' times here are measured, the hops between machines take none.",
            "第一阶段一空，下一份就进入。剩下的空闲只在开头与结尾：S 个等长阶段、M 份时为 (S − "
            "1) / (M + S − 1)。"
            "这里各阶段的时间是实测的，机器间的传输不计时间。",
        ),
        places=(
            "firsthand.cluster.pipeline.timeline.formula",
            "firsthand.cluster.pipeline.micro",
        ),
        sources=("B §5.2",),
        seconds=4,
        needs_model=True,
    ),
    Lab(
        name="autoscaler",
        title=Words("A scaling rule without a memory", "没有记忆的扩缩容规则"),
        question=Words(
            "As many replicas as are needed now. What does that do under a load that rises and "
            "falls?",
            "此刻需要几个副本就开几个。负载起伏时会怎样？",
        ),
        run=autoscaler,
        cause=Words(
            "What made a replica leave is gone a minute later, and it is started again: each time "
            "half a minute in which it costs and does not serve, and a queue that grows meanwhile.",
            "使副本离开的原因一分钟后就消失了，于是又要启动：每次都有半分钟只花钱不干活，"
            "队列则在增长。",
        ),
        cure=Words(
            "The queue decides first; one leaves only when nothing has waited for minutes, nothing "
            "has changed for five, and the others would carry the highest load of a long look "
            "back.",
            "先看队列；只有几分钟内无人等待、五分钟内没有改动、"
            "且其余副本能承受一段较长回看时间内的最高负载时，才减一个。",
        ),
        places=(
            "firsthand.cluster.autoscaling.policy.decide",
            "firsthand.cluster.autoscaling.simulator.simulate",
        ),
        sources=("B §5.3",),
        seconds=1,
    ),
)
