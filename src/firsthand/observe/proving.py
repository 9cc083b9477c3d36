"""The rules, tried with Prometheus' own programs.

Owns: which programs are asked what. May not know: what a rule says.
Read next: `alert_cases.py`, the cases that they are tried on.
"""

from __future__ import annotations

import shutil
import subprocess
from collections.abc import Iterator
from pathlib import Path
from tempfile import TemporaryDirectory

from firsthand.errors import InvalidRequest
from firsthand.observe.alert_cases import RULE_FILE
from firsthand.observe.alert_settings import AlertSettings
from firsthand.observe.exports import CASE_FILE, alert_files, write
from firsthand.values import dataclass

PROMTOOL, AMTOOL = "promtool", "amtool"
_AROUND = ("prometheus.yml", "alertmanager.yml")
LIMIT_S = 120.0
_HINT = "on Debian: apt-get install prometheus prometheus-alertmanager"


@dataclass(frozen=True, slots=True)
class Outcome:
    """What one program said. `passed` None: it is not here."""

    check: str
    passed: bool | None
    said: str


def prove(settings: AlertSettings) -> Iterator[Outcome]:
    """The files that are made of these. Raises InvalidRequest as `prove_folder`."""
    with TemporaryDirectory() as folder:
        write(alert_files(settings), Path(folder))
        yield from prove_folder(Path(folder))


def prove_folder(folder: Path) -> Iterator[Outcome]:
    """Exported files, whoever has changed them since. Raises InvalidRequest without promtool, for
    then nothing would have been tried, and where a file is missing."""
    if shutil.which(PROMTOOL) is None:
        raise InvalidRequest(PROMTOOL, f"is not on PATH; {_HINT}")
    missing = [one for one in (RULE_FILE, CASE_FILE, *_AROUND) if not (folder / one).is_file()]
    if missing:
        raise InvalidRequest("FOLDER", f"{folder}: has no {', '.join(missing)}")
    prometheus, alertmanager = _AROUND
    for check, *command in (
        ("rules", PROMTOOL, "check", "rules", RULE_FILE),
        ("cases", PROMTOOL, "test", "rules", CASE_FILE),
        ("prometheus", PROMTOOL, "check", "config", "--syntax-only", prometheus),
        ("routes", AMTOOL, "check-config", alertmanager),
    ):
        yield _run(check, command, folder)


def _run(check: str, command: list[str], folder: Path) -> Outcome:
    program = shutil.which(command[0])
    if program is None:
        return Outcome(check, None, f"{command[0]} is not on PATH; {_HINT}")
    done = subprocess.run(
        [program, *command[1:]],
        cwd=folder,
        capture_output=True,
        encoding="utf-8",
        errors="replace",
        timeout=LIMIT_S,
        stdin=subprocess.DEVNULL,
    )
    return Outcome(check, done.returncode == 0, (done.stdout + done.stderr).strip())
