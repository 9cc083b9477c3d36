"""llama.cpp's own perplexity of a text: its tokens, its windows, its logits.

Owns: the definition, which is that of its program llama-perplexity: windows side by side, second
halves scored, BOS in the place of a window's first token where the model's prompts begin with it.
May not know: the other engines. Read next: `run_llamacpp.py`, which gives the logits.

    python perplexity_llamacpp.py MODEL.gguf TEXT WINDOW WINDOWS    →  one line of JSON
"""

from __future__ import annotations

import json
import math
import sys
from pathlib import Path
from typing import Any

import llama_cpp as llama
from run_llamacpp import LlamaCpp


def tokens_of(vocabulary: Any, content: bytes) -> list[int]:
    """No special tokens are read from the text, none are added."""
    room = len(content) + 8
    found = (llama.llama_token * room)()
    count = llama.llama_tokenize(vocabulary, content, len(content), found, room, False, False)
    if count < 0:
        raise SystemExit("the text has more tokens than bytes")
    return list(found[:count])


def main(path: str, text: Path, window: int, num_windows: int) -> None:
    engine = LlamaCpp(path)
    vocabulary = engine.vocabulary
    token_ids = tokens_of(vocabulary, text.read_bytes())
    if llama.llama_vocab_get_add_bos(vocabulary):
        head = [llama.llama_vocab_bos(vocabulary)]
        token_ids = head + token_ids
    else:
        head = []
    start = window // 2 + 1
    nlls = []
    for at in range(0, min(num_windows * window, len(token_ids) - window + 1), window):
        read = head + token_ids[at + len(head) : at + window]
        nlls.append(engine.score(read, start))
    scored = len(nlls) * (window - start)
    value = math.exp(math.fsum(nlls) / scored)
    print(json.dumps({"perplexity": value, "tokens_scored": scored, "windows": len(nlls)}))


if __name__ == "__main__":
    main(sys.argv[1], Path(sys.argv[2]), int(sys.argv[3]), int(sys.argv[4]))
