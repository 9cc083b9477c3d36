"""A plan replayed without Python: it allocates nothing, and the sanitizers find nothing.

`replay.cpp` has the plan, `digest.cpp` every kernel at odd shapes. Both are built here; `make
sanitize` runs all tests of the kernels on a sanitized extension, which takes longer.
"""

from __future__ import annotations

import platform
from pathlib import Path

import pytest

from tests.compute.native.building import lines, program, tables
from tests.compute.native.micro import instruction_sets

pytestmark = [pytest.mark.native, pytest.mark.slow]

SANITIZERS = {
    "address,undefined": ["-fsanitize=address,undefined", "-fno-sanitize-recover=all"],
    "thread": ["-fsanitize=thread"],
}
MACHINE = platform.machine()


def test_a_step_allocates_nothing(kernel_tables: list[str]) -> None:
    """Counted: every malloc of the program, from the third run on."""
    replay = program("replay.cpp", kernel_tables)
    for isa in instruction_sets():
        counts = dict(line.split(": ") for line in lines(replay, isa))
        if counts.pop("a vector") == "0 allocations":
            pytest.skip("this C library's malloc cannot be counted")
        assert counts == {
            f"{threads} threads, {rows}": "0 allocations"
            for threads in (1, 2)
            for rows in ("many rows", "one row")
        }


@pytest.mark.parametrize("sanitizer", SANITIZERS)
def test_the_sanitizers_find_nothing(sanitizer: str, tmp_path: Path) -> None:
    """Addresses and undefined behaviour in each kernel and the plan; races in the plan."""
    options = [*SANITIZERS[sanitizer], "-O1", "-g1"]
    objects = tables(tmp_path, MACHINE, *options)
    for source in ("replay.cpp", "digest.cpp")[: 1 if sanitizer == "thread" else 2]:
        built = program(source, objects, MACHINE, *options)
        for isa in instruction_sets():
            assert lines(built, isa)
