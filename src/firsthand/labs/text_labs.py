"""Labs of text: half characters in a stream, and bytes read in the wrong encoding.

Owns: two ways to cut a character.
May not know: how a stream is sent.
Read next: `text/detokenize.py`.
"""

from __future__ import annotations

from firsthand.labs.charts import Lanes, Span
from firsthand.labs.lab import Evidence, Lab, Passage
from firsthand.labs.words import OURS, Words
from firsthand.labs.workbench import Workbench
from firsthand.text.detokenize import Detokenizer
from firsthand.text.tokenizer import Tokenizer

TEXT = "你好，世界 🌍！"
BROKEN = "\N{REPLACEMENT CHARACTER}"


def each_alone(tokenizer: Tokenizer, ids: list[int]) -> list[str]:
    """Every token decoded by itself."""
    return [tokenizer.token_bytes(one).decode("utf-8", "replace") for one in ids]


def what_is_new(tokenizer: Tokenizer, ids: list[int]) -> list[str]:
    """All decoded again at each token, and cut where the last text ended."""
    sent = 0
    pieces = []
    for end in range(1, len(ids) + 1):
        raw = b"".join(tokenizer.token_bytes(one) for one in ids[:end])
        text = raw.decode("utf-8", "replace")
        pieces.append(text[sent:])
        sent = len(text)
    return pieces


def ours(tokenizer: Tokenizer, ids: list[int]) -> list[str]:
    detokenizer = Detokenizer(tokenizer)
    return [*(detokenizer.add(one) for one in ids[:-1]), detokenizer.add(ids[-1])]


def half_characters(bench: Workbench) -> Evidence:
    tokenizer = Tokenizer.from_folder(bench.small_model())
    ids = tokenizer.encode(TEXT)
    ways = (
        (Words("each token by itself", "逐个 token 单独解码"), each_alone(tokenizer, ids)),
        (
            Words("decode all, send what is new", "全部重解，发送新增部分"),
            what_is_new(tokenizer, ids),
        ),
        (OURS, ours(tokenizer, ids)),
    )
    faulty = ["".join(pieces) for _, pieces in ways[:-1]]
    return Evidence(
        measure=Words("characters of the stream that are broken", "流中损坏的字符数"),
        fault_shows=float(min(text.count(BROKEN) for text in faulty)),
        ours_does_not=float("".join(ways[-1][1]).count(BROKEN) + ("".join(ways[-1][1]) != TEXT)),
        limit=1.0,
        headings=(
            Words("way", "做法"),
            Words("tokens", "token 数"),
            Words("broken characters", "损坏字符"),
            Words("text as it was meant", "文本与原意相同"),
        ),
        rows=tuple(
            (
                what,
                len(ids),
                "".join(pieces).count(BROKEN),
                Words("yes", "是") if "".join(pieces) == TEXT else Words("no", "否"),
            )
            for what, pieces in ways
        ),
        charts=(
            Lanes(
                Words(
                    "When text is sent (#), token by token; ? is a broken piece",
                    "逐个 token 看何时发出文本（#）；? 表示损坏的片段",
                ),
                Words("tokens", "token"),
                tuple((what, _sent(pieces)) for what, pieces in ways),
            ),
        ),
        passages=tuple(Passage(what, "".join(pieces)) for what, pieces in ways),
    )


def _sent(pieces: list[str]) -> tuple[Span, ...]:
    marks = ("?" if BROKEN in piece else "#" if piece else "." for piece in pieces)
    return tuple(Span(at, at + 1, mark) for at, mark in enumerate(marks))


LABS = (
    Lab(
        name="half-characters",
        title=Words("Half characters in a stream", "流式输出中的半个字符"),
        question=Words(
            "A Chinese character has three bytes, an emoji four, and a token may hold one of them. "
            "What does a reader of the stream see?",
            "一个汉字三个字节，一个 emoji 四个，而一个 token 可能只有其中一个字节。"
            "流的读者会看到什么？",
        ),
        run=half_characters,
        cause=Words(
            "Bytes were turned into text before the character was whole. What is sent cannot be "
            "taken back: decoding everything again finds the right text, but the broken piece has "
            "left, and the cut is now in the wrong place.",
            "字符还不完整，字节就被转成了文本。发出去的收不回来：全部重新解码虽能得到正确文本，"
            "但坏片段已经发出，切口也错了位。",
        ),
        cure=Words(
            "Bytes wait until they are a character; what never becomes one is replaced at the end, "
            "once for each run.",
            "字节先等着，凑成完整字符再输出；永远凑不成的，到最后按段各替换一次。",
        ),
        places=(
            "firsthand.text.detokenize.Detokenizer",
            "firsthand.generation.texts",
        ),
        sources=("A §2.4", "A §6.5"),
        seconds=1,
    ),
)
