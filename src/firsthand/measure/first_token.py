"""A process that loads a model, answers with one token, and says what that took.

Owns: its two lines: when the first token is there, and what the memory held.
May not know: who waits for it.
Read next: `startup.py`, the parent.

    python -m firsthand.measure.first_token MODEL PROMPT_TOKENS OPTIONS

OPTIONS is a JSON object of `LoadOptions`' fields.
"""

from __future__ import annotations

import json
import sys
from collections.abc import Sequence


def main(arguments: Sequence[str]) -> int:
    if sys.pycache_prefix is not None:  # the parent's folder
        sys.dont_write_bytecode = False
    from firsthand.processes import expect_little_garbage

    expect_little_garbage()  # as the command line does
    from firsthand.errors import FirsthandError
    from firsthand.generation.llm import LLM

    model, prompt_tokens, options = arguments
    try:
        with LLM(model, **json.loads(options)) as llm:
            from firsthand.measure.latency import prompt_of
            from firsthand.processes import peak_resident_bytes

            prompt = prompt_of(int(prompt_tokens), llm.loaded.limits.vocab_size)
            done = llm.generate(prompt, max_tokens=1, temperature=0, ignore_end=True)
            _say({"token_ids": list(done.token_ids)})
            memory = llm.memory(len(prompt))
            _say(
                {
                    "peak_rss_bytes": peak_resident_bytes(),
                    "weights_bytes": memory.weights_bytes,
                    "kv_used_bytes": memory.kv_used_bytes,
                    "load_ms": llm.loaded.times.total_ms,
                }
            )
    except FirsthandError as error:
        _say({"error": str(error)})
        return 1
    return 0


def _say(value: object) -> None:
    print(json.dumps(value), flush=True)


if __name__ == "__main__":
    sys.exit(main(sys.argv[1:]))
