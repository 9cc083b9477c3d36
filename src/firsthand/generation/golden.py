"""Golden tokens: what a model must answer to a fixed input, written down by an earlier process.

Owns: the fixed input, the name and the form of the record, where it lies.
May not know: engines, HTTP. Who asks for tokens hands them over; who compares does it elsewhere.
Read next: `server/selfcheck.py`, which compares.

    HOME/golden/KEY.json    KEY: hash of the weights' content, their format and the numerics

The record lies beside the packed models and is bound, as they are, to the hash of the model's
files. It is written once, on request, from two engines that agree; a server that checks itself only
reads it, so that no process ever vouches for itself.
"""

from __future__ import annotations

import hashlib
import json
import os
import time
from collections.abc import Sequence
from contextlib import closing
from dataclasses import asdict
from pathlib import Path
from typing import Any, Final

from firsthand.checks import is_integer
from firsthand.compute.native import _native
from firsthand.config import Environment, read_environment
from firsthand.errors import CheckpointError
from firsthand.files import parse_json_object, read_whole
from firsthand.generation.load_options import LoadOptions
from firsthand.values import dataclass
from firsthand.weights.catalogue import resolve
from firsthand.weights.open import open_checkpoint
from firsthand.weights.packed_cache import PackedCache, packed_folder, wait_until_settled
from firsthand.weights.places import write_atomically

# Raise it when the same weights give other bits for a reason of ours: the order of a sum, another
# rounding, another kernel. Every record made before is then unknown.
NUMERICS: Final = 2
PROMPT: Final = (1, 7, 2, 9, 4, 6, 3, 8, 5, 11, 10, 13, 12, 17, 14, 19)
NUM_TOKENS: Final = 16
_MAX_BYTES = 1 << 16


@dataclass(frozen=True, slots=True)
class GoldenKey:
    """All that the bits depend on. `weights` is the hash of the model's files."""

    weights: str
    quantization: str
    kv_dtype: str
    executor: str
    isa: str
    numerics: int = NUMERICS

    @property
    def name(self) -> str:
        text = json.dumps(asdict(self), sort_keys=True)
        return hashlib.sha256(text.encode("ascii")).hexdigest()


@dataclass(frozen=True, slots=True)
class Golden:
    key: GoldenKey
    prompt: tuple[int, ...]
    tokens: tuple[int, ...]
    recorded_s: int  # Unix time


def golden_key(model: str | Path, options: LoadOptions, *, hash_now: bool) -> GoldenKey | None:
    """The key of a model as it is to be run. None: the hash of its files is not on record and is
    not to be made now (it takes reading them whole). Raises ModelNotFound, CheckpointError."""
    environment = read_environment()
    with closing(open_checkpoint(resolve(str(model), environment).path)) as checkpoint:
        cache = PackedCache(packed_folder(environment.home), "")
        source, files = os.path.realpath(checkpoint.path), tuple(checkpoint.files)
        content = cache.content(source, files)
        if content is None and hash_now:
            wait_until_settled(files)  # nothing was read of them yet
            content = cache.record(source, files, time.time_ns())
    if content is None:
        return None
    return GoldenKey(
        weights=content,
        quantization=options.quantization,
        kv_dtype=options.kv_dtype,
        executor=options.executor,
        isa=_native.isa(environment.isa or "") if options.executor == "native" else options.device,
    )


def read_golden(key: GoldenKey, environment: Environment | None = None) -> Golden | None:
    """The record; None: there is none, or it is not of this key."""
    path = _path(key, environment)
    try:
        record = parse_json_object(read_whole(path, _MAX_BYTES), str(path), 4096)
    except CheckpointError:
        return None
    prompt, tokens = _ids(record.get("prompt")), _ids(record.get("tokens"))
    recorded_s = record.get("recorded_s")
    if record.get("key") != asdict(key) or not prompt or not tokens or not is_integer(recorded_s):
        return None
    return Golden(key, prompt, tokens, recorded_s)


def write_golden(
    key: GoldenKey, tokens: Sequence[int], environment: Environment | None = None
) -> Path:
    """Raises OSError."""
    path = _path(key, environment)
    path.parent.mkdir(parents=True, exist_ok=True)
    record = {
        "key": asdict(key),
        "prompt": list(PROMPT),
        "tokens": list(tokens),
        "recorded_s": int(time.time()),
    }
    write_atomically(path, json.dumps(record, indent=1).encode())
    return path


def _path(key: GoldenKey, environment: Environment | None) -> Path:
    home = (environment or read_environment()).home
    return home / "golden" / f"{key.name}.json"


def _ids(value: Any) -> tuple[int, ...]:
    if not isinstance(value, list) or not all(is_integer(one) and one >= 0 for one in value):
        return ()
    return tuple(value)
