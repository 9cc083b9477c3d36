"""Programs of the kernels without Python, built by a test: for emulation, sanitizers, counting.

Owns: how each instruction set is compiled, for which machine. The flags are those of
CMakeLists.txt, but for the optimisation, which may not change a bit.
May not know: what a program does. Read next: `test_instruction_sets.py`, `test_replay.py`.
"""

from __future__ import annotations

import platform
import shutil
import subprocess
from pathlib import Path

import pytest

CSRC = Path("src/firsthand/compute/native/csrc").absolute()
HERE = Path(__file__).parent.absolute()
SOURCES = [
    CSRC / name
    for name in (
        "plan.cpp",
        "plan_run.cpp",
        "plan_rows.cpp",
        "plan_adapters.cpp",
        "shards.cpp",
        "weight.cpp",
        "dispatch.cpp",
        "threads.cpp",
    )
]
FLAGS = ["-std=c++20", "-O2", "-ffp-contract=off", "-fno-math-errno", "-w", "-Wno-psabi"]
FLAGS += [f"-I{CSRC}"]
EMULATED = ["-DFIRSTHAND_EMULATED", f"-I{HERE}"]
AVX2 = ["-mavx2", "-mfma", "-mf16c"]
AVX512 = [*AVX2, "-mavx512f", "-mavx512bw", "-mavx512vl", "-mavx512dq", "-mavx512vnni"]
SETS = {
    "x86_64": {"portable": ["-DFIRSTHAND_PORTABLE"], "avx2": AVX2, "avx512": AVX512},
    "x86_64 emulated": {
        "portable": ["-DFIRSTHAND_PORTABLE"],
        "avx2": AVX2,
        "avx512": [*AVX2, *EMULATED],
    },
    "aarch64": {"portable": ["-DFIRSTHAND_PORTABLE"], "neon": []},
}


def compiler_of(machine: str = platform.machine()) -> str:
    """The compiler for that machine; without one the test is left out."""
    if machine not in SETS:
        pytest.skip(f"no instruction sets for {machine}")
    here = machine.split()[0] == platform.machine()
    name = "c++" if here else f"{machine}-linux-gnu-g++"
    found = shutil.which(name)
    if found is None:
        pytest.skip(f"needs {name}; `make test` installs what it can as root")
    return found


def tables(folder: Path, machine: str = platform.machine(), *options: str) -> list[str]:
    """The kernels of each set as an object file, compiled beside each other."""
    compiler = compiler_of(machine)
    objects = [str(folder / f"{name}.o") for name in SETS[machine]]
    running = []
    for (name, flags), target in zip(SETS[machine].items(), objects, strict=True):
        table = [str(CSRC / "kernel_table.cpp"), f"-DFIRSTHAND_ISA={name}", "-c", "-o", target]
        running.append(subprocess.Popen([compiler, *FLAGS, *options, *flags, *table]))
    assert [one.wait() for one in running] == [0] * len(running)
    return objects


def program(
    source: str, objects: list[str], machine: str = platform.machine(), *options: str
) -> Path:
    """A program of the tests with these kernels."""
    path = Path(objects[0]).with_name(Path(source).stem)
    whole = [str(HERE / source), *map(str, SOURCES), *objects, "-o", str(path), "-lpthread"]
    subprocess.run([compiler_of(machine), *FLAGS, *options, *whole], check=True)
    return path


def lines(*command: str | Path) -> list[str]:
    """What it prints. That it fails, or writes an error, fails the test with its words."""
    done = subprocess.run(command, capture_output=True, text=True, timeout=300)
    assert done.returncode == 0, done.stderr[-4000:]
    return done.stdout.splitlines()
