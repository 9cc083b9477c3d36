"""Which Python has which version of the engine: a release is served by the one it was staged with.

Owns: where that is written down, that a Python has the version it is said to have, how a command of
it begins, what needs one engine alone.
May not know: what the command does.
Read next: `store.py`; `../server/handover.py`, which starts one under traffic.

    STORE/engines/0.2.0        the Python of the environment in which that version is installed

It is written when a release is staged, by the engine that stages it.
"""

from __future__ import annotations

import subprocess
import sys
from collections.abc import Iterable, Sequence
from pathlib import Path
from typing import Final

from firsthand.errors import ReleaseRefused
from firsthand.release.record import Release, is_release, read_release
from firsthand.version import VERSION
from firsthand.weights.places import write_atomically

PROGRAM: Final = "from firsthand.cli.entry import main; main()"
_ASK: Final = "from firsthand.version import VERSION; print(VERSION)"
_ASK_S: Final = 60.0


def note_engine(store: Path) -> None:
    """This one has this version. Raises OSError."""
    write_atomically(store / "engines" / VERSION, sys.executable.encode())


def python_of(store: Path, version: str) -> Path:
    """The Python that has that version. Raises ReleaseRefused where none is known, it is gone, or
    it has another one by now."""
    path = store / "engines" / version
    try:
        python = Path(path.read_text(encoding="utf-8").strip())
    except (OSError, UnicodeDecodeError):
        message = f"no environment with engine {version} is known to {store}"
        raise ReleaseRefused(f"{message}: stage a release with that engine's own command") from None
    try:
        asked = subprocess.run(
            [python, "-I", "-c", _ASK], capture_output=True, text=True, timeout=_ASK_S, check=False
        )
        has = asked.stdout.strip() or (asked.stderr.strip().splitlines() or ["it says nothing"])[-1]
    except (OSError, subprocess.TimeoutExpired) as error:
        has = str(error)
    if has != version:
        raise ReleaseRefused(f"{python} should have engine {version}: {has[:200]}")
    return python


def check_canary(release: Release, version: str) -> None:
    """Raises ReleaseRefused where it is not of the engine that is served: a canary is loaded into
    the server that it is compared in."""
    if release.engine_version != version:
        raise ReleaseRefused(
            f"release {release.number} is of engine {release.engine_version}, what is served of "
            f"{version}, and a canary is of the same: try it with firsthand release drill, then "
            "promote it; firsthand release rollback returns"
        )


def store_of(folder: Path) -> Path:
    """The store in which a release's folder lies."""
    return folder.resolve().parent.parent


def command(python: Path, arguments: Sequence[str]) -> list[str]:
    """Of an environment alone: variables and folders of this one's Python do not count there."""
    return [str(python), "-I", "-c", PROGRAM, *arguments]


def python_for(paths: Iterable[str]) -> Path | None:
    """The Python for a server of these models; None: this one. Raises ReleaseRefused, also for
    releases of several engines; CheckpointError."""
    folders = [Path(path) for path in paths if is_release(Path(path))]
    wanted = {read_release(folder).engine_version: folder for folder in folders}
    if not wanted or set(wanted) == {VERSION}:
        return None
    if len(wanted) > 1:
        raise ReleaseRefused(f"one server is of one engine, not of {', '.join(sorted(wanted))}")
    ((version, folder),) = wanted.items()
    return python_of(store_of(folder), version)
