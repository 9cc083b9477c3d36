"""The command that tells of this machine and installation, for a report of a fault: collect-env.

Owns: the layout. May not know: how a fact is found.
Read next: `../observe/environment.py`.
"""

from __future__ import annotations

from typing import Any

from firsthand.cli.options import AsJson
from firsthand.cli.output import in_bytes, print_json, reported


def collect_env(as_json: AsJson = False) -> None:
    """Show what a report of a fault needs: versions, machine, libraries; no secret."""
    with reported(as_json):
        from firsthand.config import read_environment
        from firsthand.observe.environment import collected

        found = collected(read_environment())
        if as_json:
            print_json(found)
            return
        for topic, facts in found.items():
            print(f"{topic}:")
            for name, value in facts.items():
                print(f"  {name.replace('_', ' ')}: {_shown(name, value)}")


def _shown(name: str, value: Any) -> str:
    if value is None:
        return "-"
    if name.endswith("_bytes"):
        return in_bytes(value)
    if isinstance(value, list):
        return ", ".join(map(str, value)) or "none"
    return f"{value:.2f}" if isinstance(value, float) else str(value)
