"""Labs of attention: where the scale stands, what a mask lets through, its shape beside a cache.

Owns: these faults, each one exchanged part of the small forward pass.
May not know: how the engine attends; it is asked as any user asks it.
Read next: `forward.py`; `compute/torch/attention.py`, the formula as the product has it.

Each lab reads one passage and goes on with one sentence, in the faulty way, by the right formula
and with the engine. The right formula is there to show that nothing but the fault differs.
"""

from __future__ import annotations

import math
from collections.abc import Callable, Sequence
from dataclasses import replace

import numpy as np

from firsthand.generation.llm import LLM
from firsthand.labs.charts import Cells, Lines, Series
from firsthand.labs.forward import (
    RIGHT,
    Bools,
    Floats,
    Forward,
    Ints,
    Parts,
    mix,
    scaled,
    softmax,
    visible,
)
from firsthand.labs.lab import Cell, Evidence, Lab, Passage
from firsthand.labs.passages import PROSE, QUESTION
from firsthand.labs.words import OURS, Words
from firsthand.labs.workbench import Workbench
from firsthand.values import dataclass

Visible = Callable[[Ints, int], Bools]

NUM_TOKENS = 12
PIECE = 16
MAX_NLL = 700.0  # e to it is still a number
TOP = 16
SHOWN = 12  # positions of a mask that is drawn

MEASURE = Words(
    "how much more surprised than by the right formula, nats a token",
    "比正确公式多出的意外程度（每个 token 的奈特数）",
)
RIGHT_FORMULA = Words("the right formula, in numpy", "正确公式（numpy）")
HEADINGS = (
    Words("way", "做法"),
    Words("surprise, nats a token", "意外程度（奈特/token）"),
    Words("perplexity", "困惑度"),
)


@dataclass(frozen=True, slots=True)
class Reading:
    """How one way reads the passage, and goes on with the question."""

    what: Words
    nll: float
    text: str

    @property
    def row(self) -> tuple[Cell, ...]:
        return self.what, self.nll, perplexity(self.nll)


def perplexity(nll: float) -> float:
    return math.exp(nll) if nll < MAX_NLL else math.inf


def read_by(forward: Forward, what: Words, parts: Parts, piece: int = 0) -> Reading:
    """In the small forward pass, `parts` exchanged."""
    encode = forward.tokenizer.encode
    with np.errstate(invalid="ignore"):
        nll = forward.nll(encode(PROSE), parts, piece)
        ids = forward.start(parts).generate(encode(QUESTION), NUM_TOKENS)
    return Reading(what, nll, QUESTION + forward.tokenizer.decode(ids))


def read_by_engine(llm: LLM) -> Reading:
    ids = llm.tokenize(PROSE)
    read = llm.generate(ids, max_tokens=0, prompt_logprobs=0).prompt_logprobs or ()
    scores = [one.logprob for one in read if one is not None]
    answer = llm.generate(QUESTION, max_tokens=NUM_TOKENS, temperature=0, ignore_end=True)
    return Reading(OURS, -math.fsum(scores) / len(scores), QUESTION + answer.text)


def evidence_of(
    bench: Workbench,
    faults: Sequence[tuple[Words, Parts]],
    charts: Sequence[Lines | Cells],
    piece: int = 0,
    others: Sequence[tuple[Words, Parts]] = (),
) -> Evidence:
    """The least of what the faults cost, and what the engine's own rounding does. What `others`
    cost is shown, and decides nothing."""
    forward = bench.forward()
    right = read_by(forward, RIGHT_FORMULA, RIGHT, piece)
    faulty = [read_by(forward, what, parts, piece) for what, parts in faults]
    shown = [read_by(forward, what, parts, piece) for what, parts in others]
    with bench.engine() as llm:
        ours = read_by_engine(llm)
    return Evidence(
        measure=MEASURE,
        fault_shows=min(min(one.nll, 1e3) for one in faulty) - right.nll,
        ours_does_not=abs(ours.nll - right.nll),
        limit=0.2,
        headings=HEADINGS,
        rows=tuple(one.row for one in (*faulty, *shown, right, ours)),
        charts=tuple(charts),
        passages=tuple(Passage(one.what, one.text) for one in (*faulty, *shown, right, ours)),
    )


# ---- the scale ----------------------------------------------------------------------------------


def unscaled(scores: Floats, head_size: int) -> Floats:
    return scores


def scale_afterwards(bench: Workbench) -> Evidence:
    head_size = bench.forward().spec.head_size
    size = np.float32(head_size**-0.5)
    after = Parts(scaled=unscaled, mix=lambda scores, values: mix(scores, values) * size)
    forgotten = Parts(scaled=unscaled)
    return evidence_of(
        bench,
        (
            (Words("softmax(q · kᵀ) / sqrt(D) · v", "softmax(q · kᵀ) / sqrt(D) · v"), after),
            (Words("no scale at all", "完全不缩放"), forgotten),
        ),
        [_concentration(bench.forward())],
    )


