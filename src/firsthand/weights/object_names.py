"""Addresses of object storage, and where in our cache lies what was fetched from there.

Owns: the grammar of `s3://bucket/prefix`, the layout of the folder.
May not know: networks.
Read next: `objects.py`, which fills the folder; `catalogue.py`.

    HOME/objects/NAME/address         NAME: hash of the address, which stands in the file
    HOME/objects/NAME/current         the version that it stands for since the last pull
    HOME/objects/NAME/VERSION/FILE    VERSION: hash of names, sizes and ETags
    HOME/objects/NAME/.VERSION/       what is being fetched; gets its name when all of it is right
"""

from __future__ import annotations

import hashlib
import re
from pathlib import Path

from firsthand.config import Environment
from firsthand.errors import InvalidRequest
from firsthand.files import read_whole
from firsthand.values import dataclass
from firsthand.weights.model_names import is_safe_file, is_sha256, shown

SCHEME = "s3://"
_BUCKET = re.compile(r"[a-z0-9][a-z0-9.-]{1,61}[a-z0-9]", re.ASCII)


@dataclass(frozen=True, slots=True)
class ObjectId:
    """`s3://bucket/prefix`, both checked: safe as a part of an address."""

    bucket: str
    prefix: str

    def __str__(self) -> str:
        return f"{SCHEME}{self.bucket}/{self.prefix}"


def parse_object_id(model: str, field: str = "model") -> ObjectId | None:
    """None for what does not begin with s3://. Raises InvalidRequest for what is no address."""
    if not model.startswith(SCHEME):
        return None
    bucket, _, prefix = model.removeprefix(SCHEME).rstrip("/").partition("/")
    if not _BUCKET.fullmatch(bucket) or ".." in bucket or not is_safe_file(prefix):
        raise InvalidRequest(field, f"{shown(model)} is not s3://bucket/prefix")
    return ObjectId(bucket, prefix)


def object_folder(object_id: ObjectId, env: Environment) -> Path:
    name = hashlib.sha256(str(object_id).encode("ascii")).hexdigest()
    return env.home / "objects" / name[:40]


def pulled_objects(env: Environment) -> list[ObjectId]:
    """The addresses of which something was fetched."""
    found = []
    for path in sorted((env.home / "objects").glob("*/address")):
        object_id = parse_object_id(read_whole(path, 4096).decode("ascii", "replace").strip())
        if object_id is not None and object_folder(object_id, env) == path.parent:
            found.append(object_id)
    return found


def pulled_folder(object_id: ObjectId, env: Environment) -> Path | None:
    """The model of the last pull, whole; None before the first."""
    folder = object_folder(object_id, env)
    current = folder / "current"
    if not current.is_file():
        return None
    version = read_whole(current, 100).decode("ascii", "replace").strip()
    if not is_sha256(version) or not (folder / version).is_dir():
        return None
    return folder / version
