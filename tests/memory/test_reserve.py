"""The reserve: when it goes and comes, and that it is real memory under a real limit."""

from __future__ import annotations

import subprocess
import sys
from pathlib import Path

import pytest

from firsthand.memory.reserve import TAKE_AFTER_S, Reserve

HUNGRY = Path(__file__).with_name("hungry.py")


class Machine:
    def __init__(self) -> None:
        self.now_s = 0.0
        self.used: float | None = 0.5

    def reserve(self) -> Reserve:
        found = Reserve(lambda: self.now_s, 1 << 16, lambda: self.used)
        found.take()
        assert found.is_held
        return found


def test_s62_o_8_it_goes_at_once_and_comes_back_after_calm() -> None:
    machine = Machine()
    reserve = machine.reserve()
    for used, held in ((0.9, True), (0.94, True), (0.95, False), (0.91, False), (0.89, False)):
        machine.used = used
        reserve.look()
        assert reserve.is_held is held
    machine.now_s += TAKE_AFTER_S
    machine.used = 0.92
    reserve.look()
    assert not reserve.is_held
    machine.used = 0.89
    reserve.look()
    assert reserve.is_held


def test_it_is_given_once_and_each_need_prolongs_the_wait() -> None:
    machine = Machine()
    reserve = machine.reserve()
    assert reserve.give_up()
    machine.now_s += TAKE_AFTER_S - 1
    assert not reserve.give_up()
    machine.now_s += TAKE_AFTER_S - 1
    reserve.look()
    assert not reserve.is_held
    machine.now_s += 1
    reserve.look()
    assert reserve.is_held


def test_where_nothing_tells_what_is_in_use_it_stays() -> None:
    machine = Machine()
    machine.used = None
    reserve = machine.reserve()
    reserve.look()
    assert reserve.is_held


def test_what_cannot_be_taken_is_tried_again() -> None:
    reserve = Reserve(lambda: 0.0, 1 << 62, lambda: 0.1)
    reserve.take()
    reserve.look()
    assert not reserve.is_held


@pytest.mark.process
@pytest.mark.skipif(sys.platform != "linux", reason="the limit of address space is Linux's")
def test_s62_a_step_that_is_refused_memory_gets_the_reserve() -> None:
    """Under RLIMIT_AS: the first refusal costs nobody anything; the next ends its own request, and
    those that need little go on."""
    done = subprocess.run(
        [sys.executable, str(HUNGRY)], capture_output=True, text=True, cwd=HUNGRY.parents[2]
    )
    assert done.stdout.splitlines() == [
        "the reserve is given up: ['length', 'length'], 1 attempts, 0 failed",
        "one needs too much: ['error', 'length'], 2 attempts, 1 failed",
        "all are well: ['length'], 0 attempts, 0 failed",
    ], done.stderr[-3000:]
