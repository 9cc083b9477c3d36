"""One model in several files: which files there are, and which tensor each must hold.

Owns: the index of a sharded checkpoint, and its agreement with what the shards hold.
May not know: how a shard is laid out.
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
class ShardIndex:
    """The shards in order of name, and for every tensor the name of its shard."""

    file: str
    shards: tuple[str, ...]
    shard_of: dict[str, str]

    def check_shard(self, shard: str, tensors: Iterable[str]) -> None:
        """What a shard holds must be what the index says, neither more nor less."""
        held = set(tensors)
        for name in sorted(held):
            owner = self.shard_of.get(name)
            if owner is None:
                raise CheckpointError(shard, f"is not in the index {self.file}", name)
            if owner != shard:
                raise CheckpointError(shard, f"is also there; the index puts it in {owner}", name)
        missing = sorted(
            n for n, owner in self.shard_of.items() if owner == shard and n not in held
        )
        if missing:
            raise CheckpointError(shard, f"lacks what its index names: {_listed(missing)}")


def read_index(folder: Path, name: str, suffix: str) -> ShardIndex:
    """Read `name` in `folder`; every shard it names must be there and end in `suffix`.

    No other file of the folder is looked at: a stray one changes nothing.
    """
    index = parse_index(path_inside(folder, name), str(folder / name), suffix)
    missing = [shard for shard in index.shards if not path_inside(folder, shard).exists()]
    if missing:
        count = f"{len(missing)} of {len(index.shards)}"
        raise CheckpointError(index.file, f"{count} shards are missing: {_listed(missing)}")
    return index


def parse_index(path: Path, file: str, suffix: str) -> ShardIndex:
    """The index in the file `path`, which errors call `file`. Its shards need not be there; their
    names are plain ones, safe as a part of a path."""
    content = read_whole(path, MAX_INDEX_BYTES)
    weight_map = parse_json_object(content, file, MAX_INDEX_ITEMS).get("weight_map")
    if not isinstance(weight_map, dict) or not weight_map:
        raise CheckpointError(file, "weight_map is not a filled object")
    for tensor, shard in weight_map.items():
        if not isinstance(shard, str) or not shard.endswith(suffix):
            raise CheckpointError(file, f"is mapped to something other than a {suffix}", tensor)
        if "/" in shard or not is_safe_file(shard):
            raise CheckpointError(file, f"{shown(shard)} is not the plain name of a file", tensor)
    return ShardIndex(file, tuple(sorted(set(weight_map.values()))), weight_map)


def _listed(names: list[str]) -> str:
    more = len(names) - _SHOWN
    return ", ".join(name[:120] for name in names[:_SHOWN]) + (
        f" and {more} more" if more > 0 else ""
    )
