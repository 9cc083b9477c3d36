"""A long text in windows that a model can read one at a time.

Owns: where a window begins and ends, and which of its tokens are scored.
May not know: models, text.
Read next: `perplexity.py`.

A window holds `size` tokens, and the next one begins where it ends: nothing is read twice. Every
token but a window's first is scored, given all tokens of the window before it. What the first one
is depends on the model:

- a model whose prompts begin with BOS has BOS there, so every token of the text is scored, once;
- any other has a token of the text there, which is the context of the second and is not scored.

The last window is shorter where the text ends within it. One with nothing to score is left out.
"""

from __future__ import annotations

from collections.abc import Sequence


def windows(token_ids: Sequence[int], size: int, bos_id: int | None) -> list[tuple[int, ...]]:
    """Each of 2 to `size` tokens. `bos_id` None: the model's prompts begin without one."""
    head = () if bos_id is None else (bos_id,)
    piece = size - len(head)
    cut = [head + tuple(token_ids[at : at + piece]) for at in range(0, len(token_ids), piece)]
    return [window for window in cut if len(window) >= 2]
