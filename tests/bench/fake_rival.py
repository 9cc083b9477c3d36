"""A rival without a model, for the tests of the comparison: it answers at once, or as told fails.

Owns: its arithmetic. May not know: who asks.
Read next: `bench/rivals/protocol.py`.
"""

from __future__ import annotations

import sys
from collections.abc import Callable, Sequence
from pathlib import Path

ROOT = Path(__file__).resolve().parents[2]


class FakeRival:
    def __init__(self, kind: str) -> None:
        self._kind = kind
        print("a word on stdout, as engines have them", flush=True)

    def prepare(self, num_prompts: int, prompt_tokens: int, new_tokens: int) -> None:
        if self._kind == "no room":
            raise MemoryError("no room")

    def generate(
        self, prompts: Sequence[Sequence[int]], new_tokens: int, on_first: Callable[[], None]
    ) -> Sequence[Sequence[int]]:
        on_first()
        return [[0] * (new_tokens - (self._kind == "short")) for _ in prompts]

    def score(self, window: Sequence[int], start: int) -> float:
        return 2.0 * (len(window) - start)


if __name__ == "__main__":
    sys.path.insert(0, str(ROOT))
    from bench.rivals.protocol import serve

    serve(lambda: FakeRival(sys.argv[2]))