def _concentration(forward: Forward) -> Lines:
    ids = forward.tokenizer.encode(PROSE)
    curves = []
    for label, scale in (
        (Words("scaled first", "先缩放"), scaled),
        (Words("not scaled first", "未先缩放"), unscaled),
    ):
        seen: list[Floats] = []

        def watched(scores: Floats, values: Floats, seen: list[Floats] = seen) -> Floats:
            weights = np.sort(softmax(scores[:, -1]), axis=-1)[:, ::-1]
            seen.append(weights[:, :TOP].mean(axis=0))
            return mix(scores, values)

        forward.start(Parts(scaled=scale, mix=watched)).feed(ids)
        shares = np.cumsum(np.mean(seen, axis=0))
        xs = tuple(float(number) for number in range(1, len(shares) + 1))
        curves.append(Series(label, xs, tuple(float(share) for share in shares)))
    return Lines(
        Words(
            "What part of all weight the heaviest positions get (last token, all heads)",
            "权重最大的若干位置所占的份额（最后一个 token，所有头的平均）",
        ),
        Words("so many heaviest positions", "权重最大的位置数"),
        Words("share of the weight", "权重份额"),
        tuple(curves),
    )


# ---- the mask -----------------------------------------------------------------------------------


def inverted(positions: Ints, num_keys: int) -> Bools:
    return np.asarray(~visible(positions, num_keys))


def inverted_but_for_itself(positions: Ints, num_keys: int) -> Bools:
    """The quiet form: no row is empty, so no NaN gives it away."""
    return np.asarray(inverted(positions, num_keys) | (np.arange(num_keys) == positions[:, None]))


def everything(positions: Ints, num_keys: int) -> Bools:
    return np.ones((len(positions), num_keys), np.bool_)


def added_ones(scores: Floats, values: Floats) -> Floats:
    """1 for visible and 0 for hidden, added where 0 and −∞ were meant."""
    t, n = scores.shape[-2:]
    return mix(scores + np.tri(t, n, n - t, dtype=np.float32), values)


def mask_inverted(bench: Workbench) -> Evidence:
    return evidence_of(
        bench,
        (
            (Words("inverted", "取反"), Parts(visible=inverted)),
            (
                Words("inverted, but for the token itself", "取反，但看得见自己"),
                Parts(visible=inverted_but_for_itself),
            ),
        ),
        [
            _mask(Words("right: who sees whom", "正确：谁看得见谁"), visible),
            _mask(Words("inverted", "取反"), inverted),
        ],
        others=[
            (
                Words("1 and 0 added, 0 and −∞ were meant", "本应加 0 与 −∞，却加了 1 与 0"),
                Parts(visible=everything, mix=added_ones),
            ),
        ],
    )


def _mask(title: Words, rule: Visible) -> Cells:
    seen = rule(np.arange(SHOWN), SHOWN)
    return Cells(title, tuple(tuple(float(one) for one in row) for row in seen))


def counted_from_zero(positions: Ints, num_keys: int) -> Bools:
    """(t, n) as it must be, as if the first query stood at position 0."""
    return np.tri(len(positions), num_keys, dtype=np.bool_)


def of_the_queries(positions: Ints, num_keys: int) -> Bools:
    """(t, t), as in training, where keys and queries are the same tokens."""
    return np.tri(len(positions), len(positions), dtype=np.bool_)


def mask_shape(bench: Workbench) -> Evidence:
    evidence = evidence_of(
        bench,
        [
            (
                Words("(t, n), counted from position 0", "(t, n)，但从位置 0 数起"),
                Parts(visible=counted_from_zero),
            )
        ],
        [
            _piece_mask(Words("right", "正确"), visible),
            _piece_mask(Words("counted from position 0", "从位置 0 数起"), counted_from_zero),
        ],
        PIECE,
    )
    whole = bench.forward().nll(
        bench.forward().tokenizer.encode(PROSE), Parts(visible=counted_from_zero)
    )
    rows = (
        *evidence.rows,
        (
            Words("the same fault, passage read whole", "同一错误，但整段一次读入"),
            whole,
            perplexity(whole),
        ),
        (
            Words("(t, t) beside a cache", "(t, t)，与缓存并用"),
            _refusal(bench.forward()),
            "",
        ),
    )
    return replace(evidence, rows=rows)


def _refusal(forward: Forward) -> str:
    """What numpy says to a mask of the wrong shape."""
    try:
        forward.nll(forward.tokenizer.encode(PROSE), Parts(visible=of_the_queries), PIECE)
    except ValueError as error:
        return str(error)
    raise AssertionError("a mask of the wrong shape was taken")


