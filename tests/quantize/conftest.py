"""The generated model and a real text, for the tests of this folder.

Owns: both. May not know: any single test. Read next: `test_quantize.py`.
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
    path = Path(__file__).parents[1] / "evaluate" / "passages.txt"
    return path.read_text(encoding="utf-8")
