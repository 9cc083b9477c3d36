"""The two models of a calibration: what they are, how they are loaded, what is known of a request.

Owns: the identity of a model for a calibration; from a hearing, or from usage, to what is told.
May not know: how an answer comes to be, HTTP. No engine is loaded for it.
Read next: `../cascade/calibration.py`; `cascade.py`, and in the server `server/cascade.py`.
"""

from __future__ import annotations

from collections.abc import Mapping
from contextlib import closing
from dataclasses import fields
from math import isfinite
from pathlib import Path

from firsthand.cascade.calibration import Calibration, Side
from firsthand.cascade.confidence import Hearing
from firsthand.cascade.decision import SURE, UNSURE, Decision, Spent
from firsthand.config import read_environment
from firsthand.errors import InvalidRequest
from firsthand.generation.golden import golden_key
from firsthand.generation.load_options import LoadKeywords, LoadOptions
from firsthand.generation.service_values import StreamUsage
from firsthand.weights.catalogue import resolve
from firsthand.weights.open import open_checkpoint

# Options that name ids of one vocabulary, or the adapters of one model.
OF_ONE_MODEL = ("logit_bias", "stop_token_ids", "adapter")


def check_options(options: Mapping[str, object]) -> None:
    """Raises InvalidRequest for what only one of the two could understand."""
    for name in OF_ONE_MODEL:
        if options.get(name):
            raise InvalidRequest(name, "goes with one model; a cascade is two")


def side_of(model: str | Path, options: LoadOptions) -> Side:
    """Raises ModelNotFound, CheckpointError. Reads the files whole, where their hash is not on
    record."""
    key = golden_key(model, options, hash_now=True)
    assert key is not None, "it was hashed"
    own = {one.name for one in fields(Side)}
    same = {one.name: getattr(key, one.name) for one in fields(key) if one.name in own}
    return Side(str(model), parameters=_num_parameters(model), **same)


def _num_parameters(model: str | Path) -> int:
    """A tensor that has two names counts once."""
    path = resolve(str(model), read_environment()).path
    with closing(open_checkpoint(path)) as checkpoint:
        places = {(one.file, one.offset): one for one in checkpoint.tensors.values()}
    return sum(one.num_elements for one in places.values())


def check_sides(calibration: Calibration, small: Side, large: Side) -> None:
    """Raises InvalidRequest where they are not those that were measured."""
    for name, wanted, given in (
        ("small", calibration.small, small),
        ("large", calibration.large, large),
    ):
        if wanted.identity != given.identity:
            raise InvalidRequest(name, f"was calibrated as {wanted}, this is {given}")


def decided(calibration: Calibration, hearing: Hearing) -> Decision:
    """Of a hearing with a verdict."""
    confidence = calibration.worth(hearing.score) if isfinite(hearing.score) else None
    reason = SURE if hearing.verdict else UNSURE
    return Decision(reason, calibration.confidence, confidence)


def as_calibrated(side: Side, options: LoadKeywords) -> LoadOptions:
    return LoadOptions(**calibrated_keywords(side, options))


def calibrated_keywords(side: Side, options: LoadKeywords) -> LoadKeywords:
    """To load it as it was measured; `options` say the rest."""
    own = {"quantization": side.quantization, "kv_dtype": side.kv_dtype, "executor": side.executor}
    return {**options, **own}  # type: ignore[typeddict-item]  # checked by LoadOptions


def spent_of(side: Side, usage: StreamUsage) -> Spent:
    """So far, of one request."""
    computed = usage.prompt_tokens - usage.cached_tokens
    return Spent(side.model, computed, usage.completion_tokens, side.parameters)
