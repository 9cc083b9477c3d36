"""Torch's flag for deterministic algorithms, set while a step runs.

Owns: the flag, its count of users, and the error of an operator that has no deterministic form.
May not know: models, executors.
Read next: `executor.py`.

The flag is one for the whole process. So it is set when the first step that wants it begins and
put back when the last one ends; whatever else runs torch in the process meanwhile sees it too.
"""

from __future__ import annotations

import threading
from collections.abc import Iterator
from contextlib import contextmanager

import torch

from firsthand.errors import EngineError


class _Flag:
    """Counts its users: of two steps at once, the first to end must not clear it for the other."""

    def __init__(self) -> None:
        self._lock = threading.Lock()
        self._num_users = 0
        self._before = (False, False)

    def take(self) -> None:
        with self._lock:
            if self._num_users == 0:
                warns = torch.is_deterministic_algorithms_warn_only_enabled()
                self._before = (torch.are_deterministic_algorithms_enabled(), warns)
                torch.use_deterministic_algorithms(True)
            self._num_users += 1

    def give_back(self) -> None:
        with self._lock:
            self._num_users -= 1
            if self._num_users == 0:
                enabled, warns = self._before
                torch.use_deterministic_algorithms(enabled, warn_only=warns)


_FLAG = _Flag()  # of the process, as torch's own is


@contextmanager
def deterministic_algorithms() -> Iterator[None]:
    """Raises EngineError naming the operator, where one has no deterministic form."""
    _FLAG.take()
    try:
        yield
    except RuntimeError as error:
        if "determinis" not in str(error):
            raise
        raise EngineError(f"deterministic: {error}") from error
    finally:
        _FLAG.give_back()
