"""Which stage has how many layers.

Owns: the arithmetic: the cuts whose slowest stage is the quickest; a split that was asked for, read
and checked.
May not know: how costs were measured, what a layer is.
Read next: `stage.py`, which has what was cut.
"""

from __future__ import annotations

from collections.abc import Sequence
from itertools import accumulate

from firsthand.checks import check_integer, shown
from firsthand.errors import InvalidRequest
from firsthand.values import dataclass

MAX_STAGES = 64


@dataclass(frozen=True, slots=True)
class Costs:
    """What the parts of a model cost, in one unit: each layer; the embedding, which the first stage
    has besides; norm and head, which the last one has."""

    layers: tuple[float, ...]
    before: float = 0.0
    after: float = 0.0

    def of_stages(self, split: Sequence[int]) -> list[float]:
        """That of each stage with so many layers."""
        ends = list(accumulate(split))
        costs = [sum(self.layers[end - n : end]) for n, end in zip(split, ends, strict=True)]
        costs[0] += self.before
        costs[-1] += self.after
        return costs


def choose_split(costs: Costs, num_stages: int) -> tuple[int, ...]:
    """Layers per stage, at least one each, so that the slowest stage costs least."""
    num_layers = len(costs.layers)
    check_stages(num_stages, num_layers)
    sums = [0.0, *accumulate(costs.layers)]

    def cost(stage: int, first: int, last: int) -> float:
        own = sums[last] - sums[first]
        own += costs.before if stage == 0 else 0.0
        return own + (costs.after if stage == num_stages - 1 else 0.0)

    # least[last]: the slowest of the stages so far where they have the layers before `last`.
    least: dict[int, tuple[float, tuple[int, ...]]] = {0: (0.0, ())}
    for stage in range(num_stages):
        left = num_stages - 1 - stage
        following: dict[int, tuple[float, tuple[int, ...]]] = {}
        for first, (slowest, split) in least.items():
            for last in range(first + 1, num_layers - left + 1):
                found = max(slowest, cost(stage, first, last)), (*split, last - first)
                if last not in following or found < following[last]:
                    following[last] = found
        least = following
    return least[num_layers][1]


def even_split(num_layers: int, num_stages: int) -> tuple[int, ...]:
    """The same number of layers in each stage, or one more in the first ones."""
    check_stages(num_stages, num_layers)
    each, more = divmod(num_layers, num_stages)
    return tuple(each + (stage < more) for stage in range(num_stages))


def read_split(text: str, num_stages: int) -> tuple[int, ...] | None:
    """Of "18,12" the layers of each stage; None for "auto". Raises InvalidRequest."""
    if text == "auto":
        return None
    parts = text.split(",")
    if not all(part.isascii() and part.isdigit() and len(part) < 6 for part in parts):
        raise InvalidRequest("split", f"must be auto, or layers such as 18,12; not {shown(text)}")
    split = tuple(int(part) for part in parts)
    if len(split) != num_stages or not all(split):
        raise InvalidRequest(
            "split",
            f"{text} gives layers to {sum(map(bool, split))} stages; there are {num_stages}",
        )
    return split


def check_split(split: Sequence[int], num_layers: int) -> None:
    if sum(split) != num_layers:
        raise InvalidRequest(
            "split", f"has {sum(split)} layers together, and the model {num_layers}"
        )


def check_stages(num_stages: int, num_layers: int = MAX_STAGES) -> None:
    check_integer("stages", num_stages, 1, min(num_layers, MAX_STAGES))
