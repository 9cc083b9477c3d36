"""How long one row of logits takes to become a token: one JSON line, microseconds.

Owns: this measurement. May not know: models, steps.
Read next: `src/firsthand/engine/sampler.py`.

    python bench/sampler.py [vocabulary size] [repeats]
"""

from __future__ import annotations

import json
import statistics
import sys
import time

import numpy as np
from numpy.typing import NDArray

from firsthand.engine.sampler import sample
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


def measured_us(logits: NDArray[np.float32], sampling: SamplingParams, repeats: int) -> list[float]:
    history = tuple(range(0, logits.shape[1], 50)) if sampling.needs_history else ()
    times = []
    for position in range(repeats + 5):
        draws = [Draw(sampling, 1, position, history, len(history) // 2)]
        start = time.perf_counter()
        sample(logits, draws)
        times.append((time.perf_counter() - start) * 1e6)
    return times[5:]


def main(vocab_size: int = 49_152, repeats: int = 200) -> None:
    logits = np.random.default_rng(0).normal(0, 3, (1, vocab_size)).astype(np.float32)
    rows = {}
    for name, sampling in KINDS.items():
        times = measured_us(logits, sampling, repeats)
        rows[name] = {
            "min": round(min(times), 1),
            "median": round(statistics.median(times), 1),
            "max": round(max(times), 1),
        }
    print(json.dumps({"bench": "sampler", "vocab": vocab_size, "repeats": repeats, "us": rows}))


if __name__ == "__main__":
    main(*map(int, sys.argv[1:]))
