"""An engine whose steps need memory, in a process that is refused any more of it.

Owns: the limit, and three steps of two requests. May not know: what is expected.
Read next: `test_reserve.py`, which starts it.
"""

from __future__ import annotations

import re
import resource
import time
from pathlib import Path

from firsthand.engine.engine import Engine
from firsthand.engine.facts import StepFacts
from firsthand.kvcache.blocks import BlockPool
from firsthand.memory.reserve import Reserve
from firsthand.request import Request, SamplingParams, StopRules
from firsthand.scheduling.limits import Limits
from firsthand.scheduling.plan import Drawn, StepPlan, StepResult
from firsthand.scheduling.scheduler import Scheduler

MIB = 1 << 20
RESERVE_MIB, LEFT_MIB = 64, 16


class Hungry:
    """A token of the prompt is a number of MiB that its step needs."""

    def run(self, plan: StepPlan) -> StepResult:
        held = bytearray(max(max(piece.token_ids) for piece in plan.slices) * MIB)
        drawn = tuple(Drawn(piece.sequence_id, 1) for piece in plan.slices if piece.draw)
        del held
        return StepResult(drawn, 0.0, 0.0)


def main() -> None:
    reserve = Reserve(time.monotonic, RESERVE_MIB * MIB)
    reserve.take()
    facts: list[StepFacts] = []
    scheduler = Scheduler(Limits(1000, 50, 4, 8), BlockPool(4, 50))
    engine = Engine(scheduler, Hungry(), time.monotonic, facts.append, relieve=reserve.give_up)
    status = Path("/proc/self/status").read_text(encoding="ascii")
    size = re.search(r"VmSize:\s+(\d+) kB", status)
    assert size is not None
    limit = int(size[1]) * 1024 + LEFT_MIB * MIB
    resource.setrlimit(resource.RLIMIT_AS, (limit, limit))
    for what, needs in (
        ("the reserve is given up", (50, 1)),
        ("one needs too much", (200, 1)),
        ("all are well", (1,)),
    ):
        for number, mib in enumerate(needs):
            name = f"{what} {number}"
            engine.add(Request(name, (mib,), SamplingParams(), StopRules(1), 0))
        ends = [event.finish.reason.value for event in engine.step() if event.finish]
        told = facts[-1]
        print(f"{what}: {ends}, {told.num_attempts} attempts, {told.num_failed} failed")


if __name__ == "__main__":
    main()
