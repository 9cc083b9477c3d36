"""Labs of rounding: outliers, scales that are computed in the step.

Owns: these faults.
May not know: kernels.
Read next: `quant/round.py`; `calibration_labs.py`.
"""

from __future__ import annotations

import time
from collections.abc import Callable
from dataclasses import replace
from typing import Any
from unittest import mock

import numpy as np

from firsthand.compute.batch import FlatBatch
from firsthand.compute.executor import Executor
from firsthand.generation.llm import LLM
from firsthand.generation.load_options import LoadOptions
from firsthand.generation.loading import load_model
from firsthand.kvcache.store import KVStore
from firsthand.labs.attention_labs import RIGHT_FORMULA, read_by, read_by_engine
from firsthand.labs.charts import Bars, Lines, Series
from firsthand.labs.forward import Floats, Forward, Parts
from firsthand.labs.lab import Evidence, Lab, Passage
from firsthand.labs.words import FAULTY, OURS, Words
from firsthand.labs.workbench import Workbench
from firsthand.quant import round as rounding

# ---- outliers -----------------------------------------------------------------------------------


def rounded(bits: int, block: int | None = None) -> Callable[[Floats, str], Floats]:
    """Each row, or each block of a row, to so many bits of its own largest magnitude."""
    most = np.float32(2 ** (bits - 1) - 1)

    def inputs(x: Floats, weight: str) -> Floats:
        parts = x.reshape(-1, block) if block else x
        largest = np.abs(parts).max(axis=1, keepdims=True)
        step = np.where(largest > 0, largest / most, np.float32(1))
        return np.asarray((np.rint(parts / step) * step).reshape(x.shape), np.float32)

    return inputs


WAYS = (
    (Words("8 bits a row", "每行 8 位"), rounded(8)),
    (Words("8 bits a block of 32", "每 32 个一块 8 位"), rounded(8, 32)),
    (Words("13 bits a row", "每行 13 位"), rounded(13)),
)


def outliers(bench: Workbench) -> Evidence:
    forward = bench.forward()
    seen: dict[str, Floats] = {}

    def watched(x: Floats, weight: str) -> Floats:
        seen[weight] = x
        return x

    right = read_by(forward, RIGHT_FORMULA, Parts(inputs=watched))
    errors = [_output_error(forward, seen, inputs) for _, inputs in WAYS]
    readings = [read_by(forward, what, Parts(inputs=inputs)) for what, inputs in WAYS]
    with bench.engine() as llm:
        ours = read_by_engine(llm)
    name, x = max(seen.items(), key=lambda item: _outlier(item[1]))
    row = np.abs(x[np.abs(x).max(axis=1).argmax()])
    places = np.sort(row)[::-1][:64]
    return Evidence(
        measure=Words(
            "largest share of a layer's output that rounding its inputs takes away, by energy",
            "对输入舍入使某层输出损失的最大能量份额",
        ),
        fault_shows=errors[0],
        ours_does_not=abs(ours.nll - right.nll) / right.nll,
        limit=0.01,
        headings=(
            Words("inputs of linear layers", "线性层的输入"),
            Words("worst layer loses", "最差一层的损失"),
            Words("surprise, nats a token", "意外程度（奈特/token）"),
            Words("more than exact", "比精确值多"),
        ),
        rows=(
            *(
                (one.what, error, one.nll, one.nll - right.nll)
                for one, error in zip(readings, errors, strict=True)
            ),
            (Words("exact", "精确"), 0.0, right.nll, 0.0),
            (
                Words("ours, 15 bits a row, in the engine", "本系统：引擎内每行 15 位"),
                "",
                ours.nll,
                ours.nll - right.nll,
            ),
        ),
        charts=(
            Lines(
                Words(
                    f"The 64 largest magnitudes of one row that enters {name}",
                    f"进入 {name} 的某一行中最大的 64 个绝对值",
                ),
                Words("rank", "名次"),
                Words("magnitude", "绝对值"),
                (
                    Series(
                        Words("the row", "该行"),
                        tuple(float(rank) for rank in range(1, len(places) + 1)),
                        tuple(float(value) for value in places),
                    ),
                    Series(
                        Words("one step of 8 bits over the row", "整行 8 位的一个步长"),
                        (1.0, float(len(places))),
                        (float(places[0] / 127),) * 2,
                    ),
                ),
                log=True,
            ),
        ),
        passages=tuple(Passage(one.what, one.text) for one in (*readings, ours)),
    )


def _outlier(x: Floats) -> float:
    """How many times the mean magnitude the largest of a row is, at most."""
    sizes = np.abs(x)
    return float((sizes.max(axis=1) / (sizes.mean(axis=1) + 1e-12)).max())


def _output_error(
    forward: Forward, seen: dict[str, Floats], inputs: Callable[[Floats, str], Floats]
) -> float:
    worst = 0.0
    for name, x in seen.items():
        matrix = forward.matrix(name).T
        exact = x @ matrix
        lost = (inputs(x, name) - x) @ matrix
        worst = max(worst, float((lost * lost).sum() / (exact * exact).sum()))
    return worst


# ---- scales in the step -------------------------------------------------------------------------

