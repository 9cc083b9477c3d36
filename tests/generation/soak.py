"""Many short requests through one engine, and what the process holds meanwhile.

Owns: the mix of requests, and a line of JSON per checkpoint. A process of its own: what other tests
left behind is not measured.
Read next: `test_soak.py`, which starts it and judges.

    python tests/generation/soak.py MODEL_FOLDER NUM_REQUESTS SEED
"""

from __future__ import annotations

import gc
import json
import random
import sys
from pathlib import Path
from typing import Any

from firsthand import LLM
from firsthand.engine.facts import StepFacts
from firsthand.generation.options import Options
from firsthand.generation.stream import TextStream

AT_ONCE = 24
NUM_CHECKPOINTS = 10


def main(arguments: list[str]) -> None:
    model, num_requests, seed = arguments[0], int(arguments[1]), int(arguments[2])
    source = random.Random(seed)
    steps = {"num_evicted": 0, "num_hits": 0, "num_preempted": 0}
    last: list[StepFacts] = []

    def listen(step: StepFacts) -> None:
        last[:] = [step]
        steps["num_evicted"] = step.num_evicted_blocks
        steps["num_hits"] += step.planned.num_prefix_hit_tokens
        steps["num_preempted"] += step.planned.num_preempted

    with LLM(model, max_context=128, max_sequences=8, threads=1) as llm, llm.listening(listen):
        open_streams: list[TextStream] = []
        for number in range(1, num_requests + 1):
            open_streams.append(llm.stream(prompt(source), **options(source, number)))
            if len(open_streams) >= AT_ONCE:
                end(open_streams.pop(0), source)
            if number % (num_requests // NUM_CHECKPOINTS) == 0:
                while open_streams:
                    end(open_streams.pop(0), source)
                llm.generate("a", max_tokens=1)  # the last to be told of: nothing runs now
                gc.collect()
                print(json.dumps({"num_requests": number, **held(last[0]), **steps}), flush=True)


def prompt(source: random.Random) -> list[int]:
    length = source.randrange(1, 60)
    if source.random() < 0.3:
        return [7] * 40 + [source.randrange(256) for _ in range(length // 3 + 1)]
    return [source.randrange(256) for _ in range(length)]


def options(source: random.Random, number: int) -> Any:
    chosen: Options = {
        "max_tokens": source.randrange(1, 12),
        "temperature": source.choice((0.0, 1.0)),
        "ignore_end": True,
        "tenant": f"tenant {number}",
        "cache_salt": source.choice(("", "", "", f"salt {number}")),
        "priority": source.choice(("urgent", "normal", "background")),
        "logprobs": source.choice((None, 3)),
        "repetition_penalty": source.choice((None, 1.2)),
    }
    return chosen | {"n": source.choice((1, 1, 1, 3))}


def end(stream: TextStream, source: random.Random) -> None:
    """Read it, or leave it after a piece or at once."""
    kind = source.random()
    if kind < 0.8:
        stream.completions()
    elif kind < 0.9:
        next(stream)
        stream.close()
    else:
        stream.close()


def held(step: StepFacts) -> dict[str, int]:
    for line in Path("/proc/self/status").read_text(encoding="ascii").splitlines():
        if line.startswith("VmRSS:"):
            return {
                "rss_bytes": int(line.split()[1]) * 1024,
                "num_used_blocks": step.num_used_blocks,
                "num_running": step.num_running,
                "num_waiting": step.num_waiting,
            }
    raise RuntimeError("the system tells no resident memory")


if __name__ == "__main__":
    main(sys.argv[1:])
