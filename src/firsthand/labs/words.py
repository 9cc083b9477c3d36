"""A text in both languages, and a figure in either.

Owns: `Words`, `rounded`. May not know: what is said.
Read next: `lab.py`.
"""

from __future__ import annotations

import math

from firsthand.values import dataclass

LANGUAGES = ("en", "zh")


@dataclass(frozen=True, slots=True)
class Words:
    en: str
    zh: str

    def of(self, language: str) -> str:
        return self.zh if language == "zh" else self.en


Text = Words | str  # a str is a name or a figure: the same in every language

FAULTY = Words("faulty", "错误做法")
OURS = Words("ours", "本系统")


def said(value: Text | float, language: str) -> str | float:
    """Words in one language; what is no number, which JSON has no form for, as text; else as it
    is."""
    if isinstance(value, Words):
        return value.of(language)
    return value if isinstance(value, str) or math.isfinite(value) else str(value)


def text_of(value: Text, language: str) -> str:
    return value.of(language) if isinstance(value, Words) else value


def rounded(value: float) -> str:
    """Four digits, and what is before the point whole: never 1.066e+04 for 10,656."""
    return f"{value:,.0f}" if 9999.5 <= abs(value) < 1e9 else f"{value:.4g}"
