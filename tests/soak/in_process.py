"""The engine without HTTP, in a process of its own: so many answers at once, whenever it is told.

Owns: the run that the server is measured against. May not know: what is expected.
Read next: `test_speed.py`. For each number N that is read, the prompts of round N are answered, and
the seconds that this took are printed.

    python -m tests.soak.in_process MODEL NUM_ANSWERS MAX_TOKENS
"""

from __future__ import annotations

import sys
import time

from firsthand.generation import LLM


def prompt(number: int, index: int) -> str:
    """No two rounds have one alike, so nothing is found computed."""
    return f"{number} {index}: a story about a river and the town on it."


def main(model: str, num: int, max_tokens: int) -> None:
    with LLM(model, max_context=2048) as llm:
        print("ready", flush=True)
        for line in sys.stdin:
            began_s = time.perf_counter()
            streams = [
                llm.stream(
                    prompt(int(line), index), max_tokens=max_tokens, ignore_end=True, seed=index
                )
                for index in range(num)
            ]
            for one in streams:
                one.completion()
            print(time.perf_counter() - began_s, flush=True)


if __name__ == "__main__":
    main(sys.argv[1], int(sys.argv[2]), int(sys.argv[3]))
