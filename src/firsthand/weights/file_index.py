"""One model in several files: which files there are, and which tensor each must hold.

Owns: the index of such a checkpoint, and its agreement with what the files hold. Others call these
files shards; here a shard is a part of a plan that is swapped (`compute/native/shards.py`).
May not know: how a file is laid out.
Read next: `safetensors.py`, `convert.py`, `hub.py` (the users).
"""

from __future__ import annotations

from collections.abc import Iterable
from pathlib import Path

from firsthand.errors import CheckpointError
from firsthand.files import parse_json_object, path_inside, read_whole
from firsthand.values import dataclass
from firsthand.weights.model_names import is_safe_file, shown

MAX_INDEX_BYTES = 100_000_000
MAX_INDEX_ITEMS = 1_000_000  # one comma per tensor
_SHOWN = 8


@dataclass(frozen=True, slots=True)
class FileIndex:
    """The files in order of name, and for every tensor the name of its file. `file` is the index's
    own name."""

    file: str
    files: tuple[str, ...]
    file_of: dict[str, str]

    def check_file(self, name: str, tensors: Iterable[str]) -> None:
        """What a file holds must be what the index says, neither more nor less."""
        held = set(tensors)
        for tensor in sorted(held):
            owner = self.file_of.get(tensor)
            if owner is None:
                raise CheckpointError(name, f"is not in the index {self.file}", tensor)
            if owner != name:
                raise CheckpointError(name, f"is also there; the index puts it in {owner}", tensor)
        missing = sorted(
            tensor for tensor, owner in self.file_of.items() if owner == name and tensor not in held
        )
        if missing:
            raise CheckpointError(name, f"lacks what its index names: {_listed(missing)}")


def read_index(folder: Path, name: str, suffix: str) -> FileIndex:
    """Read `name` in `folder`; every file it names must be there and end in `suffix`.

    No other file of the folder is looked at: a stray one changes nothing.
    """
    index = parse_index(path_inside(folder, name), str(folder / name), suffix)
    missing = [one for one in index.files if not path_inside(folder, one).exists()]
    if missing:
        count = f"{len(missing)} of {len(index.files)}"
        raise CheckpointError(index.file, f"{count} shards are missing: {_listed(missing)}")
    return index


def parse_index(path: Path, file: str, suffix: str) -> FileIndex:
    """The index in the file `path`, which errors call `file`. The files need not be there; their
    names are plain ones, safe as a part of a path."""
    content = read_whole(path, MAX_INDEX_BYTES)
    weight_map = parse_json_object(content, file, MAX_INDEX_ITEMS).get("weight_map")
    if not isinstance(weight_map, dict) or not weight_map:
        raise CheckpointError(file, "weight_map is not a filled object")
    for tensor, name in weight_map.items():
        if not isinstance(name, str) or not name.endswith(suffix):
            raise CheckpointError(file, f"is mapped to something other than a {suffix}", tensor)
        if "/" in name or not is_safe_file(name):
            raise CheckpointError(file, f"{shown(name)} is not the plain name of a file", tensor)
    return FileIndex(file, tuple(sorted(set(weight_map.values()))), weight_map)


def _listed(names: list[str]) -> str:
    more = len(names) - _SHOWN
    return ", ".join(name[:120] for name in names[:_SHOWN]) + (
        f" and {more} more" if more > 0 else ""
    )