NUM_TOKENS = 12


class RoundsInEachStep:
    """An executor that rounds its weights once more in every step, as if scales were not kept."""

    def __init__(self, executor: Executor, matrices: list[Floats]) -> None:
        self._executor = executor
        self._matrices = matrices

    def __getattr__(self, name: str) -> Any:
        return getattr(self._executor, name)

    def run(self, batch: FlatBatch, store: KVStore) -> Floats:
        for matrix in self._matrices:
            rounding.to_channel_int8(matrix)
        return self._executor.run(batch, store)


def scales_in_the_step(bench: Workbench) -> Evidence:
    options = LoadOptions(quantization="int8", max_context=64)
    forward = bench.forward()
    matrices = [forward.matrix(name) for name in forward.weights.sources if "layers" in name]
    faulty = load_model(bench.real_model(), options)
    faulty = replace(faulty, executor=RoundsInEachStep(faulty.executor, matrices))
    ways = (
        (FAULTY, _counted(faulty)),
        (OURS, _counted(load_model(bench.real_model(), options))),
    )
    return Evidence(
        measure=Words("computations of scales for each token", "每个 token 计算缩放因子的次数"),
        fault_shows=ways[0][1][0] / NUM_TOKENS,
        ours_does_not=ways[1][1][0] / NUM_TOKENS,
        limit=1.0,
        headings=(
            Words("way", "做法"),
            Words("computations of scales", "计算缩放因子的次数"),
            Words("ms a token", "每 token 毫秒"),
            Words("text", "文本"),
        ),
        rows=tuple((what, count, ms, text) for what, (count, ms, text) in ways),
        charts=(
            Bars(
                Words("Time of a token", "一个 token 的时间"),
                Words("ms", "毫秒"),
                tuple((what, ms) for what, (_, ms, _) in ways),
            ),
        ),
    )


def _counted(loaded: Any) -> tuple[int, float, str]:
    """Computations of scales while tokens are generated, ms for each, and the text."""
    names = ("channel_scales", "group_scales")
    watched = [mock.patch.object(rounding, one, wraps=getattr(rounding, one)) for one in names]
    with LLM(loaded) as llm:
        counters = [one.start() for one in watched]
        try:
            began_s = time.perf_counter()
            answer = llm.generate(
                "One, two,", max_tokens=NUM_TOKENS, temperature=0, ignore_end=True
            )
            ms = (time.perf_counter() - began_s) * 1e3 / NUM_TOKENS
        finally:
            for one in watched:
                one.stop()
    return sum(one.call_count for one in counters), ms, answer.text.strip()


LABS = (
    Lab(
        name="outliers",
        title=Words(
            "A few large activations, and 8 bits for a row", "少数很大的激活值，与每行 8 位"
        ),
        question=Words(
            "Weights in 8 bits cost next to nothing. Why do activations in 8 bits?",
            "权重用 8 位几乎没有代价。激活值用 8 位为什么就不行？",
        ),
        run=outliers,
        cause=Words(
            "A row has a few columns that are hundreds of times larger than the rest. One step for "
            "the whole row is made for them, and most of the others become 0.",
            "一行里有少数几列比其余大上百倍。整行共用的步长由它们决定，其余大多变成 0。",
        ),
        cure=Words(
            "A step for each small block, or more bits for the row. Ours: 15 bits a row with "
            "groups "
            "of 4 or 8 bits; with int8 weights 8 bits, and a second digit for the columns that "
            "need it.",
            "每个小块一个步长，或者给整行更多位。本系统：分组的 4 或 8 位权重配每行 15 位激活；"
            "int8 权重配 8 位激活，并给需要的列加第二个数位。",
        ),
        places=(
            "firsthand.quant.formats.GroupedFormat",
            "firsthand.quantize.rounding.as_int8",
            "firsthand.compute.native.executor.NativeExecutor",
        ),
        sources=("A §5.3",),
        seconds=8,
        needs_model=True,
    ),
    Lab(
        name="scales-in-the-step",
        title=Words("Scales that are computed in every step", "每一步都重算缩放因子"),
        question=Words(
            "Rounded weights need their scales. What if they are computed when they are needed?",
            "量化后的权重需要缩放因子。若用到时才计算，会怎样？",
        ),
        run=scales_in_the_step,
        cause=Words(
            "The largest magnitude of every row of every matrix is looked for again for each "
            "token. "
            "The text is the same, so nobody sees it but the clock.",
            "每生成一个 token，都要重新找每个矩阵每一行的最大绝对值。文本不变，只有时钟看得见。",
        ),
        cure=Words(
            "Rounding happens at load, and scales are stored beside the codes. All scales come "
            "from "
            "two functions, so a test can count their calls in a step: none.",
            "舍入在加载时完成，缩放因子与编码一起存放。所有缩放因子都出自两个函数，"
            "测试可以数一步内的调用次数：零。",
        ),
        places=(
            "firsthand.quant.round.channel_scales",
            "firsthand.quant.round.to_channel_int8",
            "firsthand.quant.formats.ChannelWeight",
        ),
        sources=("A §2.2",),
        seconds=20,
        needs_model=True,
    ),
)
