"""One contract, every instruction set: the same bits from each kernel, also where it is emulated.

`digest.cpp` runs every kernel of a set on made inputs. It is built for this machine; with AVX-512
in plain code, if SIMDe is there; and for AArch64 if there is a cross compiler, run by qemu.
"""

from __future__ import annotations

import platform
import shutil
from pathlib import Path

import pytest

from tests.compute.native.building import lines, program, tables
from tests.compute.native.micro import instruction_sets

pytestmark = [pytest.mark.native, pytest.mark.slow]

SIMDE = Path("/usr/include/simde/x86/avx512.h")


@pytest.fixture(scope="module")
def digest(kernel_tables: list[str]) -> Path:
    return program("digest.cpp", kernel_tables)


@pytest.fixture(scope="module")
def reference(digest: Path) -> list[str]:
    found = lines(digest, "portable")
    assert len(found) > 900
    assert len({line.split()[-1] for line in found}) > 0.8 * len(found), "inputs differ"
    attention = [line for line in found if line.startswith("attend")]
    assert len(attention) == 4 * len(set(attention)), "both layouts, whole and in parts"
    return found


@pytest.mark.parametrize("isa", instruction_sets())
def test_every_set_of_this_machine_gives_the_same_bits(
    digest: Path, reference: list[str], isa: str
) -> None:
    assert lines(digest, isa) == reference


def test_avx512_gives_the_same_bits_in_plain_code(tmp_path: Path, reference: list[str]) -> None:
    """For machines without it, and so that no bit depends on one maker's AVX-512."""
    if not SIMDE.is_file() or platform.machine() != "x86_64":
        pytest.skip("needs libsimde-dev on x86; `make test` installs it as root")
    if "avx2" not in instruction_sets():
        pytest.skip("what SIMDe makes of it needs AVX2 to run in time")
    built = program(
        "digest.cpp",
        tables(tmp_path, "x86_64 emulated"),
        "x86_64 emulated",
        "-DFIRSTHAND_EMULATED",
    )
    code = lines("objdump", "-d", tmp_path / "avx512.o")
    assert not any("zmm" in line for line in code), "a register that only AVX-512 has"
    assert lines(built, "avx512") == reference


def test_neon_gives_the_same_bits_under_emulation(tmp_path: Path, reference: list[str]) -> None:
    emulator = shutil.which("qemu-aarch64")
    if emulator is None:
        pytest.skip("needs qemu-user; `make test` installs it as root")
    built = program("digest.cpp", tables(tmp_path, "aarch64"), "aarch64", "-static")
    for isa in ("neon", "portable"):
        assert lines(emulator, built, isa) == reference, isa
