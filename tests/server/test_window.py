"""A window that memory is not enough for: refused with the numbers, or lowered and told.

Owns: proof of OPS-8 through the command. Read next: `tests/memory/test_budget.py`.
"""

from __future__ import annotations

import re
import subprocess
import sys
from pathlib import Path

import httpx
import pytest

from firsthand.errors import CapacityExceeded
from firsthand.generation.load_options import LoadOptions
from firsthand.generation.loading import plan_model
from tests.server.processes import PROGRAM, started

pytestmark = pytest.mark.native


@pytest.fixture
def limit(long_folder: Path) -> str:
    """Of memory: enough for a short window only."""
    with pytest.raises(CapacityExceeded, match="would hold it") as none:
        plan_model(long_folder, LoadOptions(memory_limit="1MiB"))
    found = re.search(r"memory_limit=(\w+)", str(none.value))
    assert found is not None
    return found[1]


def test_ops_8_a_window_that_was_asked_for_is_refused_with_both_numbers(
    long_folder: Path, limit: str
) -> None:
    asked = ["serve", str(long_folder), "--memory-limit", limit, "--max-model-len", "8192"]
    ended = subprocess.run(
        [sys.executable, "-c", PROGRAM, *asked, "--port", "0"], capture_output=True, text=True
    )
    assert ended.returncode != 0
    assert "8192 tokens" in ended.stderr.replace(",", "") and limit in ended.stderr.replace(
        ".0 ", ""
    )
    assert "would hold it" in ended.stderr


def test_ops_8_the_models_own_window_is_lowered_and_told(
    tmp_path: Path, long_folder: Path, limit: str
) -> None:
    with started(tmp_path, long_folder, "--memory-limit", limit) as server:
        server.wait_ready(60)
        (card,) = httpx.get(f"{server.url}/v1/models").json()["data"]
        (told,) = server.told("context_lowered")
        assert card["max_model_len"] == told["context_length"]
        assert told["level"] == "warning" and "16384" in str(told["message"])
