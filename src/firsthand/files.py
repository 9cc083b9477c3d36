"""Untrusted files: opened only if regular, inside their folder, bounded; JSON and TOML if strict.

Owns: how a small file that came with a model, or that an option names, is opened, read whole and
parsed.
May not know: what any file means.
Read next: `weights/mapped.py` (files too large to read whole), `text/tokenizer_json.py`.
"""

from __future__ import annotations

import json
import math
import os
import re
import stat
import tomllib
from collections.abc import Callable
from pathlib import Path
from typing import Any, NoReturn

from firsthand.errors import CheckpointError, InvalidRequest

MAX_FILE_NAME_BYTES = 255
MAX_TEXT_BYTES = 64 << 20
MAX_DOTTED = 32  # parts of a key: tomllib keeps each beginning of it, 40 GB for a key of 200 KB
_DOTTED = re.compile(
    r"""(?<![\w-])(?:(?:[\w-]+|"[^"\n]*"|'[^'\n]*')[ \t]*\.[ \t]*){"""
    f"{MAX_DOTTED}}}",
    re.ASCII,
)


def sync(path: Path) -> None:
    """A file's content, or the names in a folder, are on the disk when this returns. Raises
    OSError."""
    descriptor = os.open(path, os.O_RDONLY)
    try:
        os.fsync(descriptor)
    finally:
        os.close(descriptor)


def open_regular(path: Path) -> tuple[int, int]:
    """A read-only descriptor (the caller's to close) and the size in bytes of a regular file.

    Opening never waits (a FIFO without a writer would), and the kind is asked of what has been
    opened, not of the name, which another process may have changed in between.
    """
    try:
        descriptor = os.open(path, os.O_RDONLY | os.O_NONBLOCK | os.O_CLOEXEC)
    except (OSError, ValueError) as error:
        reason = error.strerror if isinstance(error, OSError) else "bad file name"
        raise CheckpointError(str(path), f"cannot be opened: {reason}") from error
    status = os.fstat(descriptor)
    if not stat.S_ISREG(status.st_mode):
        os.close(descriptor)
        raise CheckpointError(str(path), "is not a regular file")
    return descriptor, status.st_size


def read_start(path: Path, num_bytes: int) -> bytes:
    """The first bytes of a regular file, fewer where it is shorter."""
    descriptor, _ = open_regular(path)
    with open(descriptor, "rb") as stream:
        return stream.read(num_bytes)


def read_whole(path: Path, limit_bytes: int) -> bytes:
    """A regular file's content; the size is checked before anything is read."""
    descriptor, size = open_regular(path)
    with open(descriptor, "rb") as stream:
        if size > limit_bytes:
            raise CheckpointError(str(path), f"has {size} bytes; the limit is {limit_bytes}")
        content = stream.read(size + 1)
    if len(content) != size:
        raise CheckpointError(str(path), "changed while it was read")
    return content


def read_text(path: Path, field: str, limit_bytes: int = MAX_TEXT_BYTES) -> str:
    """The text file that an option names, whole. Raises InvalidRequest of `field`."""
    try:
        return read_whole(path, limit_bytes).decode("utf-8")
    except CheckpointError as error:
        raise InvalidRequest(field, str(error)) from None
    except UnicodeDecodeError as error:
        raise InvalidRequest(field, f"{path} is not UTF-8: {error}") from None


def check_writable(field: str, path: Path) -> None:
    """Before the work whose outcome goes into the file that an option names. Raises InvalidRequest
    of `field`."""
    if not path.parent.is_dir():
        raise InvalidRequest(field, f"there is no folder {path.parent}")
    try:
        is_there = path.exists()
    except OSError as error:
        raise InvalidRequest(field, f"{str(path)[:80]}…: {error.strerror}") from None
    if path.is_dir() or not os.access(path if is_there else path.parent, os.W_OK):
        raise InvalidRequest(field, f"{path} cannot be written")


