"""An engine that is disturbed on purpose: slow or failing steps, taken memory, wrong weights.

Owns: what each fault of `faults.py` does to an engine's process, and that it ends in time.
May not know: who asks for one, what it looks like from outside.
Read next: `faults.py`; `child.py`, whose loop asks between two steps.

What is done is the real thing: time passes, memory is resident, a page holds other bytes. What ends
leaves everything as it was.
"""

from __future__ import annotations

import ctypes
import math
import mmap
import sys
import time
from collections.abc import Callable
from contextlib import ExitStack
from pathlib import Path

import numpy as np
from numpy.typing import NDArray

from firsthand.compute.native.executor import NativeExecutor
from firsthand.engine.attempts import Runner
from firsthand.errors import EngineError, InvalidRequest
from firsthand.generation.faults import engine_fault
from firsthand.generation.loading import LoadedModel
from firsthand.memory.machine import free_bytes
from firsthand.scheduling.memory import BlockMemory
from firsthand.scheduling.plan import StepPlan, StepResult
from firsthand.values import dataclass

MIB = 1 << 20
ROOM_SHARE = 0.9  # of the free memory that a fault may take
_MAP_FIXED = 0x10


@dataclass(slots=True)
class _Fault:
    """One that is in effect. `end` takes back what it did."""

    amount: float
    began_s: float
    ends_s: float
    end: ExitStack


