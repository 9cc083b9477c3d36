"""Will a model fit, and how fast can it be: by sizes and by what this machine can do at most.

Owns: the estimate before a load, or before a fetch, and on which numbers it rests.
May not know: how memory is shared out, how a limit is measured.
Read next: `bounds.py` (the same arithmetic over traced steps), `limits.py`, `known_limits.py`.

A generated token reads the weights once, a prompt multiplies by each. Of a model that is not here
only the size of its files is known: its weights are taken to be as large.
"""

from __future__ import annotations

import shutil
from collections.abc import Callable, Iterator
from contextlib import closing
from dataclasses import asdict
from pathlib import Path
from typing import Any

from firsthand.compute.native.cores import available_threads
from firsthand.config import Environment, read_environment
from firsthand.errors import CapacityExceeded, ModelNotFound
from firsthand.generation.load_options import LoadOptions
from firsthand.generation.loading import plan_model
from firsthand.generation.planning import PROCESS_BYTES
from firsthand.measure.known_limits import KnownLimits, known_limits
from firsthand.memory.budget import resolve_limit
from firsthand.memory.machine import free_bytes
from firsthand.models.spec import ModelSpec
from firsthand.values import dataclass
from firsthand.weights.catalogue import resolve
from firsthand.weights.open import open_checkpoint
from firsthand.weights.remote_sizes import remote_bytes

LEAST_BESIDE_BYTES = 64 << 20  # of a model that is not here: scratch and a small cache


@dataclass(frozen=True, slots=True)
class Forecast:
    """Rates are at most: what the machine's limits allow one sequence. None: not known."""

    is_here: bool
    file_bytes: int
    disk_free_bytes: int
    weights_bytes: int
    need_bytes: int
    limit_bytes: int | None
    fits_disk: bool
    fits_memory: bool
    why_not: str
    context_length: int | None
    max_sequences: int | None
    decode_tokens_per_second: float
    prompt_tokens_per_second: float | None
    limits: KnownLimits

    @property
    def fits(self) -> bool:
        return self.fits_disk and self.fits_memory

    def to_dict(self) -> dict[str, Any]:
        return asdict(self)

    def lines(self, in_bytes: Callable[[int], str]) -> Iterator[str]:
        """For a person."""
        where = "on this disk" if self.is_here else "not fetched yet: estimated from its size"
        yield f"model    {in_bytes(self.file_bytes)}, {where}"
        yield f"disk     {in_bytes(self.disk_free_bytes)} free: {_fits(self.fits_disk)}"
        limit = "no limit" if self.limit_bytes is None else f"of {in_bytes(self.limit_bytes)}"
        why = f": {self.why_not}" if self.why_not else ""
        yield f"memory   {in_bytes(self.need_bytes)} {limit}: {_fits(self.fits_memory)}{why}"
        if self.context_length is not None:
            yield f"context  {self.context_length} tokens, {self.max_sequences} sequences at once"
        prompt = self.prompt_tokens_per_second
        told = "" if prompt is None else f", {prompt:.0f} tokens/s of a prompt"
        yield f"speed    at most {self.decode_tokens_per_second:.1f} tokens/s{told}"
        yield f"         by this machine's limits, {self.limits.origin}"


def _fits(holds: bool) -> str:
    return "fits" if holds else "DOES NOT FIT"


def forecast(model: str, options: LoadOptions) -> Forecast:
    """Nothing is fetched or loaded. Raises ModelNotFound, CheckpointError, UnsupportedModel."""
    environment = read_environment()
    try:
        path = resolve(model, environment).path
    except ModelNotFound:
        size = remote_bytes(model, environment)
        if size is None:
            raise
        return _of_remote(size, options, environment)
    return _of_local(model, path, options, environment)


def _of_remote(size: int, options: LoadOptions, environment: Environment) -> Forecast:
    limit = resolve_limit(options.memory_limit, free_bytes()).num_bytes
    need = size + PROCESS_BYTES[options.executor] + LEAST_BESIDE_BYTES
    fits = limit is None or need <= limit
    free = _disk_free(environment.home)
    limits = known_limits(size, options.threads or available_threads(), environment.home)
    return Forecast(
        is_here=False,
        file_bytes=size,
        disk_free_bytes=free,
        weights_bytes=size,
        need_bytes=need,
        limit_bytes=limit,
        fits_disk=2 * size <= free,  # the file, and its packed form
        fits_memory=fits,
        why_not="" if fits else "take a smaller one, or fewer bits",
        context_length=None,
        max_sequences=None,
        decode_tokens_per_second=limits.read_gb_per_second * 1e9 / size,
        prompt_tokens_per_second=None,
        limits=limits,
    )


def _of_local(model: str, path: Path, options: LoadOptions, environment: Environment) -> Forecast:
    with closing(open_checkpoint(path)) as checkpoint:
        size = sum(info.num_bytes for info in checkpoint.tensors.values())
        parameters = sum(i.num_elements for i in checkpoint.tensors.values() if len(i.shape) > 1)
    why_not, budget, spec = "", None, None
    try:
        spec, budget = plan_model(model, options)
    except CapacityExceeded as error:
        why_not = str(error)
    weights = size if budget is None else budget.fixed.weights_bytes
    limit = resolve_limit(options.memory_limit, free_bytes()).num_bytes
    limits = known_limits(weights, options.threads or available_threads(), environment.home)
    active = 1.0 if spec is None else _active_share(spec)
    free = _disk_free(environment.home)
    return Forecast(
        is_here=True,
        file_bytes=size,
        disk_free_bytes=free,
        weights_bytes=weights,
        need_bytes=size if budget is None else budget.shared_bytes,
        limit_bytes=limit if budget is None else budget.limit.num_bytes,
        fits_disk=weights <= free,
        fits_memory=budget is not None,
        why_not=why_not,
        context_length=None if budget is None else budget.context_length,
        max_sequences=None if budget is None else budget.max_sequences,
        decode_tokens_per_second=limits.read_gb_per_second * 1e9 / (active * weights),
        prompt_tokens_per_second=limits.int8_gmac_per_second * 1e9 / (active * parameters),
        limits=limits,
    )


def _active_share(spec: ModelSpec) -> float:
    """Of the weights, those that one token passes: of experts a few."""
    experts = spec.experts
    if experts is None:
        return 1.0
    each = 3 * spec.width * experts.width * spec.num_layers
    beside = spec.num_layers * spec.width * 2 * (spec.q_width + spec.kv_width)
    beside += spec.vocab_size * spec.width
    return (beside + experts.top_k * each) / (beside + experts.num_experts * each)


def _disk_free(home: Path) -> int:
    there = next(one for one in (home, *home.parents) if one.is_dir())
    return shutil.disk_usage(there).free
