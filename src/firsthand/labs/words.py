"""A text in both languages.

Owns: `Words`. May not know: what is said.
Read next: `lab.py`.
"""

from __future__ import annotations

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
    """Words in one language; anything else as it is."""
    return value.of(language) if isinstance(value, Words) else value


def text_of(value: Text, language: str) -> str:
    return value.of(language) if isinstance(value, Words) else value
