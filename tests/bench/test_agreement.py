"""Our perplexity is llama.cpp's, within half a percent.

Owns: the lines that are kept, and one short run where llama.cpp is installed.
May not know: how either computes it. Read next: `bench/agreement.py`.
"""

from __future__ import annotations

import json
from pathlib import Path

import pytest

from bench.agreement import LARGEST_DIFFERENCE, LINES, compared, help_text

RIVALS = Path(__file__).resolve().parents[2] / ".rivals"


def test_the_lines_that_are_kept_agree() -> None:
    lines = [json.loads(line) for line in LINES.read_text(encoding="utf-8").splitlines()]
    assert {line["model"] for line in lines} >= {"Q4_0.gguf", "Q8_0.gguf"}
    for line in lines:
        for ours in ("auto", "none"):
            assert abs(line[ours]["difference_percent"]) <= LARGEST_DIFFERENCE


@pytest.mark.model
@pytest.mark.native
@pytest.mark.slow
@pytest.mark.process
@pytest.mark.skipif(not (RIVALS / "venv" / "llamacpp").exists(), reason="make rivals")
def test_llamacpp_says_the_same(smollm2_path: Path, tmp_path: Path) -> None:
    """Both read the text themselves: tokens, windows and scores."""
    line = compared(RIVALS, smollm2_path, help_text(tmp_path / "help.txt"), window=256, windows=8)
    assert line["tokens_scored"] == 8 * 127
    for ours in ("auto", "none"):
        assert abs(line[ours]["difference_percent"]) <= LARGEST_DIFFERENCE
