"""A micro model, for replicas. Read next: `in_process.py`."""

from __future__ import annotations

from pathlib import Path

import pytest

from firsthand.cli.micro_model import write_micro_model


@pytest.fixture(scope="session")
def micro_folder(tmp_path_factory: pytest.TempPathFactory) -> Path:
    return write_micro_model(tmp_path_factory.mktemp("micro"))
