"""What prompt lookup brings: on text that repeats its prompt, and on text that does not.

Owns: this measurement: pairs of runs, without and with it, in turns, in one process; each pair
gives a ratio of decoding times. Tokens are compared with ==.
May not know: how a token is guessed.
Read next: `docs/generation.md`.

    python bench/speculation.py MODEL [pairs] [quantization] [draft]

One JSON line per text: the ratios (median, least, most; above 1 is faster), how many tokens were
guessed and how many of them were right. `draft` names a model that guesses in place of the lookup.
"""

from __future__ import annotations

import json
import statistics
import sys
from typing import Any

from firsthand import LLM
from firsthand.generation import Completion

LIST = "\n".join(
    f"{number}. {name}, born in {year}, lives in {town} and works as a {work}."
    for number, (name, year, town, work) in enumerate(
        (
            ("Anna Weber", 1981, "Leipzig", "carpenter"),
            ("Tomas Novak", 1975, "Brno", "bus driver"),
            ("Maria Rossi", 1990, "Turin", "teacher"),
            ("Jan de Vries", 1968, "Utrecht", "gardener"),
            ("Sofia Lind", 1984, "Uppsala", "nurse"),
            ("Pedro Alves", 1979, "Porto", "baker"),
        ),
        1,
    )
)
TEXTS: dict[str, tuple[str, dict[str, Any]]] = {
    "repeats": (
        f"{LIST}\n\nThe same list again:\n\n{LIST}\n\nAnd again:\n\n1.",
        {"temperature": 0},
    ),
    "story": ("Once upon a time, far away from here, there was", {"temperature": 1.0, "seed": 1}),
    "answer": (
        "Explain to a child how the moon moves the water of the sea, in your own words.",
        {"temperature": 0.8, "seed": 2, "repetition_penalty": 1.2},
    ),
}
NUM_TOKENS = 192


def measure(plain: LLM, guessing: LLM, name: str, pairs: int) -> dict[str, Any]:
    prompt, options = TEXTS[name]
    ratios: list[float] = []
    last: Completion | None = None
    for at in range(pairs + 1):
        runs = {}
        for which in (plain, guessing) if at % 2 else (guessing, plain):
            runs[which is guessing] = which.generate(
                prompt, max_tokens=NUM_TOKENS, ignore_end=True, **options
            )
        if runs[True].token_ids != runs[False].token_ids:
            raise SystemExit(f"{name}: other tokens with guesses than without")
        last = runs[True]
        if at:  # the first pair warms up
            ratios.append(runs[False].report.predicted_ms / last.report.predicted_ms)
    assert last is not None, "at least one pair"
    return {
        "bench": "speculation",
        "text": name,
        "ratio": {
            "median": round(statistics.median(ratios), 3),
            "min": round(min(ratios), 3),
            "max": round(max(ratios), 3),
        },
        "tokens_per_s": round(last.report.predicted_per_second or 0.0, 1),
        "guesses": last.report.num_guesses,
        "accepted": last.report.num_accepted,
        "steps": last.report.num_steps,
        "tokens": NUM_TOKENS,
    }


def main(model: str, pairs: int = 5, quantization: Any = "auto", draft: str = "") -> None:
    config: dict[str, Any] = {"model": draft} if draft else {"method": "ngram"}
    sizes: dict[str, Any] = {"max_context": 1024, "max_sequences": 1, "quantization": quantization}
    with (
        LLM(model, **sizes) as plain,
        LLM(model, **sizes, speculative_config=config) as guessing,
    ):
        for name in TEXTS:
            found = measure(plain, guessing, name, pairs)
            print(json.dumps({**found, "quantization": quantization}), flush=True)


if __name__ == "__main__":
    given = sys.argv[1:]
    if not given:
        raise SystemExit("usage: speculation.py MODEL [pairs] [quantization] [draft]")
    main(given[0], *map(int, given[1:2]), *given[2:])
