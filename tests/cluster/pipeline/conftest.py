"""Models for the tests of this folder, and what one process makes of them.

Owns: a micro model of six layers, and the requests that are compared. May not know: how a pipeline
works. Read next: `test_pipeline.py`.
"""

from __future__ import annotations

from pathlib import Path

import pytest

from firsthand.cli.micro_model import write_micro_model


@pytest.fixture(scope="session")
def six_layers(tmp_path_factory: pytest.TempPathFactory) -> Path:
    return write_micro_model(tmp_path_factory.mktemp("six"), num_layers=6)
