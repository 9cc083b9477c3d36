"""A scheduling policy of one's own: who wants the fewest new tokens goes first.

    python examples/shortest_first.py [MODEL]

The mean wait falls, and whoever wants much can wait for ever: the queue that Firsthand has by
itself (`firsthand.scheduling.waiting.FairQueue`) ages, and this one does not.
"""

import sys
from collections.abc import Set

from firsthand import LLM
from firsthand.scheduling.policy import CLASSES
from firsthand.scheduling.sequence import Sequence


class ShortestFirst:
    """A `firsthand.scheduling.waiting.Queue`: the scheduler asks it who may be next."""

    whole_length = True  # all blocks at admission, so nobody is evicted and comes back

    def __init__(self) -> None:
        self._waiting: dict[int, Sequence] = {}

    @property
    def num_waiting(self) -> tuple[int, ...]:
        classes = [one.class_index for one in self._waiting.values()]
        return tuple(classes.count(index) for index in range(len(CLASSES)))

    def sequences(self) -> dict[int, Sequence]:
        return dict(self._waiting)

    def add(self, sequence: Sequence) -> None:
        self._waiting[sequence.sequence_id] = sequence

    def remove(self, sequence: Sequence) -> None:
        del self._waiting[sequence.sequence_id]

    def heads(self, now_s: float, skip: Set[int]) -> list[Sequence]:
        """At most one of each class; here one of all. `skip` found no room in this step."""
        left = [one for one in self._waiting.values() if one.sequence_id not in skip]
        return sorted(left, key=lambda one: (one.request.stop.max_tokens, one.sequence_id))[:1]

    def begin_step(self, num_running: int) -> None:
        """Nothing to count: nobody's share is kept."""

    def admitted(self, sequence: Sequence) -> None:
        self.remove(sequence)

    def left(self, sequence: Sequence) -> None: ...
    def served(self, sequence: Sequence, num_tokens: int) -> None: ...


def main(model: str) -> None:
    with LLM(model, queue=ShortestFirst(), max_sequences=1) as llm:
        streams = [llm.stream("Once upon a", max_tokens=200, ignore_end=True)]
        next(streams[0])  # it runs, so the others wait
        for n in (40, 5, 20, 10):
            streams.append(llm.stream("Once upon a", max_tokens=n, ignore_end=True))
        done = [stream.completion() for stream in streams]
    for answer in sorted(done, key=lambda one: one.report.queue_ms):
        print(f"{answer.usage.completion_tokens:4} tokens, waited {answer.report.queue_ms:8.1f} ms")


if __name__ == "__main__":
    main(sys.argv[1] if len(sys.argv) > 1 else "smollm2-135m")
