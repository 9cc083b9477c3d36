"""Parts on a real Ray, in a process of its own, since Ray reads what closes it when it is loaded:
`on_ray.py` has the tests.

Owns: how they are run. May not know: what a part is. Read next: `on_ray.py`.
"""

from __future__ import annotations

import subprocess
import sys
from pathlib import Path

import pytest

ROOT = Path(__file__).resolve().parents[3]
LIMIT_S = {"not soak": 300.0, "soak": 2400.0}


@pytest.mark.native
@pytest.mark.process
@pytest.mark.slow
@pytest.mark.parametrize("which", ["not soak", pytest.param("soak", marks=pytest.mark.soak)])
def test_s_82_a_job_in_parts_on_ray(which: str) -> None:
    pytest.importorskip("ray")
    on_ray = str(Path(__file__).with_name("on_ray.py"))
    command = [sys.executable, "-m", "pytest", "-p", "no:cacheprovider", "-m", which, on_ray]
    done = subprocess.run(
        command, cwd=ROOT, capture_output=True, text=True, timeout=LIMIT_S[which], check=False
    )
    assert done.returncode == 0, done.stdout + done.stderr
