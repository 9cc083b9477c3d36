"""Run one `firsthand bench` command, or `firsthand profile`, and keep what it found.

Owns: the form of a kept result: JSON lines with commit, machine and time, printed and appended to
`bench/results/COMMAND.jsonl`. A command that compares several things gives a line for each.
May not know: how anything is measured.
Read next: `src/firsthand/measure/`.

    python bench/record.py latency MODEL [the command's options]
"""

from __future__ import annotations

import json
import platform
import subprocess
import sys
from collections.abc import Iterator, Sequence
from datetime import UTC, datetime
from pathlib import Path
from typing import Any

ROOT = Path(__file__).resolve().parents[1]
COMMANDS = {
    "latency": ("bench", "latency"),
    "throughput": ("bench", "throughput"),
    "startup": ("bench", "startup"),
    "ablate": ("bench", "ablate"),
    "compare": ("bench", "compare"),
    "profile": ("profile",),
}


def main(arguments: Sequence[str]) -> int:
    if len(arguments) < 2 or arguments[0] not in COMMANDS:
        print(f"usage: record.py {{{','.join(COMMANDS)}}} MODEL [OPTION …]", file=sys.stderr)
        return 2
    name, model, options = arguments[0], arguments[1], list(arguments[2:])
    command = [sys.executable, "-m", "firsthand.cli.main", *COMMANDS[name], model, *options]
    done = subprocess.run([*command, "--json"], stdout=subprocess.PIPE, text=True)
    if done.returncode != 0:
        print(done.stdout, end="")
        return done.returncode
    made = {**head(name), "cpu": cpu(), "model": Path(model).name, "options": options}
    folder = ROOT / "bench" / "results"
    folder.mkdir(parents=True, exist_ok=True)
    with (folder / f"{name}.jsonl").open("a", encoding="utf-8") as file:
        for value in results(json.loads(done.stdout)):
            line = json.dumps(made | value, ensure_ascii=False)
            print(line)
            file.write(line + "\n")
    return 0


def results(found: dict[str, Any]) -> Iterator[dict[str, Any]]:
    """One value per line: each of the outcomes, where there are several."""
    yield from found.get("outcomes", [found])


def head(bench: str) -> dict[str, Any]:
    """How every kept line begins: what measured it, when, and at which commit."""
    now = datetime.now(UTC).isoformat(timespec="seconds")
    return {"bench": bench, "at": now, "commit": _commit()}


def _commit() -> str:
    """With a mark if the tree differs from it."""
    asked = ["git", "describe", "--always", "--dirty", "--abbrev=12"]
    try:
        done = subprocess.run(asked, cwd=ROOT, capture_output=True, text=True)
    except OSError:
        return "none"
    return done.stdout.strip() or "none"


def cpu() -> str:
    """The processor's own name, where the system tells it."""
    try:
        lines = Path("/proc/cpuinfo").read_text(encoding="utf-8").splitlines()
    except OSError:
        return platform.processor() or platform.machine()
    names = [line.partition(":")[2].strip() for line in lines if line.startswith("model name")]
    return f"{len(names)} × {names[0]}" if names else platform.machine()


if __name__ == "__main__":
    sys.exit(main(sys.argv[1:]))
