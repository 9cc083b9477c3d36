"""Labs of work: a context read again for each token, and a batch that grows.

Owns: the naive loop, and what it costs beside a cache.
May not know: kernels.
Read next: `forward.py`; `kvcache/paged.py`; `measure/throughput.py`.
"""

from __future__ import annotations

import statistics
import time
from collections.abc import Sequence
from itertools import pairwise

from firsthand.generation.llm import LLM
from firsthand.labs.charts import Lines, Series
from firsthand.labs.forward import Floats, Forward, Parts
from firsthand.labs.lab import Cell, Evidence, Lab
from firsthand.labs.passages import PROSE
from firsthand.labs.words import OURS, Words
from firsthand.labs.workbench import Workbench
from firsthand.values import dataclass

CONTEXTS = (16, 64, 192)
NAIVE = Words("naive: all read again", "朴素：每次全部重读")
CACHED = Words("cached, in numpy", "有缓存（numpy）")


@dataclass(frozen=True, slots=True)
class Token:
    """One more token after a context: how many were computed for it, and the time."""

    num_computed: int
    ms: float


def by_forward(forward: Forward, ids: Sequence[int], *, cached: bool) -> Token:
    computed: list[int] = []

    def counted(x: Floats, weight: str) -> Floats:
        computed.append(len(x))
        return x

    session = forward.start(Parts(inputs=counted))
    if cached:
        session.feed(ids[:-1])
        computed.clear()
    began_s = time.perf_counter()
    session.feed(ids[-1:] if cached else ids)
    return Token(max(computed), (time.perf_counter() - began_s) * 1e3)


def by_engine(llm: LLM, ids: Sequence[int]) -> Token:
    """The median of some tokens after the first."""
    steps: list[int] = []
    with llm.listening(lambda facts: steps.append(facts.num_tokens)):
        answer = llm.generate(list(ids), max_tokens=9, temperature=0, ignore_end=True)
    return Token(min(steps), statistics.median(answer.report.token_ms))


