"""What of a plan is fused for a card.

Owns: the list of rules, and the one that the CPU has no use for.
May not know: kernels.
Read next: `../fusion.py`, the rules of the CPU; `replay.py`.

Here a launch and a pass over memory are what fusing saves. Norms stay out of linear layers, and
linear layers out of each other: their kernels are few and their tiles the card's.
"""

from __future__ import annotations

from dataclasses import replace

from firsthand.compute.fusion import Rule, readers_of, rope_into_reader, writers_of
from firsthand.compute.plan import Op


def residual_into_norm(ops: list[Op]) -> list[Op]:
    """A sum that a norm reads is made by the norm's kernel, which writes both."""
    readers, writers = readers_of(ops), writers_of(ops)
    merged: dict[Op, Op] = {}
    gone: set[Op] = set()
    for op in ops:
        if op.name != "norm" or op.num_heads != 1:
            continue
        source = writers[op.inputs[0]]
        first = next(by for by in readers[op.inputs[0]] if by.name == "norm")
        if source.name == "add" and first is op:
            x, y = source.inputs
            outputs = (*source.outputs, *op.outputs)
            merged[source] = replace(op, inputs=(x,), residual=y, outputs=outputs)
            gone.add(op)
    return [merged.get(op, op) for op in ops if op not in gone]


RULES = (
    Rule("residual-norm", "reading the sum that was just written", residual_into_norm),
    Rule("rope", "writing and reading rotated keys", rope_into_reader),
)