class Disturbance:
    """`around` the engine's runner, `attach` to its memory, then `begin` and, at least twice a
    second, `tick`. Of one thread."""

    def __init__(self, loaded: LoadedModel, clock: Callable[[], float]) -> None:
        self._loaded = loaded
        self._clock = clock
        self._memory: BlockMemory | None = None
        self._faults: dict[str, _Fault] = {}
        self._num_steps = 0
        self._taken: list[mmap.mmap] = []

    def around(self, runner: Runner) -> Runner:
        return _Disturbed(runner, self)

    def attach(self, memory: BlockMemory) -> None:
        """Whose blocks can be taken; the scheduler finds fewer of them free."""
        self._memory = memory

    @property
    def stalls(self) -> bool:
        return "stall" in self._faults

    def begin(self, name: str, seconds: float, amount: float) -> None:
        """Raises InvalidRequest; then nothing is changed but that an earlier one has ended."""
        engine_fault(name).checked(seconds, amount)
        self._end(name)
        now_s, end = self._clock(), ExitStack()
        if name == "memory":
            self._check_room(int(amount) * MIB)
            end.callback(self._give_back)
        elif name == "cache":
            self._take_blocks(amount, end)
        elif name == "corrupt":
            _corrupt(self._loaded, end)
        self._faults[name] = _Fault(amount, now_s, now_s + seconds, end)

    def tick(self) -> None:
        """What is over ends; taken memory grows."""
        now_s = self._clock()
        for name in [name for name, one in self._faults.items() if now_s >= one.ends_s]:
            self._end(name)
        taken = self._faults.get("memory")
        if taken is not None:
            grown = (now_s - taken.began_s) / max(1e-3, (taken.ends_s - taken.began_s) / 2)
            self._take(int(taken.amount * min(1.0, grown)))

    def before_step(self) -> None:
        """Raises EngineError for a step that is to fail."""
        slow, fail = self._faults.get("slow"), self._faults.get("fail")
        if slow is not None:
            time.sleep(slow.amount / 1e3)
        if fail is not None:
            self._num_steps += 1
            share, number = fail.amount, self._num_steps
            if math.floor(number * share) > math.floor((number - 1) * share):
                raise EngineError("a fault that was put in on purpose")

    def _end(self, name: str) -> None:
        fault = self._faults.pop(name, None)
        if fault is not None:
            fault.end.close()

    def _check_room(self, num_bytes: int) -> None:
        free = free_bytes()
        if free is not None and num_bytes > ROOM_SHARE * free:
            most = int(ROOM_SHARE * free) // MIB
            raise InvalidRequest("mib", f"must be at most {most}: more is not free")

    def _take(self, num_mib: int) -> None:
        """Every page is written, so that it is resident."""
        while len(self._taken) < num_mib:
            memory = mmap.mmap(-1, MIB, flags=mmap.MAP_PRIVATE | mmap.MAP_ANONYMOUS)
            memory[:: mmap.PAGESIZE] = b"\1" * (MIB // mmap.PAGESIZE)
            self._taken.append(memory)

    def _give_back(self) -> None:
        while self._taken:
            self._taken.pop().close()

    def _take_blocks(self, share: float, end: ExitStack) -> None:
        memory = self._memory
        if memory is None:
            raise EngineError("no memory was attached")
        count = min(memory.num_free, round(share * memory.num_blocks))
        taken = memory.allocate(count) if count else ()
        if taken:
            end.callback(memory.free, taken)


@dataclass(frozen=True, slots=True, eq=False)
class _Disturbed:
    """A `Runner` whose steps are disturbed first."""

    runner: Runner
    disturbance: Disturbance

    def run(self, plan: StepPlan) -> StepResult:
        self.disturbance.before_step()
        return self.runner.run(plan)


def _corrupt(loaded: LoadedModel, end: ExitStack) -> None:
    """The largest matrix behind the first layers has its bytes in another order."""
    executor = loaded.executor
    if sys.platform != "linux" or not isinstance(executor, NativeExecutor):
        raise InvalidRequest("fault", "corrupt needs the native executor, on Linux")
    if executor.swap_facts() is not None:
        raise InvalidRequest("fault", "corrupt needs a model that is loaded whole")
    if loaded.pack_writer is not None and loaded.pack_writer.is_alive():
        raise InvalidRequest("fault", "corrupt has to wait until the packed model is written")
    panels = [one.weight.parts()[0] for one in executor.packed() if "embed" not in one.name]
    matrix = max(panels[-len(panels) // 2 :], key=lambda view: view.nbytes)
    if not _is_writable(matrix):
        matrix = _own_pages(matrix)
    before = matrix.copy()
    _write(matrix, np.roll(before, before.size // 2))
    end.callback(_write, matrix, before)


def _write(memory: NDArray[np.uint8], content: NDArray[np.uint8]) -> None:
    """Into what is handed out as read-only."""
    ctypes.memmove(memory.ctypes.data, content.ctypes.data, memory.nbytes)


def _is_writable(memory: NDArray[np.uint8]) -> bool:
    """By the system's own list: `start-end perms …` per line."""
    for line in Path("/proc/self/maps").read_text(encoding="utf-8", errors="replace").splitlines():
        span, permissions, *_ = line.split()
        start, end = (int(bound, 16) for bound in span.split("-"))
        if start <= memory.ctypes.data < end:
            return "w" in permissions
    return False


def _own_pages(view: NDArray[np.uint8]) -> NDArray[np.uint8]:
    """The whole pages inside, with memory of this process in place of a file that is only read."""
    start = -view.ctypes.data % mmap.PAGESIZE
    stop = start + (view.nbytes - start) // mmap.PAGESIZE * mmap.PAGESIZE
    if stop <= start:
        raise InvalidRequest("fault", "corrupt needs a weight of a whole page")
    pages = view[start:stop]
    before, address = pages.copy(), pages.ctypes.data
    libc = ctypes.CDLL(None, use_errno=True)
    libc.mmap.restype = ctypes.c_void_p
    libc.mmap.argtypes = [ctypes.c_void_p, ctypes.c_size_t, *[ctypes.c_int] * 3, ctypes.c_long]
    flags = mmap.MAP_PRIVATE | mmap.MAP_ANONYMOUS | _MAP_FIXED
    got = libc.mmap(address, pages.nbytes, mmap.PROT_READ | mmap.PROT_WRITE, flags, -1, 0)
    if got != address:
        raise EngineError(f"pages cannot be replaced: error {ctypes.get_errno()}")
    _write(pages, before)
    return pages