def attention_growth(bench: Workbench) -> Evidence:
    forward = bench.forward()
    ids = forward.tokenizer.encode(" ".join([PROSE] * 3))
    with bench.engine(max_context=512, prefix_cache=False) as llm:
        found = {
            n: (
                by_forward(forward, ids[:n], cached=False),
                by_forward(forward, ids[:n], cached=True),
                by_engine(llm, ids[:n]),
            )
            for n in CONTEXTS
        }
        store = llm.loaded.store
        block = store.block_size
        rows: list[tuple[Cell, ...]] = []
        for n, tokens in found.items():
            in_blocks = store.resident_bytes(-(-n // block) * block) / 1024
            whole = store.resident_bytes(llm.loaded.limits.context_length) / 1024
            rows.append((n, *(one.ms for one in tokens), tokens[0].num_computed, in_blocks, whole))
    ways = (NAIVE, CACHED, Words("ours, paged", "本系统，分页"))
    last = found[CONTEXTS[-1]]
    return Evidence(
        measure=Words(
            f"tokens computed for one more, after {CONTEXTS[-1]}",
            f"在 {CONTEXTS[-1]} 个 token 之后，为多生成一个所计算的 token 数",
        ),
        fault_shows=float(last[0].num_computed),
        ours_does_not=float(last[2].num_computed),
        limit=2.0,
        headings=(
            Words("context", "上下文"),
            Words("naive, ms", "朴素（毫秒）"),
            Words("cached, ms", "有缓存（毫秒）"),
            Words("ours, ms", "本系统（毫秒）"),
            Words("naive computes", "朴素所算 token"),
            Words("paged holds, KiB", "分页占用（KiB）"),
            Words("whole length reserves, KiB", "按全长预留（KiB）"),
        ),
        rows=tuple(rows),
        charts=(
            Lines(
                Words("Time of one more token", "多生成一个 token 的时间"),
                Words("tokens of context", "上下文 token 数"),
                Words("ms", "毫秒"),
                tuple(
                    Series(
                        what,
                        tuple(map(float, CONTEXTS)),
                        tuple(found[n][number].ms for n in CONTEXTS),
                    )
                    for number, what in enumerate(ways)
                ),
                log=True,
            ),
        ),
    )


# ---- the batch grows ----------------------------------------------------------------------------

BATCHES = (1, 2, 4, 8, 16, 32)
NUM_TOKENS = 24
NEARLY = 0.8  # of the most: the smallest such batch is the knee


def batch_knee(bench: Workbench) -> Evidence:
    rates: list[float] = []
    step_ms: list[float] = []
    with bench.engine(max_context=128, max_sequences=BATCHES[-1], prefix_cache=False) as llm:
        prompts = [
            llm.tokenize(f"Story {number}: once upon a time") for number in range(BATCHES[-1])
        ]
        for size in BATCHES:
            rate, ms = _batch(llm, prompts[:size])
            rates.append(rate)
            step_ms.append(ms)
    knee = next(at for at, rate in enumerate(rates) if rate >= NEARLY * max(rates))
    return Evidence(
        measure=Words(
            "share of the possible throughput that is not reached",
            "未达到的吞吐份额",
        ),
        fault_shows=1 - rates[0] / max(rates),
        ours_does_not=1 - rates[knee] / max(rates),
        limit=1 - NEARLY + 0.05,
        headings=(
            Words("batch", "批大小"),
            Words("tokens a second", "每秒 token"),
            Words("ms a token of one answer", "单个回答每 token 毫秒"),
            Words("", ""),
        ),
        rows=tuple(
            (size, rate, ms, Words("the knee", "拐点") if at == knee else "")
            for at, (size, rate, ms) in enumerate(zip(BATCHES, rates, step_ms, strict=True))
        ),
        charts=(
            Lines(
                Words("Throughput", "吞吐"),
                Words("sequences at once", "同时的序列数"),
                Words("tokens a second", "每秒 token"),
                (Series(OURS, tuple(map(float, BATCHES)), tuple(rates)),),
            ),
            Lines(
                Words("Time of a token", "单个 token 的时间"),
                Words("sequences at once", "同时的序列数"),
                Words("ms", "毫秒"),
                (Series(OURS, tuple(map(float, BATCHES)), tuple(step_ms)),),
            ),
        ),
    )


def _batch(llm: LLM, prompts: list[list[int]]) -> tuple[float, float]:
    """Tokens a second of all together, and ms between two tokens of one; the better of two runs."""
    steps: list[tuple[int, float]] = []
    for _ in range(2):
        with llm.listening(lambda facts: steps.append((facts.num_drawn, facts.started_s))):
            llm.generate(prompts, max_tokens=NUM_TOKENS, temperature=0, ignore_end=True)
    pairs = pairwise(steps)
    full = [
        next_s - began_s
        for (drawn, began_s), (_, next_s) in pairs
        if drawn == len(prompts) and next_s - began_s < 1
    ]
    step_s = statistics.median(full)
    return len(prompts) / step_s, step_s * 1e3


LABS = (
    Lab(
        name="attention-growth",
        title=Words("A context that is read again for each token", "每个 token 都把上下文重读一遍"),
        question=Words(
            "What does one more token cost after 16, 64, 192 tokens: without a cache, with one, "
            "with a paged one?",
            "在 16、64、192 个 token 之后，再生成一个要花多少：没有缓存、有缓存、分页缓存？",
        ),
        run=attention_growth,
        cause=Words(
            "Without a cache every token before is computed again, and the whole answer costs the "
            "square of its length. A cache of the longest possible length reserves memory for "
            "tokens that mostly never come.",
            "没有缓存，之前的每个 token 都要重算，整个回答的代价是长度的平方。"
            "按最大长度预留的缓存，为多半不会出现的 token 占着内存。",
        ),
        cure=Words(
            "Keys and values are kept, in blocks that are given out one at a time.",
            "保留键与值，放在按需一块块分配的缓存块里。",
        ),
        places=(
            "firsthand.kvcache.paged.PagedStore",
            "firsthand.kvcache.contiguous.ContiguousStore",
            "firsthand.kvcache.blocks.BlockPool",
        ),
        sources=("A §3.2",),
        seconds=6,
        needs_model=True,
    ),
    Lab(
        name="batch-knee",
        title=Words("Throughput against latency as the batch grows", "批变大时的吞吐与延迟"),
        question=Words(
            "More sequences at once give more tokens a second, and each waits longer. Where does "
            "it "
            "stop paying?",
            "同时的序列越多，每秒 token 越多，而每个都等得更久。到哪里就不划算了？",
        ),
        run=batch_knee,
        cause=Words(
            "A step for one sequence reads all weights for one row: memory is the limit, and more "
            "rows are nearly free. Once arithmetic is the limit, a step takes longer with each "
            "row, "
            "and throughput stays.",
            "只有一个序列时，一步要为一行读遍所有权重：瓶颈是内存，多几行几乎免费。"
            "当瓶颈变成算力，每多一行一步就更久，吞吐不再增加。",
        ),
        cure=Words(
            "Measure the knee on the machine, serve near it where answers are waited for, beyond "
            "it where they are not: the profiles latency, balanced and throughput.",
            "在本机测出拐点；有人等回答时在拐点附近运行，没人等时可以超过它：latency、balanced、"
            "throughput 三个档位。",
        ),
        places=(
            "firsthand.measure.throughput",
            "firsthand.loadtest.fit",
            "firsthand.server.profiles.PROFILES",
        ),
        sources=("A §5.4", "A §6.4"),
        seconds=15,
        needs_model=True,
    ),
)
