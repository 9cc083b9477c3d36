"""Prompt lookup is worth it where text repeats its prompt, and costs nothing elsewhere.

Owns: the two bounds, on the real model, in pairs of runs. Only `make soak` runs it.
May not know: how a token is guessed. Read next: `bench/speculation.py`, which it runs.
"""

from __future__ import annotations

import json
import subprocess
import sys
from pathlib import Path
from typing import Any

import pytest

from tests.soak.conftest import Figure
from tests.soak.serving import ROOT

pytestmark = [pytest.mark.native, pytest.mark.model, pytest.mark.soak, pytest.mark.slow]
PAIRS = 7


@pytest.mark.parametrize("quantization", ["auto", "int8"])
def test_it_pays_or_costs_nothing(smollm2_path: Path, figure: Figure, quantization: str) -> None:
    script = ROOT / "bench" / "speculation.py"
    command = [sys.executable, str(script), str(smollm2_path), str(PAIRS), quantization]
    lines = subprocess.run(command, stdout=subprocess.PIPE, text=True, check=True).stdout
    found: dict[str, Any] = {one["text"]: one for one in map(json.loads, lines.splitlines())}
    for name, one in found.items():
        limit = "at least 1.5" if name == "repeats" else "at least 0.97"
        figure(f"speculation, {quantization}, {name}", one["ratio"]["median"], "of plain", limit)
    assert found["repeats"]["ratio"]["median"] >= 1.5
    assert min(found[name]["ratio"]["median"] for name in ("story", "answer")) >= 0.97
