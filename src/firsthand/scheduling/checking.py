"""Whether the parts of a scheduler agree: for tests, between two steps.

Owns: what is true of the running and the waiting together.
May not know: how any of it comes about.
Read next: `scheduler.py`; the tables check their blocks themselves.
"""

from __future__ import annotations

from firsthand.scheduling.limits import Limits
from firsthand.scheduling.policy import Policy
from firsthand.scheduling.requests import Requests
from firsthand.scheduling.running import Running
from firsthand.scheduling.waiting import Queue


def check_sequences(
    all_running: Running, queue: Queue, requests: Requests, policy: Policy, limits: Limits
) -> None:
    """Raise AssertionError if the sequences, or those who count them, disagree."""
    running = all_running.sequences
    for sequence in running.values():
        assert sequence.is_running, "a running sequence does not know it"
        assert 0 <= sequence.num_computed < len(sequence.known), "nothing left to compute"
        assert len(sequence.known) <= sequence.max_stored, "longer than was checked"
        assert sequence.num_preemptions <= policy.max_preemptions, "evicted too often"
    assert sum(all_running.by_class) == len(running), "the running are miscounted"
    assert len(running) <= limits.max_sequences, "too many run"
    waiting = queue.sequences()
    assert not running.keys() & waiting.keys(), "a sequence waits and runs"
    assert sum(queue.num_waiting) == len(waiting), "the waiting are miscounted"
    for sequence in waiting.values():
        assert not sequence.block_ids, "a waiting sequence holds blocks"
    requests.check(running.keys() | waiting.keys())
