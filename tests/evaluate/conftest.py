"""The generated model, and the text that the quality gate reads.

Owns: both. May not know: any single test. Read next: `test_perplexity.py`.
"""

from __future__ import annotations

from pathlib import Path

import pytest

from firsthand.cli.micro_model import write_micro_model


@pytest.fixture(scope="session")
def micro_folder(tmp_path_factory: pytest.TempPathFactory) -> Path:
    return write_micro_model(tmp_path_factory.mktemp("micro"))


@pytest.fixture(scope="session")
def passages() -> str:
    """Some 5,200 tokens of English in a dozen kinds, written for this."""
    return (Path(__file__).parent / "passages.txt").read_text(encoding="utf-8")
