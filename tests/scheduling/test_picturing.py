"""A picture of who runs and who waits, against hand-written queues.

Owns: proof of `picturing.py`. Read next: `bench.py`.
"""

from __future__ import annotations

from firsthand.request import Priority
from firsthand.scheduling.picturing import runs_of
from tests.scheduling.bench import Bench


def test_a_picture_has_whoever_runs_with_its_blocks_and_whoever_waits_in_order() -> None:
    bench = Bench(sequences=2, shares=True)
    prompt = list(range(9))
    bench.add("first", prompt, 20)
    bench.step()
    bench.add("second", prompt, 20)
    bench.step()
    for name, priority in (("late", Priority.BACKGROUND), ("soon", Priority.URGENT)):
        bench.add(name, priority=priority)
    bench.step()
    seen = bench.machine.picture(5.0)
    assert [one.request_id for one in seen.running] == ["first", "second"]
    assert [one.request_id for one in seen.waiting] == ["soon", "late"]
    first, second = seen.running
    assert (first.num_prompt_tokens, first.num_known, first.num_computed) == (9, 12, 11)
    assert first.blocks == ((0, 3),)
    assert second.blocks[0] == (0, 2)  # found, and shared
    assert [one.level for one in seen.waiting] == [0, 2]
    assert seen.shares == (8, 4, 1)
    assert bench.machine.picture(1000.0).waiting[0].level == -1
    bench.abort("first")
    bench.abort("second")
    assert bench.machine.picture(6.0).cached == ((0, 2),)


def test_ids_that_follow_each_other_are_one_run() -> None:
    assert runs_of([4, 5, 6, 2, 1, 9]) == ((4, 3), (2, 1), (1, 1), (9, 1))
    assert runs_of([]) == ()
