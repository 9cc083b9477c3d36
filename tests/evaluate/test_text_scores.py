"""BLEU is sacrebleu's; ROUGE by hand, and against the usual program where it can read the text.

Owns: both scores. May not know: models. Read next: `test_pairs.py`.
"""

from __future__ import annotations

import pytest

from firsthand.errors import InvalidRequest
from firsthand.evaluate.text_scores import bleu, rouge, words

ENGLISH = ["the cat sat on the mat", "A quick brown fox, indeed."]
ENGLISH_REFERENCES = ["the cat lay on the mat", "The quick brown fox jumps."]
CHINESE = ["猫坐在垫子上", "今天天气很好"]
CHINESE_REFERENCES = ["猫躺在垫子上", "今天的天气真好"]


def test_rouge_by_hand() -> None:
    """Five of six words are common; of pairs `the cat`, `on the`, `the mat`; in order five."""
    found = rouge(ENGLISH[:1], ENGLISH_REFERENCES[:1])
    assert found.rouge1 == pytest.approx(5 / 6)
    assert found.rouge2 == pytest.approx(3 / 5)
    assert found.rouge_l == pytest.approx(5 / 6)


def test_rouge_reads_chinese() -> None:
    """Five of six characters; pairs: 在垫 垫子 子上 of five."""
    found = rouge(CHINESE[:1], CHINESE_REFERENCES[:1])
    assert found.rouge1 == pytest.approx(5 / 6)
    assert found.rouge2 == pytest.approx(3 / 5)
    assert rouge(CHINESE, CHINESE).rouge_l == 1.0
    assert rouge(["猫"], ["狗"]).rouge1 == 0.0


def test_words_of_mixed_text() -> None:
    assert words("Qwen2的INT4量化, 很好！ ｆｕｌｌ") == [
        "qwen2", "的", "int4", "量", "化", "很", "好", "full"
    ]  # fmt: skip
    assert words("日本のカタ ไทย") == ["日", "本", "の", "カ", "タ", "ไ", "ท", "ย"]


@pytest.mark.oracle
def test_english_is_what_the_usual_program_says() -> None:
    scorer = pytest.importorskip("rouge_score.rouge_scorer")
    theirs = scorer.RougeScorer(["rouge1", "rouge2", "rougeL"])
    each = [theirs.score(r, a) for a, r in zip(ENGLISH, ENGLISH_REFERENCES, strict=True)]
    found = rouge(ENGLISH, ENGLISH_REFERENCES)
    for name, value in (
        ("rouge1", found.rouge1),
        ("rouge2", found.rouge2),
        ("rougeL", found.rouge_l),
    ):
        assert value == pytest.approx(sum(one[name].fmeasure for one in each) / len(each))


@pytest.mark.oracle
def test_bleu_is_sacrebleus_with_the_right_tokeniser() -> None:
    metrics = pytest.importorskip("sacrebleu.metrics")
    for answers, references, tokenize in (
        (ENGLISH, ENGLISH_REFERENCES, "13a"),
        (CHINESE, CHINESE_REFERENCES, "zh"),
    ):
        found = bleu(answers, references)
        theirs = metrics.BLEU(tokenize=tokenize).corpus_score(answers, [references])
        assert found.score == theirs.score > 0
        assert f"tok:{tokenize}" in found.signature


def test_what_cannot_be_scored_is_refused() -> None:
    with pytest.raises(InvalidRequest, match="0 answers for 0 references"):
        rouge([], [])
    with pytest.raises(InvalidRequest, match="1 answers for 2 references"):
        bleu(["a"], ["a", "b"])
