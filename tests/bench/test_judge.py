"""lm-eval asks our server: the tasks it gets, and one run where it is installed.

Owns: both. May not know: how lm-eval counts. Read next: `bench/judge.py`.
"""

from __future__ import annotations

import json
import math
from pathlib import Path

import pytest

from bench.judge import judged, questions, write_tasks
from firsthand.cli.micro_model import write_micro_model

LMEVAL = Path(__file__).resolve().parents[2] / ".rivals" / "venv" / "lmeval" / "bin" / "python"
TEXT = "\n".join(
    f"Line number {n} tells what happened to the {n}th traveller of that year." for n in range(40)
)


def test_a_question_has_its_own_ending_among_those_of_other_lines() -> None:
    found = questions(TEXT, 12)
    assert len(found) == 12
    lines = TEXT.splitlines()
    for question in found:
        assert len(question["endings"]) == 4
        assert question["beginning"] + question["endings"][question["answer"]] in lines
    assert found == questions(TEXT, 12)


def test_the_tasks_name_their_data(tmp_path: Path) -> None:
    write_tasks(tmp_path, TEXT, 12)
    for name in ("endings", "passages"):
        assert str(tmp_path / f"{name}.jsonl") in (tmp_path / f"{name}.yaml").read_text()
        assert all(map(json.loads, (tmp_path / f"{name}.jsonl").read_text().splitlines()))


@pytest.mark.native
@pytest.mark.slow
@pytest.mark.process
@pytest.mark.skipif(not LMEVAL.exists(), reason="make rivals")
def test_lm_eval_counts_what_we_count(tmp_path: Path) -> None:
    """The bits of a byte that it finds are those of our own perplexity: a byte is a token here."""
    from firsthand.evaluate.perplexity import load_for_scoring, perplexity
    from firsthand.generation.load_options import LoadOptions

    (tmp_path / "micro").mkdir()
    model = write_micro_model(tmp_path / "micro")
    tasks = tmp_path / "tasks"
    tasks.mkdir()
    write_tasks(tasks, TEXT, 12)
    found = judged(LMEVAL, model, "none", tasks, window=256, port=8_799)
    assert 0 <= found["accuracy"] <= 1
    loaded = load_for_scoring(model, LoadOptions(quantization="none"))
    rows = (tasks / "passages.jsonl").read_text().splitlines()
    text = "".join(json.loads(row)["text"] for row in rows)
    ours = perplexity(loaded, text, window=256).nll_per_token / math.log(2)
    assert found["bits_per_byte"] == pytest.approx(ours, rel=0.02)
