"""The one command for a card, whole, without one: it must run to its end on the day there is one.

Owns: that every part is there and none failed. May not know: figures.
Read next: `bench/gpu.py`.
"""

from __future__ import annotations

import json
import os
import subprocess
import sys
from pathlib import Path

import pytest

pytest.importorskip("torch")
pytest.importorskip("triton")
pytest.importorskip("transformers")

BENCH = Path(__file__).parents[2] / "bench" / "gpu.py"


@pytest.mark.torch
@pytest.mark.oracle
@pytest.mark.native
@pytest.mark.slow
def test_every_part_runs_to_its_end(tmp_path: Path) -> None:
    out = tmp_path / "found.json"
    done = subprocess.run(
        [sys.executable, str(BENCH), "--smoke", "--minutes", "15", "--out", str(out)],
        env={**os.environ, "OMP_NUM_THREADS": "1"},
        capture_output=True,
        text=True,
        timeout=900,
        check=False,
    )
    assert done.returncode == 0, done.stderr[-3000:]
    found = json.loads(out.read_text(encoding="utf-8"))
    assert json.loads(done.stdout) == found
    assert found["left_out"] == []
    assert found["kernels"] == {"interpreted_rows": "right"}
    for format in ("float16", "int4"):
        part = found[f"smoke {format}"]
        assert [one["rows"] for one in part["decode"]] == [1, 2]
        assert part["graphs"]["num_hits"] > 0
        assert part["prompt"]["tokens"] == 4
    bits = found["smoke float16"]["bits"]
    assert set(bits["deterministic"]) == {"unfused", "graph", "company", "chunks"}
    assert all(bits["deterministic"].values())
    rules = [*("", ", without residual-norm", ", without rope", ", without residual-norm and rope")]
    ways = found["ablation"]
    assert list(ways) == [kind + rule for kind in ("graph", "eager") for rule in rules]
    assert [way["operators"] for way in ways.values()] == 2 * [15, 17, 17, 19]
    assert {step["times"] for step in (*ways["graph"]["decode"], ways["graph"]["prompt"])} == {1.0}
    assert found["transformers"]["requests"] == 2
    assert found["real model"]["equal_tokens"] == found["real model"]["tokens"]


def test_a_deadline_leaves_parts_out_and_keeps_the_rest(tmp_path: Path) -> None:
    out = tmp_path / "found.json"
    command = [sys.executable, str(BENCH), "--smoke", "--minutes", "0", "--out", str(out)]
    done = subprocess.run(command, capture_output=True, text=True, timeout=300, check=False)
    found = json.loads(out.read_text(encoding="utf-8"))
    assert done.returncode == 0
    assert found["left_out"] == [
        *("machine", "kernels", "smoke float16", "smoke int4", "ablation"),
        *("transformers", "real model"),
    ]
