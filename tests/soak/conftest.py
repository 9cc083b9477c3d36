"""The model of all these tests, and the figures that they measured.

Owns: `figure`, whose lines stand at the end of the run, whatever became of the tests.
May not know: what is measured.
Read next: `serving.py`.
"""

from __future__ import annotations

from collections.abc import Callable
from pathlib import Path

import pytest

from firsthand.cli.micro_model import write_micro_model

Figure = Callable[..., None]
FIGURE = "figure"
LONG = 2048


@pytest.fixture(scope="session")
def micro_folder(tmp_path_factory: pytest.TempPathFactory) -> Path:
    return write_micro_model(tmp_path_factory.mktemp("micro"))


@pytest.fixture(scope="session")
def long_folder(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """The same model with a longer window: answers so long that the engine is what is short."""
    return write_micro_model(tmp_path_factory.mktemp("long"), context_length=LONG)


@pytest.fixture
def figure(record_property: Callable[[str, object], None]) -> Figure:
    """`figure("O-1: goodput at 10 x", 0.97, "of peak", "at least 0.95")`."""

    def record(name: str, value: float, unit: str, limit: str = "") -> None:
        wanted = f" ({limit})" if limit else ""
        record_property(FIGURE, f"{name}: {value:.4g} {unit}{wanted}")

    return record


def pytest_terminal_summary(terminalreporter: pytest.TerminalReporter) -> None:
    lines = [
        str(text)
        for kind in ("passed", "failed")
        for report in terminalreporter.getreports(kind)
        for name, text in report.user_properties
        if name == FIGURE
    ]
    if lines:
        terminalreporter.section("figures")
        for line in sorted(set(lines)):
            terminalreporter.write_line(line)
