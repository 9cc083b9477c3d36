"""How long the sampler takes for a step of 1, 16 and 256 rows: one JSON line, microseconds.

Owns: this measurement. May not know: models, steps.
Read next: `src/firsthand/engine/sampler.py`.

    python bench/sampler.py [vocabulary size] [repeats] [threads]
"""

from __future__ import annotations

import json
import statistics
import sys
import time

import numpy as np
from numpy.typing import NDArray

from firsthand.compute.native import _native
from firsthand.engine.sampler import Sampler
from firsthand.request import SamplingParams
from firsthand.scheduling.plan import Draw

KINDS = {
    "greedy": SamplingParams(0.0),
    "greedy_logprobs": SamplingParams(0.0, logprobs=5),
    "temperature": SamplingParams(0.8),
    "top_p": SamplingParams(0.8, top_p=0.9),
    "top_k": SamplingParams(0.8, top_k=50),
    "all": SamplingParams(0.8, 50, 0.9, 0.05, 1.1, 0.1, 0.1, logprobs=5),
}
ROWS = (1, 16, 256)
NUM_WARM = 2


def measured_us(
    sampler: Sampler, logits: NDArray[np.float32], sampling: SamplingParams, repeats: int
) -> list[float]:
    history = tuple(range(0, logits.shape[1], 50)) if sampling.needs_history else ()
    times = []
    for position in range(repeats + NUM_WARM):
        draws = [
            Draw(sampling, row, position, history, len(history) // 2) for row in range(len(logits))
        ]
        start = time.perf_counter()
        sampler(logits, draws)
        times.append((time.perf_counter() - start) * 1e6)
    return times[NUM_WARM:]


def main(vocab_size: int = 49_152, repeats: int = 200, threads: int = 2) -> None:
    logits = np.random.default_rng(0).normal(0, 3, (max(ROWS), vocab_size)).astype(np.float32)
    sampler = Sampler(_native.Threads(threads))
    found: dict[str, dict[str, dict[str, float]]] = {}
    for name, sampling in KINDS.items():
        found[name] = {}
        for rows in ROWS:
            times = measured_us(sampler, logits[:rows], sampling, max(5, repeats // rows))
            found[name][str(rows)] = {
                "min": round(min(times), 1),
                "median": round(statistics.median(times), 1),
                "max": round(max(times), 1),
            }
    facts = {"bench": "sampler", "vocab": vocab_size, "repeats": repeats, "threads": threads}
    print(json.dumps({**facts, "us_by_rows": found}))


if __name__ == "__main__":
    main(*map(int, sys.argv[1:]))
