"""A pickled checkpoint against safetensors: how long until every value has been in memory once.

Owns: both files, the child that reads one. May not know: the package.
Read next: `docs/measure.md`.

Both hold the same float32 tensors, and both are read warm: the disk's part is the same. A pickle is
copied tensor by tensor, and reading one can run what it says; safetensors is mapped. Needs torch
and safetensors, which the package does not: so this is a script.

    python bench/formats.py --mib 400
"""

from __future__ import annotations

import argparse
import json
import subprocess
import sys
import tempfile
import time
from pathlib import Path

READERS = {
    "pickle": (
        "import torch; t = torch.load(PATH, weights_only=True, map_location='cpu')",
        "weights.pt",
    ),
    "safetensors": (
        "from safetensors.torch import load_file; t = load_file(PATH)",
        "model.safetensors",
    ),
}
CHILD = """
import resource, sys, time, torch
PATH = sys.argv[1]
began = time.perf_counter()
{read}
opened = time.perf_counter() - began
sum(float(one.sum()) for one in t.values())
touched = time.perf_counter() - began
print(opened, touched, resource.getrusage(resource.RUSAGE_SELF).ru_maxrss // 1024)
"""


def write_files(folder: Path, mib: int) -> None:
    import torch
    from safetensors.torch import save_file

    side = 1024
    tensors = {f"layer.{i}.weight": torch.randn(side, side) for i in range(mib // 4)}
    torch.save(tensors, folder / "weights.pt")
    save_file(tensors, folder / "model.safetensors")


def measure(folder: Path, reader: str) -> tuple[float, float, int]:
    """Seconds until the names are there, until every value was read, and the peak in MiB."""
    code, file = READERS[reader]
    command = [sys.executable, "-c", CHILD.replace("{read}", code), str(folder / file)]
    words = subprocess.run(command, capture_output=True, text=True, check=True).stdout.split()
    return float(words[0]), float(words[1]), int(words[2])


def main() -> None:
    parser = argparse.ArgumentParser(description="A pickled checkpoint against safetensors.")
    parser.add_argument("--mib", type=int, default=400)
    parser.add_argument("--repeats", type=int, default=5)
    given = parser.parse_args()
    with tempfile.TemporaryDirectory() as name:
        folder = Path(name)
        write_files(folder, given.mib)
        found: dict[str, list[tuple[float, float, int]]] = {reader: [] for reader in READERS}
        for _ in range(given.repeats):
            for reader in READERS:
                found[reader].append(measure(folder, reader))
        for reader, runs in found.items():
            opened, touched, peak = (
                sorted(column)[len(runs) // 2] for column in zip(*runs, strict=True)
            )
            line = {"bench": "formats", "at": int(time.time()), "reader": reader, "mib": given.mib}
            print(json.dumps({**line, "open_s": opened, "read_s": touched, "peak_mib": peak}))


if __name__ == "__main__":
    main()