def _piece_mask(title: Words, rule: object) -> Cells:
    """That of the second piece: four queries beside eight keys of the cache."""
    assert callable(rule)
    seen = rule(np.arange(8, SHOWN), SHOWN)
    return Cells(title, tuple(tuple(float(one) for one in row) for row in seen))


LABS = (
    Lab(
        name="softmax-scale",
        title=Words(
            "The scale after the softmax instead of before it",
            "缩放放在 softmax 之后，而不是之前",
        ),
        question=Words(
            "Both have the factor 1 / sqrt(D). What becomes of an answer if it comes one line "
            "late?",
            "两种写法都有因子 1 / sqrt(D)。晚一行才乘，回答会变成什么样？",
        ),
        run=scale_afterwards,
        cause=Words(
            "Products of D numbers grow with sqrt(D). Without the scale the softmax is all but a "
            "choice of one position; what is scaled afterwards is the output, now sqrt(D) times "
            "too "
            "small. Nothing overflows and nothing is NaN, since the largest score is taken off "
            "first: the text is simply wrong.",
            "D 个数的点积随 sqrt(D) 增大。不先缩放，softmax 几乎只选一个位置；"
            "之后再缩放的是输出，它又小了 "
            "sqrt(D) 倍。因为先减去了最大值，既不溢出也没有 NaN：只是文本错了。",
        ),
        cure=Words(
            "The scale belongs to the query, before the product; one function computes scores.",
            "在点积之前就把缩放乘到查询上；只有一个函数计算分数。",
        ),
        places=(
            "firsthand.compute.torch.attention.formula",
            "firsthand.compute.ops.AttentionRule.scale_of",
        ),
        sources=("A §3.1",),
        seconds=6,
        needs_model=True,
    ),
    Lab(
        name="mask-inverted",
        title=Words("A mask that means the opposite", "含义相反的掩码"),
        question=Words(
            "True for visible, or for hidden? 0 and −∞, or 1 and 0? What if two places disagree?",
            "True 表示可见还是屏蔽？用 0 与 −∞，还是 1 与 0？两处约定不一致会怎样？",
        ),
        run=mask_inverted,
        cause=Words(
            "Inverted, a token sees only what comes after it. The last row is then empty, and a "
            "softmax of nothing is NaN: loud. If each token still sees itself, nothing is NaN, and "
            "the text is plausible nonsense: quiet. Ones and zeros that are added hide nothing: "
            "reading a whole passage, the model looks at its answer.",
            "取反后，一个 token 只看得见后面的内容。最后一行为空，对空集做 softmax 得 NaN："
            "错误很响。"
            "若每个 token 仍看得见自己，就没有 NaN，文本像样却无意义：错误很安静。"
            "加上 1 与 0 等于什么也没屏蔽：整段读入时，模型偷看了答案。",
        ),
        cure=Words(
            "One function makes every mask, from positions alone; True is what may be seen.",
            "所有掩码都由一个函数仅根据位置生成；True 表示可见。",
        ),
        places=("firsthand.compute.torch.attention.causal_mask",),
        sources=("A §3.3",),
        seconds=6,
        needs_model=True,
    ),
    Lab(
        name="mask-shape",
        title=Words("A mask of the wrong shape beside a cache", "与缓存并用时形状错误的掩码"),
        question=Words(
            "With a cache there are few queries and many keys. What does a mask do that forgot it?",
            "有了缓存，查询少而键多。忘了这一点的掩码会怎样？",
        ),
        run=mask_shape,
        cause=Words(
            "(t, t) does not fit t queries beside n keys: refused, unless t is 1, where it is "
            "stretched to fit and hides nothing, which is right by accident. (t, n) counted from "
            "position 0 fits, and lets the first query of each piece see one key only. A passage "
            "that is read whole hides the fault: there t = n.",
            "(t, t) 与 t 个查询、n 个键对不上：会被拒绝；只有 t = 1 时被广播，什么也不屏蔽，"
            "碰巧正确。"
            "从位置 0 数起的 (t, n) 形状对得上，却让每段的第一个查询只看得见一个键。"
            "整段一次读入时 t = n，看不出错误。",
        ),
        cure=Words(
            "The mask is made from the positions of queries and keys, and its shape is asserted by "
            "name; the tests read a prompt whole, in pieces and token by token, and want one "
            "answer.",
            "掩码由查询与键的位置生成，形状按名称断言；测试把提示整段、分段、逐个 token 读入，"
            "要求结果相同。",
        ),
        places=(
            "firsthand.compute.torch.attention.causal_mask",
            "firsthand.compute.torch.attention.has_shape",
            "firsthand.compute.batch.FlatBatch",
        ),
        sources=("A §3.3",),
        seconds=6,
        needs_model=True,
    ),
)
