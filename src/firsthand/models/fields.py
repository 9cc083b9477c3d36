"""Reading a table that somebody else wrote: every value checked for type and range first.

Owns: the checks, and errors that name the file, the field and the limit.
May not know: what the fields mean. Standard library only.
Read next: `config_form.py`, its first user.
"""

from __future__ import annotations

import math
from collections.abc import Mapping
from typing import Any

from firsthand.checks import is_integer
from firsthand.errors import CheckpointError
from firsthand.values import dataclass

CONFIG = "config.json"
GGUF = "GGUF metadata"
MAX_CONTEXT = 2**30  # positions are 32-bit integers


@dataclass(frozen=True, slots=True)
class Fields:
    """The values of one file. A field that is null counts as absent, as it does upstream.

    `prefix` goes before every name: GGUF's keys begin with the architecture. Every method raises
    CheckpointError. A default of None makes a field required.
    """

    file: str
    values: Mapping[str, Any]
    prefix: str = ""

    def get(self, name: str) -> Any:
        return self.values.get(self.prefix + name)

    def integer(self, name: str, low: int, high: int, default: int | None = None) -> int:
        value = self._present(name, default)
        if not is_integer(value):
            raise self.error(name, f"must be an integer, not {_shown(value)}")
        if not low <= value <= high:
            raise self.error(name, f"must be {low} … {high}, not {_shown(value)}")
        return value

    def number(self, name: str, low: float, high: float, default: float | None = None) -> float:
        return self._number(name, self._present(name, default), low, high)

    def optional_number(self, name: str, low: float, high: float) -> float | None:
        value = self.get(name)
        return None if value is None else self._number(name, value, low, high)

    def flag(self, name: str, default: bool) -> bool:
        value = self._present(name, default)
        if not isinstance(value, bool):
            raise self.error(name, f"must be true or false, not {_shown(value)}")
        return value

    def text(self, name: str, default: str | None = None) -> str:
        value = self._present(name, default)
        if not isinstance(value, str):
            raise self.error(name, f"must be a string, not {_shown(value)}")
        return value

    def table(self, name: str) -> Mapping[str, Any]:
        """Empty when absent."""
        value = self.get(name)
        if value is None:
            return {}
        if not isinstance(value, Mapping):
            raise self.error(name, f"must be an object or null, not {_shown(value)}")
        return value

    def numbers(self, name: str, count: int, low: float, high: float) -> tuple[float, ...]:
        value = self._present(name, None)
        if not isinstance(value, list | tuple) or len(value) != count:
            raise self.error(name, f"must be a list of {count} numbers")
        return tuple(self._number(name, item, low, high) for item in value)

    def error(self, name: str, message: str) -> CheckpointError:
        return CheckpointError(self.file, f"{self.prefix}{name} {message}")

    def _present(self, name: str, default: Any) -> Any:
        value = self.get(name)
        if value is not None:
            return value
        if default is None:
            raise self.error(name, "is missing")
        return default

    def _number(self, name: str, value: object, low: float, high: float) -> float:
        if not isinstance(value, float) and not is_integer(value):
            raise self.error(name, f"must be a number, not {_shown(value)}")
        if not low <= value <= high or not math.isfinite(value):
            raise self.error(name, f"must be {low:g} … {high:g}, not {_shown(value)}")
        return float(value)


def _shown(value: object) -> str:
    """Short, whatever it is: a hostile file must not fill the screen, or cost time to print."""
    if isinstance(value, bool | float) or value is None:
        return repr(value)
    if isinstance(value, int):
        return repr(value) if value.bit_length() <= 64 else "a very large integer"
    if isinstance(value, str):
        return repr(value[:40])
    return type(value).__name__
