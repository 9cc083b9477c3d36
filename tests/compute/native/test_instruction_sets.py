"""One contract, every instruction set: the same bits from each kernel, also where it is emulated.

`digest.cpp` runs every kernel of a set on made inputs. It is built for this machine; with AVX-512
in plain code, if SIMDe is there; and for AArch64 if there is a cross compiler, run by qemu.
"""

from __future__ import annotations

import platform
import shutil
import subprocess
from pathlib import Path

import pytest

from tests.compute.native.micro import instruction_sets

pytestmark = [pytest.mark.native, pytest.mark.slow]

CSRC = Path("src/firsthand/compute/native/csrc").absolute()
HERE = Path(__file__).parent
SOURCES = [
    str(HERE / "digest.cpp"),
    *(str(CSRC / name) for name in ("weight.cpp", "dispatch.cpp", "threads.cpp")),
]
FLAGS = ["-std=c++20", "-O2", "-ffp-contract=off", "-fno-math-errno", "-w", f"-I{CSRC}"]
EMULATED = ["-DFIRSTHAND_EMULATED", f"-I{HERE}", "-Wno-psabi"]
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


def build(folder: Path, compiler: str, machine: str, *options: str) -> Path:
    objects = []
    for name, flags in SETS[machine].items():
        objects.append(str(folder / f"{name}.o"))
        table = [str(CSRC / "kernel_table.cpp"), f"-DFIRSTHAND_ISA={name}", "-c", "-o", objects[-1]]
        subprocess.run([compiler, *FLAGS, *flags, *table], check=True)
    program = folder / "digest"
    whole = [*SOURCES, *objects, "-o", str(program), "-lpthread"]
    subprocess.run([compiler, *FLAGS, *options, *whole], check=True)
    return program


SIMDE = Path("/usr/include/simde/x86/avx512.h")


def lines(*command: str | Path) -> list[str]:
    done = subprocess.run(command, check=True, capture_output=True, text=True, timeout=300)
    return done.stdout.splitlines()


@pytest.fixture(scope="module")
def program(tmp_path_factory: pytest.TempPathFactory) -> Path:
    compiler = shutil.which("c++")
    if compiler is None or platform.machine() not in SETS:
        pytest.skip("no C++ compiler for this machine")
    return build(tmp_path_factory.mktemp("digest"), compiler, platform.machine())


@pytest.fixture(scope="module")
def reference(program: Path) -> list[str]:
    found = lines(program, "portable")
    assert len(found) > 900
    assert len({line.split()[-1] for line in found}) > 0.8 * len(found), "inputs differ"
    return found


@pytest.mark.parametrize("isa", instruction_sets())
def test_every_set_of_this_machine_gives_the_same_bits(
    program: Path, reference: list[str], isa: str
) -> None:
    assert lines(program, isa) == reference


def test_avx512_gives_the_same_bits_in_plain_code(tmp_path: Path, reference: list[str]) -> None:
    """For machines without it, and so that no bit depends on one maker's AVX-512."""
    compiler = shutil.which("c++")
    if compiler is None or platform.machine() != "x86_64" or not SIMDE.is_file():
        pytest.skip("needs libsimde-dev on x86; `make test` installs it as root")
    if "avx2" not in instruction_sets():
        pytest.skip("what SIMDe makes of it needs AVX2 to run in time")
    built = build(tmp_path, compiler, "x86_64 emulated", "-DFIRSTHAND_EMULATED")
    code = lines("objdump", "-d", tmp_path / "avx512.o")
    assert not any("zmm" in line for line in code), "a register that only AVX-512 has"
    assert lines(built, "avx512") == reference


def test_neon_gives_the_same_bits_under_emulation(tmp_path: Path, reference: list[str]) -> None:
    compiler, emulator = shutil.which("aarch64-linux-gnu-g++"), shutil.which("qemu-aarch64")
    if compiler is None or emulator is None:
        pytest.skip("needs g++-aarch64-linux-gnu and qemu-user; `make test` installs them as root")
    built = build(tmp_path, compiler, "aarch64", "-static")
    for isa in ("neon", "portable"):
        assert lines(emulator, built, isa) == reference, isa
