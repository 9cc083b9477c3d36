"""A micro model for replicas, and figures that a test measures. Read next: `in_process.py`."""

from __future__ import annotations

from collections.abc import Callable
from pathlib import Path

import pytest

from firsthand.cli.micro_model import write_micro_model

Figure = Callable[..., None]


@pytest.fixture(scope="session")
def micro_folder(tmp_path_factory: pytest.TempPathFactory) -> Path:
    return write_micro_model(tmp_path_factory.mktemp("micro"))


@pytest.fixture
def figure(record_property: Callable[[str, object], None]) -> Figure:
    def record(name: str, value: float, unit: str, limit: str = "") -> None:
        wanted = f" ({limit})" if limit else ""
        record_property("figure", f"{name}: {value:.4g} {unit}{wanted}")
        print(f"{name}: {value:.4g} {unit}{wanted}")

    return record
