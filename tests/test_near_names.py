"""Names one character apart are found (S83)."""

from __future__ import annotations

from firsthand.near_names import near_names


def test_s_83_one_character_more_less_or_other() -> None:
    names = ["qwen-7b", "qwen-7b-", "qwen-8b", "gwen-7b", "llama", "qwen7b", "qwen-7b"]
    assert near_names(names) == [
        *(("gwen-7b", "qwen-7b"), ("qwen-7b", "qwen-7b-"), ("qwen-7b", "qwen-8b")),
        ("qwen-7b", "qwen7b"),
    ]
    assert near_names(["ab", "ba", "abcd", "a"]) == [("a", "ab"), ("a", "ba")]
