"""Answers against references: BLEU by sacrebleu, and ROUGE that knows Chinese.

Owns: both scores over whole texts, and how a text is cut into words for ROUGE.
May not know: models, where the texts come from.
Read next: `perplexity.py`, which needs no references.

BLEU is sacrebleu's, with its own tokenisation: `zh` where the references are Chinese, else `13a`;
the signature says which. ROUGE is ours, because the usual program drops every character that is not
a Latin letter or a digit, and so gives a Chinese text 0: here each Chinese, Japanese or Thai
character is a word. Source: Lin, "ROUGE", 2004.
"""

from __future__ import annotations

import re
import unicodedata
from collections import Counter
from collections.abc import Sequence
from typing import Final

from firsthand.errors import InvalidRequest
from firsthand.values import dataclass

# Han, kana, Thai, Lao, Khmer, Burmese: written without spaces.
_UNSPACED: Final = r"\u0e00-\u0eff\u1000-\u109f\u1780-\u17ff\u3040-\u30ff\u3400-\u9fff\uf900-\ufaff"
_WORD: Final = re.compile(
    rf"[{_UNSPACED}\U00020000-\U0003ffff]|[^\W_{_UNSPACED}\U00020000-\U0003ffff]+"
)


@dataclass(frozen=True, slots=True)
class Bleu:
    score: float  # 0 … 100
    signature: str


@dataclass(frozen=True, slots=True)
class Rouge:
    """F-measures, 0 … 1, averaged over the texts: of words, of pairs, and of the longest common
    subsequence."""

    rouge1: float
    rouge2: float
    rouge_l: float


def bleu(answers: Sequence[str], references: Sequence[str]) -> Bleu:
    """Over the whole corpus. Raises InvalidRequest without the extra `scores`, or for no texts."""
    _check(answers, references)
    try:
        from sacrebleu.metrics import BLEU
    except ModuleNotFoundError:
        message = "'bleu' needs the extra: pip install 'firsthand[scores]'"
        raise InvalidRequest("metric", message) from None
    metric = BLEU(tokenize="zh" if is_chinese("".join(references)) else "13a")
    found = metric.corpus_score(list(answers), [list(references)])
    return Bleu(float(found.score), str(metric.get_signature()))


def rouge(answers: Sequence[str], references: Sequence[str]) -> Rouge:
    """Raises InvalidRequest for no texts."""
    _check(answers, references)
    pairs = [(words(one), words(other)) for one, other in zip(answers, references, strict=True)]
    count = len(pairs)
    return Rouge(
        sum(_overlap(_runs(a, 1), _runs(b, 1)) for a, b in pairs) / count,
        sum(_overlap(_runs(a, 2), _runs(b, 2)) for a, b in pairs) / count,
        sum(_measure(_common(a, b), len(a), len(b)) for a, b in pairs) / count,
    )


def words(text: str) -> list[str]:
    """Lower case, without punctuation; full-width letters as the usual ones."""
    return _WORD.findall(unicodedata.normalize("NFKC", text).lower())


def is_chinese(text: str) -> bool:
    """Whether more of its letters are Chinese characters than not."""
    letters = [c for c in text if c.isalpha()]
    chinese = sum("\u3400" <= c <= "\u9fff" for c in letters)
    return bool(letters) and 2 * chinese > len(letters)


def _check(answers: Sequence[str], references: Sequence[str]) -> None:
    if not references or len(answers) != len(references):
        raise InvalidRequest("pairs", f"{len(answers)} answers for {len(references)} references")


def _runs(found: Sequence[str], size: int) -> Counter[tuple[str, ...]]:
    return Counter(tuple(found[at : at + size]) for at in range(len(found) - size + 1))


def _overlap(one: Counter[tuple[str, ...]], other: Counter[tuple[str, ...]]) -> float:
    return _measure((one & other).total(), one.total(), other.total())


def _measure(common: int, one: int, other: int) -> float:
    return 2 * common / (one + other) if common else 0.0


def _common(one: Sequence[str], other: Sequence[str]) -> int:
    """Length of the longest common subsequence."""
    row = [0] * (len(other) + 1)
    for word in one:
        diagonal = 0
        for at, against in enumerate(other, 1):
            above = row[at]
            row[at] = diagonal + 1 if word == against else max(above, row[at - 1])
            diagonal = above
    return row[-1]
