"""The kernels of the card, each compared with its formula: by Triton's interpreter, and on a card;
and each compiled for a card, where there is none.

Owns: the processes in which that is done: whether kernels are interpreted is settled when triton is
imported, and nothing of it may reach the other tests.
May not know: any kernel.
Read next: `interpreted_rows.py` and its neighbours, and `compiled_for_a_card.py`: what runs here.
"""

from __future__ import annotations

import os
import subprocess
import sys
from pathlib import Path

import pytest

pytest.importorskip("torch")
pytest.importorskip("triton")

HERE = Path(__file__).parent
ROOT = HERE.parents[2]
FILES = sorted(str(path) for path in HERE.glob("interpreted_*.py"))


def run(*files: str, **environment: str) -> None:
    """In one process: to import what they need takes as long as most of them."""
    done = subprocess.run(
        [sys.executable, "-m", "pytest", "-q", "-p", "no:cacheprovider", *files],
        cwd=ROOT,
        env={**os.environ, "OMP_NUM_THREADS": "1", **environment},
        capture_output=True,
        text=True,
        timeout=900,
        check=False,
    )
    assert done.returncode == 0, f"{done.stdout[-6000:]}\n{done.stderr[-2000:]}"


@pytest.mark.torch
@pytest.mark.oracle
@pytest.mark.native
@pytest.mark.slow
def test_by_the_interpreter() -> None:
    """S28, S61, S62, S87, S88: see the files. What was never written is no number: what the C
    library hands out is filled with 0x7F."""
    run(*FILES, TRITON_INTERPRET="1", MALLOC_PERTURB_="128")


@pytest.mark.torch
@pytest.mark.oracle
@pytest.mark.native
@pytest.mark.slow
def test_compiled_for_a_card(tmp_path: Path) -> None:
    """Nothing that was compiled before is taken for it."""
    file = str(HERE / "compiled_for_a_card.py")
    run(file, TRITON_INTERPRET="0", TRITON_CACHE_DIR=str(tmp_path))


@pytest.mark.gpu
def test_on_a_card() -> None:
    run(*FILES, TRITON_INTERPRET="0")
