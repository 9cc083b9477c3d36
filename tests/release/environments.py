"""Environments of their own, in each of which another version of the engine is installed.

Owns: `environment`, `told`. May not know: what is done with them. Read next: `test_engines.py`.

The package is copied with another version's number in it; what it needs is taken from here.
"""

from __future__ import annotations

import importlib.util
import json
import shutil
import subprocess
import sysconfig
import venv
from pathlib import Path
from typing import Any

import firsthand
from firsthand.release.engines import command


def environment(folder: Path, version: str) -> Path:
    """The Python of a new one."""
    venv.create(folder, with_pip=False, symlinks=True)
    (site,) = folder.glob("lib/python3*/site-packages")
    source = Path(str(firsthand.__file__)).parent
    package = site / "firsthand"
    shutil.copytree(source, package, ignore=shutil.ignore_patterns("csrc"))
    native = importlib.util.find_spec("firsthand.compute.native._native")
    assert native is not None
    assert native.origin is not None
    target = package / "compute" / "native" / Path(native.origin).name
    if not target.exists():
        shutil.copyfile(native.origin, target)
    text = (package / "version.py").read_text(encoding="utf-8")
    (package / "version.py").write_text(text.replace(firsthand.__version__, version))
    (site / "needs.pth").write_text(f"{sysconfig.get_path('purelib')}\n")
    return folder / "bin" / "python"


def told(python: Path, *arguments: str) -> dict[str, Any]:
    """What a command of it says as JSON."""
    asked = subprocess.run(
        command(python, [*arguments, "--json"]), capture_output=True, text=True, check=False
    )
    assert asked.returncode == 0, asked.stdout + asked.stderr
    found: dict[str, Any] = json.loads(asked.stdout)
    return found
