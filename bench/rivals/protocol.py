"""What every engine of the comparison is asked, and how it answers: JSON lines on stdin and stdout.

Owns: the two questions, the clock around an answer, the line that says what went wrong.
May not know: any engine. It runs in each rival's own interpreter, so it imports the standard
library only (and numpy, which all of them bring, when a text is scored).
Read next: one of the `run_*.py`; `bench/compare.py`, which asks.

    {"op": "generate", "prompts": [[ids]], "new_tokens": n}  →  {"first_s": …, "all_s": …}
    {"op": "score", "window": [ids], "start": i}             →  {"nll": …}

Generation is greedy and does not end before `new_tokens`. `first_s` is the time until every
prompt has its first new token, null where an engine does not say. `nll` is the negative
log-likelihood of the tokens from index `start` on, summed, each given all tokens before it.
"""

from __future__ import annotations

import json
import os
import sys
import time
from collections.abc import Callable, Sequence
from typing import Any, Protocol

THREADS = int(os.environ.get("BENCH_THREADS", "2"))

Prompts = Sequence[Sequence[int]]


class Rival(Protocol):
    """`start` does what comes before the clock, such as making room for the sizes asked for.

    `generate` calls `on_first` when every prompt has its first new token, and gives the ids.
    """

    def prepare(self, num_prompts: int, prompt_tokens: int, new_tokens: int) -> None: ...

    def generate(
        self, prompts: Prompts, new_tokens: int, on_first: Callable[[], None]
    ) -> Sequence[Sequence[int]]: ...

    def score(self, window: Sequence[int], start: int) -> float: ...


def serve(make: Callable[[], Rival]) -> None:
    """Answer until stdin ends. What an engine prints goes to stderr."""
    answers = os.fdopen(os.dup(1), "w", encoding="utf-8")
    os.dup2(2, 1)

    def say(value: dict[str, Any]) -> None:
        answers.write(json.dumps(value) + "\n")
        answers.flush()

    try:
        rival = make()
        for line in sys.stdin:
            say(answer(rival, json.loads(line)))
    except Exception as error:
        say({"error": f"{type(error).__name__}: {error}"})
        raise


def answer(rival: Rival, question: dict[str, Any]) -> dict[str, Any]:
    if question["op"] == "score":
        return {"nll": rival.score(question["window"], question["start"])}
    prompts, new_tokens = question["prompts"], question["new_tokens"]
    rival.prepare(len(prompts), len(prompts[0]), new_tokens)
    first: list[float] = []
    began = time.perf_counter()
    outputs = rival.generate(prompts, new_tokens, lambda: first.append(time.perf_counter()))
    ended = time.perf_counter()
    if [len(ids) for ids in outputs] != [new_tokens] * len(prompts):
        raise ValueError(f"{[len(ids) for ids in outputs]} new tokens instead of {new_tokens}")
    return {"first_s": first[0] - began if first else None, "all_s": ended - began}


def nll_of_rows(rows: Any, targets: Sequence[int]) -> float:
    """Of one row of logits per target, in float64."""
    import numpy as np

    total = 0.0
    for row, target in zip(rows, targets, strict=True):
        wide = np.asarray(row, dtype=np.float64)
        top = wide.max()
        total += float(np.log(np.exp(wide - top).sum()) + top - wide[target])
    return total
