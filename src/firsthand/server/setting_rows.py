"""What there is to say of one setting.

Owns: its row: kind, help, default, and its names as a flag and as a variable.
May not know: which settings there are.
Read next: `settings.py`.
"""

from __future__ import annotations

from typing import Any

from firsthand.server.setting_kinds import Kind
from firsthand.values import dataclass

PREFIX = "FIRSTHAND_"


@dataclass(frozen=True, slots=True)
class About:
    """What is said of a setting. `reloads`: SIGHUP brings a new value into effect."""

    kind: Kind
    help: str
    reloads: bool = False
    secret: bool = False


@dataclass(frozen=True, slots=True)
class Setting:
    """One row of the list."""

    name: str
    about: About
    default: Any

    @property
    def flag(self) -> str:
        return f"--{self.name.replace('_', '-')}"

    @property
    def variable(self) -> str:
        return PREFIX + self.name.upper()
