"""The requests that a proof is made with: of many lengths, greedy and random, with and without
a memory of what was said.

Owns: the requests, and how their blocks come to meet in the cache.
May not know: models, engines, what is proven.
Read next: `parity.py`.

Prompts are ids spread over the vocabulary: what is proven is arithmetic, which knows no sense. The
lengths sit on both sides of whole blocks of 16; three prompts begin alike. End tokens are ignored,
so what runs together in which step depends on nothing but these numbers.
"""

from __future__ import annotations

from firsthand.generation.options import Options, read_options
from firsthand.request import Request

COMMON = 40  # tokens that the prompts of three begin with
NUM_CHOICES = 4

# Prompt tokens, new tokens.
SIZES = ((1, 14), (5, 20), (16, 9), (17, 24), (31, 16), (47, 11), (60, 18), (70, 13))
SAMPLINGS: tuple[Options, ...] = (
    {"temperature": 0.0},
    {"temperature": 0.8, "top_p": 0.9},
    {"temperature": 1.0, "top_k": 50, "repetition_penalty": 1.3},
    {"temperature": 1.0},
    {"temperature": 0.0, "frequency_penalty": 0.7, "presence_penalty": 0.2},
)
MAX_TOKENS = max(prompt + new for prompt, new in SIZES)


def requests(vocab_size: int, rounds: int = 1) -> list[Request]:
    """The eight requests, or `rounds` times as many; their seeds are far apart."""
    found = []
    for number in range(rounds * len(SIZES)):
        prompt_tokens, new_tokens = SIZES[number % len(SIZES)]
        options: Options = {
            **SAMPLINGS[number % len(SAMPLINGS)],
            "max_tokens": new_tokens,
            "ignore_end": True,
            "logprobs": 2,
            "seed": 1000 * (number + 1),
        }
        checked = read_options(options, frozenset())
        ids = [(7919 * at + 6029 * number + 13) % vocab_size for at in range(prompt_tokens)]
        if prompt_tokens > COMMON:
            ids[:COMMON] = [(4099 * at + 7) % vocab_size for at in range(COMMON)]
        found.append(
            Request(
                f"request {number} ({prompt_tokens} + {new_tokens} tokens)",
                tuple(ids),
                checked.sampling,
                checked.stop,
                1000 * (number + 1),
            )
        )
    return found
