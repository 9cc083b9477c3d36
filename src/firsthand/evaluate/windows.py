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

Two other ways are the definitions of other programs, so that figures can be compared with theirs:

- `strided`: windows that overlap. Each begins `stride` tokens after the one before, and what that
  one scored is only context; BOS stands once, before the text. Source: transformers' page on the
  perplexity of fixed-length models.
- `halves`: windows side by side of which the second half is scored; what does not fill one is left
  out, and BOS takes the place of a window's first token. Source: llama.cpp's llama-perplexity.
"""

from __future__ import annotations

from collections.abc import Sequence

from firsthand.values import dataclass


@dataclass(frozen=True, slots=True)
class Window:
    """The tokens that are read together; those from `first` on are scored."""

    token_ids: tuple[int, ...]
    first: int = 1


def strided(token_ids: Sequence[int], size: int, stride: int, bos_id: int | None) -> list[Window]:
    """`stride` is 1 to `size`."""
    whole = (() if bos_id is None else (bos_id,)) + tuple(token_ids)
    found: list[Window] = []
    reached = 0
    for begin in range(0, len(whole), stride):
        end = min(begin + size, len(whole))
        if end - begin >= 2:
            found.append(Window(whole[begin:end], max(1, reached - begin)))
        reached = end
        if end == len(whole):
            break
    return found


def halves(token_ids: Sequence[int], size: int, bos_id: int | None) -> list[Window]:
    """`size` is 4 or more."""
    whole = (() if bos_id is None else (bos_id,)) + tuple(token_ids)
    head = () if bos_id is None else (bos_id,)
    return [
        Window(head + whole[at + len(head) : at + size], size // 2 + 1)
        for at in range(0, len(whole) - size + 1, size)
    ]


def windows(token_ids: Sequence[int], size: int, bos_id: int | None) -> list[tuple[int, ...]]:
    """Each of 2 to `size` tokens. `bos_id` None: the model's prompts begin without one."""
    head = () if bos_id is None else (bos_id,)
    piece = size - len(head)
    cut = [head + tuple(token_ids[at : at + piece]) for at in range(0, len(token_ids), piece)]
    return [window for window in cut if len(window) >= 2]
