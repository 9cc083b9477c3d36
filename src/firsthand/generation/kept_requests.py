"""A request as plain values, with all that its answer depends on.

Owns: the form in which a request is kept, and what has to be the same for equal bits.
May not know: engines; who keeps it, where.
Read next: `golden.py` (what the bits depend on), `replaying.py` (who runs it again).
"""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import asdict
from pathlib import Path
from typing import Any

import msgspec

from firsthand.errors import InvalidRequest
from firsthand.generation.golden import golden_key
from firsthand.generation.load_options import LoadOptions
from firsthand.request import Request
from firsthand.version import VERSION

HARMLESS = {"isa", "version"}  # sums have one order on every instruction set


def request_to_plain(request: Request) -> dict[str, Any]:
    """For JSON."""
    plain: dict[str, Any] = msgspec.to_builtins(request)
    return plain


def request_of_plain(plain: object) -> Request:
    """Raises InvalidRequest."""
    try:
        return msgspec.convert(plain, Request)
    except msgspec.ValidationError as error:
        raise InvalidRequest("request", f"is none that was kept: {error}") from None


def made_by(model: str | Path, options: LoadOptions, context_length: int) -> dict[str, Any]:
    """All that the bits of an answer depend on, beside the request. Hashes the model's files, where
    their hash is not on record. Raises ModelNotFound, CheckpointError."""
    key = golden_key(model, options, hash_now=True)
    assert key is not None, "it was hashed"
    return {**asdict(key), "context_length": context_length, "version": VERSION}


def load_options(made: Mapping[str, Any], lora: Mapping[str, str] | None) -> LoadOptions:
    """To load a model as it was loaded. Raises InvalidRequest."""
    try:
        return LoadOptions(
            executor=made["executor"],
            device=made["isa"] if made["executor"] == "torch" else "cpu",
            quantization=made["quantization"],
            kv_dtype=made["kv_dtype"],
            max_context=made["context_length"],
            lora=lora,
        )
    except KeyError as error:
        raise InvalidRequest("ID", f"its record does not say what made it: {error}") from None


def differing(made: Mapping[str, Any], here: Mapping[str, Any]) -> tuple[list[str], list[str]]:
    """What is another one here, in words: what changes bits, and what should not."""
    apart = {name for name in made if made[name] != here.get(name)}
    words = {name: f"{name} was {made[name]}, here it is {here.get(name)}" for name in apart}
    hard = [words[name] for name in sorted(apart - HARMLESS)]
    return hard, [words[name] for name in sorted(apart & HARMLESS)]
