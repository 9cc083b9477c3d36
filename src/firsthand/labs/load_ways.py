"""A load in a process of its own, which says what it took.

Owns: four ways to load.
May not know: who asks.
Read next: `load_labs.py`.
"""

from __future__ import annotations

import json
import sys
import time
from collections.abc import Callable
from contextlib import closing
from pathlib import Path

import numpy as np

from firsthand.generation.load_options import LoadOptions
from firsthand.generation.loading import load_model
from firsthand.generation.reading import read_spec
from firsthand.models import families
from firsthand.processes import peak_resident_bytes
from firsthand.quantize.forward import Weights
from firsthand.weights.loading import load
from firsthand.weights.mapped import MappedFile
from firsthand.weights.open import open_checkpoint


def doubled(model: Path) -> int:
    """Every matrix as floats, then every one moved to where it is computed."""
    with closing(open_checkpoint(model)) as checkpoint:
        family = families.family(read_spec(checkpoint))
        weights = Weights()
        slots = family.slots(read_spec(checkpoint))
        load(checkpoint, slots, family.gguf_layout, weights, "none")
        read = [weights.matrix(name) for name in weights.sources]
        moved = [matrix.copy() for matrix in read]
    return sum(matrix.nbytes for matrix in moved)


def ours(model: Path) -> int:
    loaded = load_model(model, LoadOptions(quantization="none", max_context=64, pack_cache=False))
    return loaded.executor.memory().weights_bytes


def read(model: Path) -> int:
    content = model.read_bytes()
    return int(np.frombuffer(content, np.float32, 1024, len(content) - 4096).nbytes)


def mapped(model: Path) -> int:
    with closing(MappedFile(model)) as file:
        return file.view(model.stat().st_size - 4096, 4096).copy().nbytes


WAYS: dict[str, Callable[[Path], int]] = {
    "doubled": doubled,
    "ours": ours,
    "read": read,
    "mapped": mapped,
}


def main() -> None:
    way, model = sys.argv[1:]
    before_bytes = peak_resident_bytes()
    began_s = time.perf_counter()
    held_bytes = WAYS[way](Path(model))
    ms = (time.perf_counter() - began_s) * 1e3
    peak_bytes = peak_resident_bytes() - before_bytes
    print(json.dumps({"held_bytes": held_bytes, "peak_bytes": peak_bytes, "ms": ms}))


if __name__ == "__main__":
    main()