def path_inside(folder: Path, name: str) -> Path:
    """Where `name` in `folder` really lies; the file need not exist.

    A link may not lead out of the folder. In a Hugging Face cache the folder is a snapshot whose
    files are links into `blobs`, so there the border is the model's own `models--*` directory.
    """
    bad = name in ("", ".", "..") or any(mark in name for mark in "/\\\0")
    if bad or len(name.encode("utf-8", "replace")) > MAX_FILE_NAME_BYTES:
        raise CheckpointError(str(folder), f"{name[:80]!r} is not the plain name of a file")
    try:
        home = folder.resolve()
        target = (folder / name).resolve()
    except (OSError, RuntimeError, ValueError) as error:  # a loop of links
        raise CheckpointError(str(folder / name), "cannot be resolved") from error
    border = next((up for up in home.parents if up.name.startswith("models--")), home)
    if not target.is_relative_to(border):
        raise CheckpointError(str(folder / name), "is a link that leads out of its folder")
    return target


def parse_json_object(content: bytes, file: str, max_items: int) -> dict[str, Any]:
    """A JSON object, strictly: UTF-8, each key once, only finite numbers, no half characters.

    Two parsers that treat a doubled key differently see different models, so it is refused.
    `max_items` bounds commas and brackets, hence objects, before the first one is made.
    """
    num_items = sum(content.count(mark) for mark in (b",", b"[", b"{"))
    if num_items > max_items:
        raise CheckpointError(file, f"JSON of {num_items} items; the limit is {max_items}")
    try:
        value = strict_json(content.decode("utf-8"))
    except UnicodeEncodeError as error:
        raise CheckpointError(file, "JSON text has half a character, by \\u escapes") from error
    except UnicodeError as error:
        raise CheckpointError(file, "JSON text is not valid UTF-8") from error
    except ValueError as error:
        raise CheckpointError(file, f"JSON is refused: {str(error)[:200]}") from error
    if not isinstance(value, dict):
        raise CheckpointError(file, "JSON is not an object")
    return value


class DoubledKey(ValueError):
    """An object of a JSON text has a key twice."""


def strict_json(text: str, parse_int: Callable[[str], int] | None = None) -> Any:
    """The value of a JSON text: each key once, only finite numbers, no half characters.

    `parse_int` is asked of each integer; it may raise ValueError. Raises ValueError: DoubledKey,
    UnicodeError (an escape writes half a character), or another that says what is wrong.
    """
    try:
        value = json.loads(
            text,
            object_pairs_hook=_object_of,
            parse_constant=_refuse_constant,
            parse_float=_finite,
            parse_int=parse_int,
        )
    except RecursionError as error:
        raise ValueError("it is nested too deep") from error
    if "\\u" in text:
        json.dumps(value, ensure_ascii=False).encode("utf-8")
    return value


def strict_toml(text: str) -> dict[str, Any]:
    """The table of a TOML text, whose length the caller bounds. Raises ValueError, which says what
    is wrong: one that tomllib would run out of memory or stack with is refused, too."""
    if _DOTTED.search(text):
        raise ValueError(f"a key has over {MAX_DOTTED} parts")
    try:
        return tomllib.loads(text)
    except RecursionError as error:
        raise ValueError("it is nested too deep") from error


def _object_of(pairs: list[tuple[str, Any]]) -> dict[str, Any]:
    found = dict(pairs)
    if len(found) != len(pairs):
        seen: set[str] = set()
        for key, _ in pairs:
            if key in seen:
                raise DoubledKey(f"the key {key[:80]!r} stands there twice")
            seen.add(key)
    return found


def _refuse_constant(word: str) -> NoReturn:
    raise ValueError(f"{word} is not a number of JSON")


def _finite(text: str) -> float:
    value = float(text)
    if not math.isfinite(value):
        raise ValueError(f"the number {text[:40]} is out of range")
    return value
