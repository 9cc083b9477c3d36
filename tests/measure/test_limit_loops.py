"""The bare loops of the other architecture: built, and run by emulation. Their rates mean nothing
there, so only that each gives one is asked."""

from __future__ import annotations

import shutil
import subprocess
from pathlib import Path

import pytest

pytestmark = [pytest.mark.native, pytest.mark.slow]

CSRC = Path("src/firsthand/compute/native/csrc").absolute()
DRIVER = Path(__file__).parent / "limits_driver.cpp"
SOURCES = [CSRC / name for name in ("limits.cpp", "dispatch.cpp", "threads.cpp", "weight.cpp")]
FLAGS = ["-std=c++20", "-O2", "-ffp-contract=off", "-Wall", "-Wextra", "-Werror", f"-I{CSRC}"]


def test_the_loops_of_neon_run_under_emulation(tmp_path: Path) -> None:
    compiler, emulator = shutil.which("aarch64-linux-gnu-g++"), shutil.which("qemu-aarch64")
    if compiler is None or emulator is None:
        pytest.skip("needs g++-aarch64-linux-gnu and qemu-user")
    objects = []
    for isa, flags in {"portable": ["-DFIRSTHAND_PORTABLE"], "neon": []}.items():
        for source in ("kernel_table.cpp", "limit_loops.cpp"):
            objects.append(str(tmp_path / f"{isa}_{source}.o"))
            built = [f"-DFIRSTHAND_ISA={isa}", *flags, "-c", str(CSRC / source), "-o", objects[-1]]
            subprocess.run([compiler, *FLAGS, *built], check=True)
    program = tmp_path / "limits"
    whole = [str(DRIVER), *map(str, SOURCES), *objects, "-o", str(program), "-lpthread", "-static"]
    subprocess.run([compiler, *FLAGS, *whole], check=True)
    done = subprocess.run([emulator, program], check=True, capture_output=True, text=True)
    lines = done.stdout.splitlines()
    assert [line.partition(":")[0] for line in lines] == [
        "neon smull + smlal + sadalp",
        "neon smlal",
        "neon fmla",
        "portable plain bytes",
        "portable plain floats",
        "read",
    ]
    assert all(float(line.rpartition(": ")[2]) > 0 for line in lines)
