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


def test_more_than_the_model_has_is_told(tmp_path: Path, micro_folder: Path) -> None:
    with started(tmp_path, micro_folder, "--max-model-len", "16384") as server:
        server.wait_ready(60)
        (told,) = server.told("context_lowered")
        assert told["context_length"] == 512
        assert "16384" in str(told["message"]) and "512" in str(told["message"])


def test_a_list_longer_than_the_queue_is_taken_in_parts(tmp_path: Path, micro_folder: Path) -> None:
    flags = ("--max-num-seqs", "4", "--max-num-queued-reqs", "16")
    with started(tmp_path, micro_folder, *flags) as server:
        server.wait_ready(60)
        found = httpx.post(f"{server.url}/v1/embeddings", json={"input": ["a"] * 50}, timeout=60)
        assert len(found.json()["data"]) == 50


def test_a_template_that_cannot_be_compiled_ends_the_start(
    tmp_path: Path, micro_folder: Path
) -> None:
    template = tmp_path / "template"
    template.write_text("{% for")
    asked = ["serve", str(micro_folder), "--chat-template", str(template), "--port", "0"]
    ended = subprocess.run(
        [sys.executable, "-c", PROGRAM, *asked], capture_output=True, text=True, timeout=60
    )
    assert ended.returncode == 2, ended
    assert "chat_template" in ended.stderr and "TemplateSyntaxError" in ended.stderr


def test_ops_8_the_models_own_window_is_lowered_and_told(
    tmp_path: Path, long_folder: Path, limit: str
) -> None:
    with started(tmp_path, long_folder, "--memory-limit", limit) as server:
        server.wait_ready(60)
        (card,) = httpx.get(f"{server.url}/v1/models").json()["data"]
        (told,) = server.told("context_lowered")
        assert card["max_model_len"] == told["context_length"]
        assert told["level"] == "warning" and "16384" in str(told["message"])
