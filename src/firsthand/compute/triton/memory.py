"""The card's memory: what is free, a reserve for the moment in which nothing is, and what an error
of the card means.

Owns: the readings, the reserve, and the translation of torch's errors.
May not know: what the memory is for.
Read next: `executor.py`; `../../memory/reserve.py`, the same idea for the machine's memory.

Weights, the cache and the arena are taken at load, so a step asks the card for next to nothing.
What still may not fit (a library's workspace, another program on the card) is met by the reserve:
at the first refusal it is given up, and the step is run again, before anything is reloaded. Every
other error of the card is taken to be for good: in CUDA, most leave the process unable to use the
device, and each later call returns the same error.
"""

from __future__ import annotations

from collections.abc import Callable, Iterator
from contextlib import contextmanager

import torch

from firsthand.errors import DeviceLost

RESERVE_BYTES = 128 << 20
FATAL = ("CUDA error", "Triton Error [CUDA]")  # how torch and Triton begin what the driver said


def free_bytes(device: str) -> int | None:
    """What the driver would still give; None: there is no card."""
    if device != "cuda" or not torch.cuda.is_available():
        return None
    return int(torch.cuda.mem_get_info()[0])


class DeviceReserve:
    """`take` makes the memory, `drop` returns what torch keeps of it to the driver."""

    def __init__(
        self, take: Callable[[int], object | None], drop: Callable[[], None], num_bytes: int
    ) -> None:
        self._take = take
        self._drop = drop
        self._num_bytes = num_bytes
        self._memory: object | None = None

    @property
    def is_held(self) -> bool:
        return self._memory is not None

    def take(self) -> None:
        """Hold it, if there is room."""
        self._memory = self._take(self._num_bytes)

    def give_up(self) -> bool:
        """True: it was there, and its memory is free now."""
        memory, self._memory = self._memory, None
        if memory is None:
            return False
        del memory
        self._drop()
        return True


def reserve_on(device: torch.device) -> DeviceReserve:
    """That of a card; on a CPU none is held."""

    def take(num_bytes: int) -> object | None:
        if device.type != "cuda":
            return None
        try:
            held: object = torch.empty(num_bytes, dtype=torch.uint8, device=device)
        except torch.OutOfMemoryError:
            return None
        return held

    return DeviceReserve(take, torch.cuda.empty_cache, RESERVE_BYTES)


@contextmanager
def told_apart() -> Iterator[None]:
    """A refusal of memory becomes MemoryError, which a step may survive; any other error of the
    card DeviceLost, which its process does not."""
    try:
        yield
    except torch.OutOfMemoryError as error:
        raise MemoryError(f"the card: {first_line(error)}") from error
    except RuntimeError as error:
        if not str(error).startswith(FATAL):
            raise
        raise DeviceLost(f"the card failed: {first_line(error)}") from error


def first_line(error: BaseException) -> str:
    """Torch explains at length."""
    return str(error).partition("\n")[0]
