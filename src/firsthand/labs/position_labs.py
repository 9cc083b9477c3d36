"""Lab of positions: a cache that is used again by the next request, and a counter that goes on.

Owns: three ways to forget the reset.
May not know: how the engine reuses blocks; it is asked as any user asks it.
Read next: `forward.py`; `scheduling/sequence.py`, where a sequence's position is what it has
computed.
"""

from __future__ import annotations

import numpy as np

from firsthand.generation.completion import Completion
from firsthand.labs.charts import Bars
from firsthand.labs.forward import RIGHT, Forward, Ints, Parts, Session
from firsthand.labs.lab import Cell, Evidence, Lab, Passage
from firsthand.labs.words import OURS, Words
from firsthand.labs.workbench import Workbench
from firsthand.values import dataclass

FIRST = "My name is Wilhelmina, I live in Rotterdam, and the code of my front door is 7319."
SECOND = "Hello, my name is"
NUM_TOKENS = 10
ANOTHER_TEXT = 1e9  # stands for a difference beyond all


@dataclass(frozen=True, slots=True)
class Answer:
    """The second request's text, and its scores after the last token of the prompt."""

    text: str
    logprobs: np.ndarray[tuple[int, ...], np.dtype[np.float64]]


def answer(forward: Forward, session: Session) -> Answer:
    ids = forward.tokenizer.encode(SECOND)
    logits = session.feed(ids)[-1].astype(np.float64)
    logprobs = logits - logits.max() - np.log(np.exp(logits - logits.max()).sum())
    first = int(logits.argmax())
    found = [first, *session.generate([first], NUM_TOKENS - 1)]
    return Answer(SECOND + forward.tokenizer.decode(found), logprobs)


def reused(forward: Forward, *, cleared: bool, parts: Parts = RIGHT) -> Answer:
    """The second request in the session of the first; `cleared`: without what that one stored."""
    session = forward.start(parts)
    session.feed(forward.tokenizer.encode(FIRST))
    if cleared:
        session.cache.clear()
        session.num_tokens = 0
    return answer(forward, session)


def position_reuse(bench: Workbench) -> Evidence:
    forward = bench.forward()
    gone = len(forward.tokenizer.encode(FIRST))
    prompt = len(forward.tokenizer.encode(SECOND))

    def all_later(positions: Ints) -> Ints:
        return positions + gone

    def answer_later(positions: Ints) -> Ints:
        return np.where(positions >= prompt, positions + gone, positions)

    fresh = answer(forward, forward.start())
    faulty = (
        (
            Words("counter and cache go on", "计数与缓存都接着用"),
            reused(forward, cleared=False),
        ),
        (
            Words(
                "cache cleared, all tokens turned by the old counter",
                "缓存已清，但全部按旧计数旋转",
            ),
            reused(forward, cleared=True, parts=Parts(turned_at=all_later)),
        ),
        (
            Words(
                "cache cleared, the answer's tokens turned by it", "缓存已清，仅回答按旧计数旋转"
            ),
            reused(forward, cleared=True, parts=Parts(turned_at=answer_later)),
        ),
    )
    text, difference = _ours(bench)
    off = [float(np.abs(one.logprobs - fresh.logprobs).max()) for _, one in faulty]
    rows: list[tuple[Cell, ...]] = [
        (what, value, _same(one.text, fresh.text))
        for (what, one), value in zip(faulty, off, strict=True)
    ]
    rows.append((OURS, difference, Words("yes", "是")))
    return Evidence(
        measure=Words(
            "largest difference of a log-probability between a used and a fresh cache",
            "用过的缓存与全新缓存之间，对数概率的最大差异",
        ),
        fault_shows=off[0],
        ours_does_not=difference,
        limit=0.1,
        headings=(
            Words("way", "做法"),
            Words("off by, first token", "首 token 的偏差"),
            Words("same text as fresh", "文本与全新缓存相同"),
        ),
        rows=tuple(rows),
        charts=(
            Bars(
                Words("How far the first token's scores are off", "首 token 的分数偏差"),
                Words("nats", "奈特"),
                (
                    *((what, value) for (what, _), value in zip(faulty, off, strict=True)),
                    (OURS, difference),
                ),
            ),
        ),
        passages=(
            Passage(Words("the request before", "前一个请求"), FIRST),
            Passage(Words("fresh cache", "全新缓存"), fresh.text),
            *(Passage(what, one.text) for what, one in faulty),
            Passage(OURS, text),
        ),
    )


def _same(one: str, other: str) -> Words:
    return Words("yes", "是") if one == other else Words("no", "否")


def _ours(bench: Workbench) -> tuple[str, float]:
    """The engine's answer after another request has used the blocks, and how far it is off."""
    with bench.engine(max_sequences=1, max_context=256, prefix_cache=False) as llm:

        def ask() -> Completion:
            return llm.generate(
                SECOND, max_tokens=NUM_TOKENS, temperature=0, logprobs=0, ignore_end=True
            )

        fresh = ask()
        llm.generate(FIRST, max_tokens=NUM_TOKENS, temperature=0)
        again = ask()
    pairs = zip(fresh.logprobs or (), again.logprobs or (), strict=True)
    difference = max(abs(one.logprob - other.logprob) for one, other in pairs)
    if fresh.token_ids != again.token_ids:
        difference = ANOTHER_TEXT
    return SECOND + again.text, difference


LABS = (
    Lab(
        name="position-reuse",
        title=Words("A position that is not reset", "没有重置的位置"),
        question=Words(
            "A cache is used again and the counter goes on. The text looks fine: how would one "
            "notice?",
            "缓存被下一个请求复用，计数却没有归零。文本看上去没问题：怎样才能发现？",
        ),
        run=position_reuse,
        cause=Words(
            "If counter and cache go on, the next request looks back at the one before: plausible "
            "text that tells one user about another. If only the rotation counts on for all "
            "tokens, "
            "next to nothing happens: rotary scores depend on distances alone. If it counts on for "
            "the new tokens only, the first token is right and every later one stands too far from "
            "its prompt: the text gets worse, and says nothing about why.",
            "计数与缓存都接着用，下一个请求会看见前一个：文本像样，却把一位用户的话告诉另一位。"
            "若全部 token 只是旋转多数了，几乎没有影响：旋转位置编码的分数只取决于距离。"
            "若只有新生成的 token 多数了，首 token 正确，此后每个 token 都离提示太远："
            "文本变差，却看不出原因。",
        ),
        cure=Words(
            "A sequence has one number, the tokens that it has computed; it is position, cache "
            "index "
            "and rotation at once, and a new sequence begins at 0. One notices by comparing bits: "
            "the same request on a used and on a fresh cache must give the same ones.",
            "每个序列只有一个数：已计算的 token 数；它同时是位置、缓存下标与旋转角度的来源，"
            "新序列从 0 开始。"
            "发现的办法是比较比特：同一请求在用过的缓存与全新缓存上必须逐位相同。",
        ),
        places=(
            "firsthand.scheduling.sequence.Sequence",
            "firsthand.compute.batch.FlatBatch",
            "firsthand.evaluate.parity",
        ),
        sources=("A §4.4", "A §3.2"),
        seconds=6,
        needs_model=True,
    ),
)
