"""Labs of speed: fused or not, keys in rows or in tiles, two things changed at once.

Owns: what is changed, and how two ways are timed beside each other.
May not know: kernels.
Read next: `compute/fusion.py`; `measure/ablation.py`, which does it for every choice.

Ways take turns, and the least time of each counts: a machine that slows down for a while slows all.
"""

from __future__ import annotations

import math
from collections.abc import Sequence

from firsthand.compute.fusion import RULES, fuse
from firsthand.compute.plan import Op, record
from firsthand.generation.llm import LLM
from firsthand.generation.load_options import LoadKeywords
from firsthand.labs.charts import Bars
from firsthand.labs.lab import Cell, Evidence, Lab
from firsthand.labs.passages import PROSE
from firsthand.labs.words import OURS, Words
from firsthand.labs.workbench import Workbench
from firsthand.models import families

TURNS = 6
ALL_RULES = tuple(rule.name for rule in RULES)


def in_turns(ways: Sequence[LLM], prompt: Sequence[int], num_tokens: int) -> list[float]:
    """The least ms of a token of each."""
    least = [math.inf] * len(ways)
    for _ in range(TURNS):
        for number, llm in enumerate(ways):
            answer = llm.generate(
                list(prompt), max_tokens=num_tokens, temperature=0, ignore_end=True
            )
            least[number] = min(least[number], *answer.report.token_ms)
    return least


# ---- fusion -------------------------------------------------------------------------------------


def written_kib(ops: Sequence[Op]) -> float:
    """What a row's operators write for one another, KiB."""
    return sum(4 * value.width for op in ops for value in op.outputs) / 1024


def fusion(bench: Workbench) -> Evidence:
    forward = bench.forward()
    plain = record(families.program(forward.spec).forward, forward.weights.shape)
    prompt = forward.tokenizer.encode(PROSE)[:32]
    rows: list[tuple[Cell, ...]] = []
    with (
        bench.engine(max_context=128, disabled_rules=ALL_RULES) as unfused,
        bench.engine(max_context=128) as fused,
    ):
        times = in_turns((unfused, fused), prompt, 12)
        same = _logprobs(unfused) == _logprobs(fused)
    rows.append((Words("nothing fused", "不融合"), len(plain), written_kib(plain), times[0], ""))
    for number, rule in enumerate(RULES):
        ops = fuse(plain, ALL_RULES[number + 1 :])
        rows.append((f"+ {rule.name}", len(ops), written_kib(ops), "", rule.saves))
    whole = fuse(plain)
    rows.append((OURS, len(whole), written_kib(whole), times[1], ""))
    return Evidence(
        measure=Words(
            "operators in a step, where equal bits come out either way"
            if same
            else "operators in a step; THE BITS DIFFER",
            "一步中的算子数（两种方式结果逐位相同）" if same else "一步中的算子数；结果比特不同",
        ),
        fault_shows=float(len(plain)),
        ours_does_not=float(len(whole) if same else len(plain)),
        limit=len(plain) * 0.8,
        headings=(
            Words("rules, one more each time", "规则，逐条加上"),
            Words("operators", "算子数"),
            Words("written for one another, KiB a row", "算子间写出（KiB/行）"),
            Words("ms a token", "每 token 毫秒"),
            Words("saves", "省去"),
        ),
        rows=tuple(rows),
        charts=(
            Bars(
                Words("Time of a token", "一个 token 的时间"),
                Words("ms", "毫秒"),
                ((Words("nothing fused", "不融合"), times[0]), (OURS, times[1])),
            ),
        ),
    )


def _logprobs(llm: LLM) -> list[float]:
    answer = llm.generate(PROSE, max_tokens=8, temperature=0, ignore_end=True, logprobs=0)
    return [one.logprob for one in answer.logprobs or ()]


# ---- one variable at a time ---------------------------------------------------------------------


def one_variable(bench: Workbench) -> Evidence:
    base: LoadKeywords = {"max_context": 128, "quantization": "int8", "threads": 2}
    better: LoadKeywords = {**base, "quantization": "auto"}
    worse: LoadKeywords = {**base, "threads": 1}
    both: LoadKeywords = {**better, "threads": 1}
    llms: list[LLM] = []
    try:
        llms.extend(bench.engine(**options) for options in (base, better, worse, both))
        prompt = llms[0].tokenize(PROSE)[:32]
        times = in_turns(llms, prompt, 8)
    finally:
        for llm in llms:
            llm.close()
    speeds = [times[0] / ms for ms in times]  # above 1: quicker than the base
    hidden = abs(math.log(speeds[1])) + abs(math.log(speeds[2])) - abs(math.log(speeds[3]))
    names = (
        Words("base: int8, two threads", "基准：int8，两个线程"),
        Words("4 bits", "4 位"),
        Words("one thread", "一个线程"),
        Words("both at once", "两者同时"),
    )
    return Evidence(
        measure=Words(
            "how much of what happened the measurement hides (logarithm of the speed)",
            "测量所掩盖的变化量（速度的对数）",
        ),
        fault_shows=hidden,
        ours_does_not=0.0,  # of one change all of the ratio is its own
        limit=0.1,
        headings=(
            Words("changed", "改动"),
            Words("ms a token", "每 token 毫秒"),
            Words("times as fast", "速度倍数"),
        ),
        rows=tuple(zip(names, times, speeds, strict=True)),
        charts=(
            Bars(
                Words("Speed, by that of the base", "速度（与基准之比）"),
                Words("×", "倍"),
                tuple(zip(names, speeds, strict=True)),
            ),
        ),
    )


LABS = (
    Lab(
        name="fusion",
        title=Words("Norm and linear fused, or not", "归一化与线性层融合与否"),
        question=Words(
            "Fusing operators changes no formula. What is saved, and is it the same to the last "
            "bit?",
            "融合算子不改变公式。省下的是什么？结果到最后一位都相同吗？",
        ),
        run=fusion,
        cause=Words(
            "Each operator on its own writes a result that the next one reads, and has a beginning "
            "and an end on every thread.",
            "每个单独的算子都要写出下一个要读的结果，并在每个线程上各有一次开始与结束。",
        ),
        cure=Words(
            "The model's text is recorded once and rewritten by a short list of rules, each of "
            "which can be left out to see what it brings. Every rule keeps the order of every sum, "
            "so the bits stay.",
            "模型代码只记录一次，再按一小组规则改写；每条规则都可单独去掉以衡量收益。"
            "每条规则都保持求和次序，因此比特不变。",
        ),
        places=(
            "firsthand.compute.fusion.norm_into_linear",
            "firsthand.compute.fusion.fuse",
            "firsthand.compute.plan.record",
        ),
        sources=("A §2.3", "A §5.2"),
        seconds=6,
        needs_model=True,
    ),
    Lab(
        name="one-variable",
        title=Words("Two things changed at once", "同时改两处"),
        question=Words(
            "Two changes, one measurement. Which of them helped?",
            "改了两处，只测一次。是哪一处起了作用？",
        ),
        run=one_variable,
        cause=Words(
            "A change that helps and one that harms cancel out in the sum: together they look like "
            "one small change.",
            "有益与有害的改动在总数里相互抵消：合起来像是一个小改动。",
        ),
        cure=Words(
            "One variable at a time, in alternating pairs with the base, and the base against "
            "itself to know the noise.",
            "一次只改一个变量，与基准交替成对测量，并让基准与自己比较以了解噪声。",
        ),
        places=(
            "firsthand.measure.ablation.ablate",
            "firsthand.measure.system_ablation.CHOICES",
        ),
        sources=("A §5.2",),
        seconds=12,
        needs_model=True,
    ),
)
