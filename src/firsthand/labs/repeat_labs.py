"""Labs of repetition: bits that depend on who else is there, and on how much padding there is.

Owns: these faults.
May not know: how the kernels keep the order of a sum.
Read next: `evaluate/sabotage.py`, the fault of the first; `evaluate/parity.py`, the proof that ours
has it not.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence

import numpy as np

from firsthand.evaluate.sabotage import split_by_batch
from firsthand.generation.completion import Completion
from firsthand.generation.llm import LLM
from firsthand.generation.load_options import LoadOptions
from firsthand.generation.loading import LoadedModel, load_model
from firsthand.labs.charts import Lines, Series
from firsthand.labs.forward import RIGHT, Bools, Forward, Ints, Parts, visible
from firsthand.labs.lab import Cell, Evidence, Lab, Passage
from firsthand.labs.passages import QUESTION
from firsthand.labs.words import OURS, Words
from firsthand.labs.workbench import Workbench
from firsthand.values import dataclass

# ---- who else is there --------------------------------------------------------------------------

PROMPTS = tuple(f"{name} walked into the room and said" for name in ("Ada", "Ben", "Cleo", "Dan"))
NUM_TOKENS = 48


@dataclass(frozen=True, slots=True)
class Compared:
    """Each prompt alone, and all together."""

    alone: tuple[Completion, ...]
    together: tuple[Completion, ...]

    @property
    def off(self) -> list[float]:
        """By token, the largest difference of a log-probability, while a text is the same."""
        found: list[float] = []
        for one, other in zip(self.alone, self.together, strict=True):
            for at, (a, b) in enumerate(zip(one.logprobs or (), other.logprobs or (), strict=True)):
                if one.token_ids[: at + 1] != other.token_ids[: at + 1]:
                    break
                found += [0.0] * (at == len(found))
                found[at] = max(found[at], abs(a.logprob - b.logprob))
        return found or [0.0]

    @property
    def num_other_texts(self) -> int:
        pairs = zip(self.alone, self.together, strict=True)
        return sum(one.token_ids != other.token_ids for one, other in pairs)


def compared(loaded: LoadedModel) -> Compared:
    with LLM(loaded) as llm:

        def ask(prompts: list[str]) -> list[Completion]:
            return llm.generate(
                prompts,
                max_tokens=NUM_TOKENS,
                temperature=1.5,
                seed=7,
                logprobs=0,
                ignore_end=True,
            )

        alone = tuple(ask([one])[0] for one in PROMPTS)
        return Compared(alone, tuple(ask(list(PROMPTS))))


def batch_bits(bench: Workbench) -> Evidence:
    options = LoadOptions(max_context=128, prefix_cache=False)
    ways = (
        (
            Words("a kernel that splits its sums by the batch", "按批拆分求和的内核"),
            compared(split_by_batch(load_model(bench.real_model(), options))),
        ),
        (OURS, compared(load_model(bench.real_model(), options))),
    )
    passages = []
    fault = ways[0][1]
    for one, other, prompt in zip(fault.alone, fault.together, PROMPTS, strict=True):
        if one.token_ids != other.token_ids:
            passages = [
                Passage(Words("kept answer", "缓存的回答"), prompt + one.text),
                Passage(Words("computed again, in a batch", "在批中重新计算"), prompt + other.text),
            ]
            break
    return Evidence(
        measure=Words(
            "largest difference of a log-probability, alone and in a batch",
            "单独运行与在批中运行之间，对数概率的最大差异",
        ),
        fault_shows=max(ways[0][1].off),
        ours_does_not=max(ways[1][1].off),
        limit=1e-9,
        headings=(
            Words("way", "做法"),
            Words("largest difference", "最大差异"),
            Words("answers that became others", "变成另一回答的数目"),
        ),
        rows=tuple(
            (what, max(found.off), f"{found.num_other_texts}/{len(PROMPTS)}")
            for what, found in ways
        ),
        charts=(
            Lines(
                Words(
                    "Alone against in a batch: difference by token, while the text is the same",
                    "单独与在批中：逐 token 差异，到文本不同为止",
                ),
                Words("token", "token"),
                Words("difference", "差异"),
                tuple(
                    Series(what, tuple(map(float, range(len(found.off)))), tuple(found.off))
                    for what, found in ways
                ),
            ),
        ),
        passages=tuple(passages),
    )


# ---- padding ------------------------------------------------------------------------------------

PADDINGS = (0, 5, 17, 40)


def padded(
    forward: Forward, num_pads: int, parts: Callable[[int], Parts]
) -> np.ndarray[tuple[int, ...], np.dtype[np.float64]]:
    """Log-probabilities after a prompt that stands behind so many tokens of padding."""
    ids = forward.tokenizer.encode(QUESTION)
    pad = min(forward.tokenizer.end_ids)
    logits = forward.start(parts(num_pads)).feed([pad] * num_pads + ids)[-1].astype(np.float64)
    return np.asarray(logits - logits.max() - np.log(np.exp(logits - logits.max()).sum()))


def seen(num_pads: int) -> Parts:
    """The mask knows nothing of padding."""
    return RIGHT


def hidden(num_pads: int) -> Parts:
    """Padding is masked, and the first word stands at position 0: as good as padding gets."""

    def mask(positions: Ints, num_keys: int) -> Bools:
        keys = np.arange(num_keys)[None]
        own = keys == positions[:, None]  # a row of padding sees itself, so that no row is empty
        return np.asarray((visible(positions, num_keys) & (keys >= num_pads)) | own)

    def turned_at(positions: Ints) -> Ints:
        return np.maximum(positions - num_pads, 0)

    return Parts(visible=mask, turned_at=turned_at)


def padding(bench: Workbench) -> Evidence:
    forward = bench.forward()
    ways = (
        (Words("padding is seen", "看得见填充"), _differences(forward, seen)),
        (Words("padding is masked", "填充已屏蔽"), _differences(forward, hidden)),
        (OURS, _by_engine(bench)),
    )
    rows: list[tuple[Cell, ...]] = [(what, *found) for what, found in ways]
    return Evidence(
        measure=Words(
            "largest difference of a log-probability that the company of a longer prompt makes",
            "与更长提示同批造成的对数概率最大差异",
        ),
        fault_shows=min(max(found) for _, found in ways[:-1]),
        ours_does_not=max(ways[-1][1]),
        limit=1e-9,
        headings=(
            Words("way", "做法"),
            *(Words(f"{number} tokens longer", f"长 {number} 个 token") for number in PADDINGS[1:]),
        ),
        rows=tuple(rows),
        charts=(
            Lines(
                Words("How far the first token's scores move", "首 token 分数的移动"),
                Words("tokens that the other prompt is longer", "另一提示多出的 token 数"),
                Words("nats", "奈特"),
                tuple(
                    Series(what, tuple(map(float, PADDINGS[1:])), tuple(found))
                    for what, found in ways
                ),
                log=True,
            ),
        ),
    )


def _differences(forward: Forward, parts: Callable[[int], Parts]) -> list[float]:
    bare = padded(forward, 0, parts)
    return [float(np.abs(padded(forward, one, parts) - bare).max()) for one in PADDINGS[1:]]


def _by_engine(bench: Workbench) -> list[float]:
    """The prompt alone, and beside one that is longer: scores of its first token."""
    with bench.engine(max_context=256, prefix_cache=False) as llm:
        ids = llm.tokenize(QUESTION)
        other = llm.tokenize("It was a cold morning, and nobody was on the road. ") * 4

        def ask(prompts: list[list[int]]) -> Sequence[float]:
            first = llm.generate(prompts, max_tokens=1, temperature=0, logprobs=20)[0]
            return [logprob for one in first.logprobs or () for _, _, logprob in one.top]

        bare = ask([ids])
        found = []
        for more in PADDINGS[1:]:
            beside = ask([ids, other[: len(ids) + more]])
            found.append(max(abs(a - b) for a, b in zip(bare, beside, strict=True)))
    return found


LABS = (
    Lab(
        name="batch-bits",
        title=Words("Bits that depend on who else is in the batch", "随同批请求而变的比特"),
        question=Words(
            "One request, one seed, once alone and once among others. Is it the same answer?",
            "同一请求、同一种子，一次单独、一次与别人同批。回答相同吗？",
        ),
        run=batch_bits,
        cause=Words(
            "Float sums depend on their order. A kernel that splits a sum when there is more to do "
            "gives other last bits; a draw that was near a border falls on the other side, and "
            "from "
            "there on it is another text. An answer that was kept is then not what the same "
            "request "
            "gives again.",
            "浮点求和取决于次序。工作多时就拆分求和的内核，最后几位会不同；"
            "接近边界的一次采样落到另一边，"
            "此后就是另一段文本。于是缓存的回答与同一请求重算的结果不一样。",
        ),
        cure=Words(
            "The order of every sum depends on nothing but its length and the weight's format, and "
            "the random number on seed and position alone; so tests compare bits with ==.",
            "每个求和的次序只取决于长度与权重格式，随机数只取决于种子与位置；因此测试可以用 == "
            "比较比特。",
        ),
        places=(
            "firsthand.evaluate.parity",
            "firsthand.evaluate.sabotage.split_by_batch",
            "firsthand.engine.sampler_reference",
        ),
        sources=("B §6.2",),
        seconds=6,
        needs_model=True,
    ),
    Lab(
        name="padding",
        title=Words("An answer that depends on the padding", "随填充而变的回答"),
        question=Words(
            "Prompts in a batch are padded to the longest. Does that change an answer?",
            "同批的提示被填充到最长。这会改变回答吗？",
        ),
        run=padding,
        cause=Words(
            "Padding that is seen changes the text. Padding that is masked with care still changes "
            "the last bits: sums are longer, and are taken in another order.",
            "看得见的填充会改变文本。仔细屏蔽了的填充仍会改变最后几位：求和更长，次序也不同。",
        ),
        cure=Words(
            "No padding: the tokens of all sequences stand one after another, each with its "
            "position "
            "and its own blocks.",
            "不做填充：所有序列的 token 首尾相接，各自带着位置与自己的缓存块。",
        ),
        places=(
            "firsthand.compute.batch.FlatBatch",
            "firsthand.engine.batching.flat_batch",
        ),
        sources=("B §6.2", "A §3.3"),
        seconds=4,
        needs_model=True,
    ),
)
