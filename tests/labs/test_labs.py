"""Every lab: the fault shows, ours does not; in both languages; and the code that it names exists.

Owns: these. May not know: any one lab.
Read next: `src/firsthand/labs/lab.py`.
"""

from __future__ import annotations

import json
from pathlib import Path

import pytest

from firsthand.cli.micro_model import write_micro_model
from firsthand.labs.lab import Lab
from firsthand.labs.registry import labs
from firsthand.labs.workbench import Workbench

QUICK_SECONDS = 2  # those that are run by `make test`


def marked(lab: Lab) -> object:
    marks = [pytest.mark.native]
    if lab.needs_model:
        marks.append(pytest.mark.model)
    if lab.seconds > QUICK_SECONDS:
        marks += [pytest.mark.soak, pytest.mark.slow]
    return pytest.param(lab, id=lab.name, marks=marks)


@pytest.fixture(scope="module")
def bench(tmp_path_factory: pytest.TempPathFactory, smollm2_path: Path) -> Workbench:
    return Workbench(str(smollm2_path), write_micro_model, tmp_path_factory.mktemp("labs"))


@pytest.mark.parametrize("lab", [marked(lab) for lab in labs().values()])
def test_the_fault_shows_and_ours_does_not(lab: Lab, bench: Workbench) -> None:
    evidence = lab.run(bench)
    assert evidence.fault_shows >= evidence.limit > evidence.ours_does_not, lab.name
    assert all(len(row) == len(evidence.headings) for row in evidence.rows)
    assert evidence.charts or evidence.passages, "nothing to look at"
    for language in ("en", "zh"):
        json.dumps(evidence.to_dict(language), allow_nan=False)
