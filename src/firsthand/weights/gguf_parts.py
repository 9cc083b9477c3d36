"""A GGUF model in several files: what they are called.

Owns: the names of such parts, and where each lies.
May not know: what is in a file.
Read next: `gguf.py` (who opens them, and sees that they are one model); `folder.py` and `hub.py`
(who look for the names).

    NAME-00001-of-00003.gguf   split.no 0, split.count 3, split.tensors.count of all parts; all keys
    NAME-00002-of-00003.gguf   split.no 1, the same counts; no other key, or the same value

Which files are opened follows from the name that was asked for alone: what stands in a file names
no other. Limit: 512 parts.
"""

from __future__ import annotations

import re
from collections.abc import Iterable
from pathlib import Path
from typing import Final

from firsthand.errors import CheckpointError
from firsthand.files import path_inside

MAX_PARTS: Final = 512
_PART: Final = re.compile(r"(.+)-([0-9]{5})-of-([0-9]{5})\.gguf", re.ASCII | re.DOTALL)


def part_names(name: str) -> tuple[str, ...]:
    """All parts of the model of which `name`, of a file or a path, is one; else itself alone."""
    stem, count = _stem_and_count(name)
    if not count:
        return (name,)
    return tuple(f"{stem}-{number:05}-of-{count:05}.gguf" for number in range(1, count + 1))


def first_part(name: str) -> str:
    """The name under which the whole model goes."""
    stem, count = _stem_and_count(name)
    return f"{stem}-00001-of-{count:05}.gguf" if count else name


def first_parts(names: Iterable[str]) -> list[str]:
    """Each model of the files once. A name may be of a part that is not among them."""
    return [*dict.fromkeys(map(first_part, names))]


def title(name: str) -> str:
    """What the model is called without a word: its file's name, less what says that it is one."""
    stem, count = _stem_and_count(name)
    return stem if count else name.removesuffix(".gguf")


def parts_of(path: Path) -> tuple[Path, ...]:
    """The files of the model at `path`, of which all but `path` may be missing."""
    return tuple(path.with_name(name) for name in part_names(path.name))


def parts_there(path: Path) -> tuple[tuple[Path, Path], ...]:
    """Each file's path, and where it really lies. Raises CheckpointError for a part that is not
    there, or that is a link out of the folder."""
    paths = parts_of(path)
    if len(paths) == 1:
        return ((path, path),)
    found = tuple((one, path_inside(path.parent, one.name)) for one in paths)
    for one, target in found:
        if not target.exists():
            raise CheckpointError(str(one), f"is missing, one of {len(paths)} parts of a model")
    return found


def _stem_and_count(name: str) -> tuple[str, int]:
    """The count is 0 for the name of no part, and of one of more parts than are read."""
    found = _PART.fullmatch(name)
    if found is None:
        return name, 0
    number, count = int(found[2]), int(found[3])
    return found[1], count if 1 <= number <= count <= MAX_PARTS else 0
