"""What happened to releases: a file to which lines are added, and nothing else.

Owns: the form of a line, that one is whole or not there.
May not know: what an event leads to.
Read next: `store.py`.
"""

from __future__ import annotations

import json
import os
from collections.abc import Iterator
from datetime import UTC, datetime
from pathlib import Path
from typing import Any, Final

from firsthand.canonical import canonical
from firsthand.values import dataclass
from firsthand.weights.places import locked

BEGUN: Final = "_begun"  # behind the name of what may be killed before it is done


def now() -> str:
    """RFC 3339, in milliseconds."""
    return datetime.now(UTC).isoformat(timespec="milliseconds").replace("+00:00", "Z")


@dataclass(frozen=True, slots=True)
class History:
    path: Path

    def add(self, event: str, number: int | None, **facts: Any) -> dict[str, Any]:
        """It is on the disk when this returns. What a killed writer left of a line stays alone."""
        with locked(self.path, lambda: None):
            return self._add({"at": now(), "event": event, "release": number, **facts})

    def _add(self, line: dict[str, Any]) -> dict[str, Any]:
        with open(self.path, "a+b") as file:
            file.seek(0, os.SEEK_END)
            torn = b""
            if file.tell():
                file.seek(-1, os.SEEK_END)
                torn = b"" if file.read(1) == b"\n" else b"\n"
            file.write(torn + canonical(line) + b"\n")
            file.flush()
            os.fsync(file.fileno())
        return line

    def lines(self) -> Iterator[dict[str, Any]]:
        """The first first."""
        try:
            content = self.path.read_bytes()
        except FileNotFoundError:
            return
        for line in content.splitlines():
            try:
                found = json.loads(line)
            except ValueError:
                continue
            if isinstance(found, dict):
                yield found

    def last(self, event: str, number: int | None = None) -> dict[str, Any] | None:
        """The last of its kind; of one release, where it is named."""
        of_it = [
            line
            for line in self.lines()
            if line.get("event") == event and number in (None, line.get("release"))
        ]
        return of_it[-1] if of_it else None

    def begun(self) -> tuple[str, int] | None:
        """A promotion or a rollback that was not written down to its end: what, and to which."""
        found = None
        for event, number in self._steps():
            found = (event.removesuffix(BEGUN), number) if event.endswith(BEGUN) else None
        return found

    def served(self, current: int | None) -> list[int]:
        """The way back: the last is current, the one before it is what a rollback returns to.
        `current` tells whether one that was begun was done."""
        steps = [one for one in self._steps() if not one[0].endswith(BEGUN)]
        begun = self.begun()
        if begun is not None and begun[1] == current:
            steps.append(begun)
        way: list[int] = []
        for event, number in steps:
            if event == "rollback" and number in way:
                del way[len(way) - way[::-1].index(number) :]
            elif way[-1:] != [number]:
                way.append(number)
        return way

    def _steps(self) -> Iterator[tuple[str, int]]:
        for line in self.lines():
            number, event = line.get("release"), str(line.get("event"))
            if isinstance(number, int) and event.removesuffix(BEGUN) in ("promote", "rollback"):
                yield event, number
