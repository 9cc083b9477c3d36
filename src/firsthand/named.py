"""Code that a user names: `module:name`, or `file.py:name`. It is the user's own, so it runs.

Owns: how such a name becomes what stands under it.
May not know: what it is for; who asks checks its kind.
Read next: `data/contract.py`, `models/families.py`, which ask.
"""

from __future__ import annotations

import hashlib
import importlib
import importlib.util
import sys
from pathlib import Path
from typing import Any

from firsthand.errors import InvalidRequest


def find_named(field: str, name: str) -> Any:
    """What stands under a name `module:name` or `file.py:name`. Raises InvalidRequest."""
    place, _, inside = name.rpartition(":")
    if not place or not inside:
        raise InvalidRequest(field, f"{name[:80]!r} is not module:name or file.py:name")
    try:
        module = (
            _file_module(Path(place)) if place.endswith(".py") else importlib.import_module(place)
        )
        return getattr(module, inside)
    except (ImportError, OSError, SyntaxError, AttributeError) as error:
        raise InvalidRequest(field, f"{name[:80]!r} cannot be loaded: {error}") from error


def _file_module(path: Path) -> Any:
    """One module per content of a file, also when several things of it are named."""
    name = f"own_{path.stem}_{hashlib.sha256(path.read_bytes()).hexdigest()[:16]}"
    if name in sys.modules:
        return sys.modules[name]
    spec = importlib.util.spec_from_file_location(name, path)
    if spec is None or spec.loader is None:
        raise ImportError("no such file")
    module = importlib.util.module_from_spec(spec)
    sys.modules[name] = module  # where pydantic looks a class's annotations up
    try:
        spec.loader.exec_module(module)
    except BaseException:
        del sys.modules[name]
        raise
    return module
