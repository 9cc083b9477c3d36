"""What carries work through the stages: the seam between the executor and whatever is below it.

Owns: `Links`, and the links of stages in one process.
May not know: Ray, what the work is.
Read next: `actors.py`, the links over workers of Ray.
"""

from __future__ import annotations

from collections.abc import Sequence
from itertools import pairwise
from typing import Protocol

from firsthand.cluster.pipeline.stage import Loaded, Stage
from firsthand.cluster.pipeline.work import Work


class Links(Protocol):
    """Raises EngineLost, naming the stage, once one is not there any more; of what a stage raises,
    the same."""

    @property
    def num_stages(self) -> int: ...

    def load(self, split: Sequence[int]) -> list[Loaded]:
        """Give each stage its layers, all at the same time."""

    def open_stores(self, num_blocks: int) -> list[int]:
        """The bytes of each."""

    def run(self, works: Sequence[Work]) -> list[Work]:
        """Each through all stages, in their order; they come back in it, too. Several are under
        way at a time, and no stage computes a later part before an earlier one."""

    def clocks(self) -> list[float]:
        """How many seconds later this process's clock is than that of each stage's."""

    def resident_bytes(self) -> list[int]:
        """Of each stage's process."""

    def close(self) -> None:
        """End the stages; again is allowed."""


class LocalLinks:
    """Stages in this process, one after another: nothing is won, and every bit is the same."""

    def __init__(self, stages: Sequence[Stage]) -> None:
        self._stages = stages

    @property
    def num_stages(self) -> int:
        return len(self._stages)

    def load(self, split: Sequence[int]) -> list[Loaded]:
        return [
            stage.load(first, last)
            for stage, (first, last) in zip(self._stages, ranges(split), strict=True)
        ]

    def open_stores(self, num_blocks: int) -> list[int]:
        return [stage.open_store(num_blocks) for stage in self._stages]

    def run(self, works: Sequence[Work]) -> list[Work]:
        done = []
        for work in works:
            for stage in self._stages:
                work = stage.step(work)
            done.append(work)
        return done

    def clocks(self) -> list[float]:
        return [0.0] * self.num_stages

    def resident_bytes(self) -> list[int]:
        return [stage.resident_bytes() for stage in self._stages]

    def close(self) -> None:
        """There is nothing to end."""


def ranges(split: Sequence[int]) -> list[tuple[int, int]]:
    """The first layer of each stage, and the one behind its last."""
    bounds = [sum(split[:stage]) for stage in range(len(split) + 1)]
    return list(pairwise(bounds))
