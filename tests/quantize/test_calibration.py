"""What is no calibration set, and how one is named.

Owns: refusals with their reasons, the hash, the part kept back. May not know: models.
Read next: `test_quantize.py`.
"""

from __future__ import annotations

import random
import string

import numpy as np
import pytest

from firsthand.errors import InvalidRequest
from firsthand.quantize.calibration import calibration_of, check_is_text


def by_byte(text: str) -> list[int]:
    return list(text.encode())


CHINESE = (
    "量化是推理优化的重头戏。整数量化通常能带来两倍左右的速度提升和一半的内存节省，但精度损失需要仔细评估。"
    "校准集的选择很关键：要用真实场景的数据，不能用随机数据。有人用随机数据校准，结果模型在真实数据上完全不能用。"
    "权重加载看起来简单，实际上坑很多。第一个坑是数据类型转换，转换时机很关键。如果先全部加载再统一转换，"
    "又可能直接内存不足。做法是分块加载、分块转换，每块处理完就释放原始数据。缩放因子必须在加载时算好，"
    "因为量化后的权重需要和缩放因子一起存储，否则每次前向传播都要重新计算，延迟直接翻倍。"
)


def test_real_text_is_taken(passages: str) -> None:
    check_is_text(passages)
    check_is_text(CHINESE)
    check_is_text("\n".join(f"def add_{i}(x: int) -> int: return x + {i}" for i in range(200)))


@pytest.mark.parametrize(
    "letters", [string.ascii_lowercase + " ", string.digits, string.printable, "0123456789abcdef"]
)
def test_random_characters_are_refused(letters: str) -> None:
    draw = random.Random(1)
    text = "".join(draw.choice(letters) for _ in range(30_000))
    with pytest.raises(InvalidRequest, match=r"calibration: looks random: it compresses to \d+"):
        check_is_text(text)


def test_too_little_is_refused(passages: str) -> None:
    for text, message in (
        ("  \n", "is empty"),
        ("the same line, again and again.\n" * 2_000, "repeats itself"),
        (passages[:1_500], r"has 1\d{3} tokens; it takes 2048"),
        ("hi", "has 2 tokens; it takes 2048"),
        ("\0" * 50_000, "repeats itself"),
    ):
        with pytest.raises(InvalidRequest, match=message):
            calibration_of(text, by_byte, 4_096, 512)


@pytest.mark.parametrize("num_tokens", [-5, 0, 2_047])
def test_fewer_tokens_than_are_needed_cannot_be_asked_for(passages: str, num_tokens: int) -> None:
    with pytest.raises(InvalidRequest, match="calibration_tokens: "):
        calibration_of(passages, by_byte, num_tokens, 512)


def test_the_set_is_its_hash(passages: str) -> None:
    one = calibration_of(passages, by_byte, 5_000, 400)
    assert one.sequences.shape == (12, 400)
    assert np.array_equal(one.sequences.reshape(-1), by_byte(passages)[:4_800])
    assert passages.endswith(one.kept_back)
    assert one.artefact.num_tokens == 4_800
    same = calibration_of(passages, by_byte, 5_000, 400)
    other = calibration_of(passages.replace("the", "The", 1), by_byte, 5_000, 400)
    assert one.artefact.sha256 == same.artefact.sha256 != other.artefact.sha256
