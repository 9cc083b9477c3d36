"""The forms that a setting's value may have, as text or as a TOML value.

Owns: parsing, limits and the wording of a refusal, for each kind; how a value is shown.
May not know: any setting.
Read next: `settings.py`.

Counts and sizes may have a suffix: k, m, g are powers of 1,000, K, M, G of 1,024; after these,
`iB` and `B` may stand (`4GiB`), so that `kB` is 1,000 bytes.
"""

from __future__ import annotations

import json
import math
import re
from collections.abc import Mapping
from pathlib import Path
from typing import Any, Protocol
from urllib.parse import urlsplit

from firsthand.checks import check_choice, check_integer, check_number, is_integer, shown
from firsthand.errors import InvalidRequest
from firsthand.files import strict_json
from firsthand.values import dataclass

_NUMBER = re.compile(r"([0-9]{1,15})(?:([kKmMgG])(iB|B)?|B)?")
_POWERS = {"k": 1, "m": 2, "g": 3}
_SWITCH = {"1": True, "true": True, "yes": True, "on": True}
_SWITCH |= {"0": False, "false": False, "no": False, "off": False}


class Kind(Protocol):
    def read(self, where: str, given: Any) -> Any:
        """The value; raises InvalidRequest on `where`."""

    def show(self, value: Any) -> str: ...


@dataclass(frozen=True, slots=True)
class Text:
    def read(self, where: str, given: Any) -> str:
        if not isinstance(given, str) or not given or re.search(r"[\x00-\x1f\x7f]", given):
            message = f"must be a text of one line that is not empty, not {shown(given)}"
            raise InvalidRequest(where, message)
        return given

    def show(self, value: Any) -> str:
        return "" if value is None else str(value)


@dataclass(frozen=True, slots=True)
class Address:
    def read(self, where: str, given: Any) -> str:
        text = Text().read(where, given)
        try:
            parts = urlsplit(text)
            usable = parts.scheme in ("http", "https") and parts.hostname and parts.port != 0
        except ValueError:
            usable = False
        if not usable:
            raise InvalidRequest(
                where, f"must be an http:// or https:// address, not {shown(text)}"
            )
        return text

    def show(self, value: Any) -> str:
        return "" if value is None else str(value)


@dataclass(frozen=True, slots=True)
class File:
    def read(self, where: str, given: Any) -> Path:
        return Path(Text().read(where, given)).expanduser().absolute()

    def show(self, value: Any) -> str:
        return "" if value is None else str(value)


class Choice:
    def __init__(self, *words: str) -> None:
        self._words = words

    def read(self, where: str, given: Any) -> str:
        check_choice(where, given, self._words)
        return str(given)

    def show(self, value: Any) -> str:
        return "" if value is None else str(value)


@dataclass(frozen=True, slots=True)
class Words:
    """In a text, words by commas; in a file, a list."""

    def read(self, where: str, given: Any) -> tuple[str, ...]:
        words = given.split(",") if isinstance(given, str) else given
        if not isinstance(words, list | tuple) or not all(isinstance(word, str) for word in words):
            raise InvalidRequest(where, "must be words, by commas or as a list")
        return tuple(word.strip() for word in words if word.strip())

    def show(self, value: Any) -> str:
        return ",".join(value)


@dataclass(frozen=True, slots=True)
class Named:
    """Names with a value each: in a text NAME=VALUE by commas, in a file also a table."""

    def read(self, where: str, given: Any) -> tuple[tuple[str, str], ...]:
        if isinstance(given, Mapping):
            given = [f"{name}={value}" for name, value in given.items()]
        pairs = [word.partition("=")[::2] for word in Words().read(where, given)]
        if not all(name and value for name, value in pairs):
            raise InvalidRequest(where, f"must be NAME=VALUE, by commas, not {shown(given)}")
        return tuple(pairs)

    def show(self, value: Any) -> str:
        return ",".join(f"{name}={given}" for name, given in value)


@dataclass(frozen=True, slots=True)
class Entries:
    """Names with values of any kind: in a text a JSON object, in a file also a table."""

    def read(self, where: str, given: Any) -> dict[str, Any]:
        found = given
        if isinstance(given, str):
            try:
                found = strict_json(given)
            except ValueError as error:
                raise InvalidRequest(where, f"is no JSON: {shown(str(error))}") from None
        if not isinstance(found, Mapping):
            raise InvalidRequest(where, f"must be a JSON object or a table, not {shown(given)}")
        return dict(found)

    def show(self, value: Any) -> str:
        return "" if value is None else json.dumps(value, sort_keys=True)


@dataclass(frozen=True, slots=True)
class Switch:
    def read(self, where: str, given: Any) -> bool:
        value = _SWITCH.get(given.strip().lower()) if isinstance(given, str) else given
        if not isinstance(value, bool):
            raise InvalidRequest(where, f"takes true or false, not {shown(given)}")
        return value

    def show(self, value: Any) -> str:
        return "true" if value else "false"


@dataclass(frozen=True, slots=True)
class Count:
    low: int
    high: int = 10**12

    def read(self, where: str, given: Any) -> int:
        value = _whole(given)
        check_integer(where, given if value is None else value, self.low, self.high)
        return int(given if value is None else value)

    def show(self, value: Any) -> str:
        return "" if value is None else str(value)


@dataclass(frozen=True, slots=True)
class Bytes:
    low: int
    high: int

    def read(self, where: str, given: Any) -> int:
        return Count(self.low, self.high).read(where, given)

    def show(self, value: Any) -> str:
        for power, suffix in ((3, "GiB"), (2, "MiB"), (1, "KiB")):
            if value and value % 1024**power == 0:
                return f"{value // 1024**power}{suffix}"
        return str(value)


@dataclass(frozen=True, slots=True)
class Seconds:
    low: float
    high: float

    def read(self, where: str, given: Any) -> float:
        value = given
        if isinstance(given, str):
            try:
                value = float(given.strip().removesuffix("s"))
            except ValueError:
                value = given
        check_number(where, value, self.low, self.high)
        if not isinstance(value, float | int) or math.isnan(value):
            raise InvalidRequest(where, f"must be seconds, not {shown(given)}")
        return float(value)

    def show(self, value: Any) -> str:
        return "" if value is None else f"{value:g}s"


def _whole(given: Any) -> int | None:
    """None: no whole number."""
    if is_integer(given):
        return int(given)
    found = _NUMBER.fullmatch(given.strip()) if isinstance(given, str) else None
    if found is None:
        return None
    number, letter, unit = found.groups()
    if letter is None:
        return int(number)
    decimal = letter.islower() or unit == "B"
    base = 1000 if decimal else 1024
    return int(number) * int(base ** _POWERS[letter.lower()])
