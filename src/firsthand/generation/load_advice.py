"""Which way to load a model: whole, in shards, or not before it is asked for; with the arithmetic.

Owns: the table of sizes and rates, and where this machine's memory overrules it.
May not know: how a model is loaded.
Read next: `planning.py` (the estimates), `load_options.py` (the ways).

The table is the handbook's: below 1 billion parameters whole, to 10 billion in shards, above in
shards over several devices; a model that is seldom asked for, at the first request. Shards swap
nothing where all fits, so they cost nothing there. So memory overrules the table in one case: a
small model that does not fit.
"""

from __future__ import annotations

from contextlib import closing
from dataclasses import asdict, replace
from pathlib import Path
from typing import Any

from firsthand.config import read_environment
from firsthand.errors import CapacityExceeded, InvalidRequest
from firsthand.generation import planning
from firsthand.generation.load_options import LoadOptions
from firsthand.generation.reading import read_spec
from firsthand.memory.budget import Budget, mib
from firsthand.values import dataclass
from firsthand.weights.catalogue import resolve
from firsthand.weights.open import open_checkpoint

WHOLE_BELOW = 1_000_000_000  # parameters
DEVICES_ABOVE = 10_000_000_000
SELDOM_PER_HOUR = 1.0  # requests; below it a model is loaded when it is asked for
DISK_BYTES_PER_S = 1_000_000_000  # for the estimate of a step, until it is measured


@dataclass(frozen=True, slots=True)
class LoadAdvice:
    """`load` is the value of the flag. `swapped_bytes`: read each step in shards, by estimate."""

    load: str
    table: str  # what the table alone says
    why: tuple[str, ...]
    num_parameters: int
    weights_bytes: int
    limit_bytes: int | None
    held_bytes: int  # of weights, in shards
    swapped_bytes: int

    @property
    def step_s(self) -> float:
        """What reading adds to each step at DISK_BYTES_PER_S, nothing of it hidden."""
        return self.swapped_bytes / DISK_BYTES_PER_S

    def to_dict(self) -> dict[str, Any]:
        return {**asdict(self), "why": list(self.why), "step_s": self.step_s}


def advise_load(
    model: str | Path, options: LoadOptions, requests_per_hour: float | None = None
) -> LoadAdvice:
    """Nothing is loaded. Raises CapacityExceeded when the model fits in no way."""
    if requests_per_hour is not None and not 0 <= requests_per_hour < float("inf"):
        raise InvalidRequest("requests_per_hour", "must be 0 or more")
    resolved = resolve(str(model), read_environment())
    with closing(open_checkpoint(resolved.path)) as checkpoint:
        spec = read_spec(checkpoint, options.max_context, options.family)
        files = {(info.file, info.offset): info for info in checkpoint.tensors.values()}
        num_parameters = sum(info.num_elements for info in files.values())
        shards = planning.expect(checkpoint, spec, replace(options, load="shards"))
        unlimited = planning.expect(checkpoint, spec, replace(options, memory_limit="1000TiB"))
        fits = True
        try:
            planning.expect(checkpoint, spec, replace(options, load="whole"))
        except CapacityExceeded:
            fits = False
    weights_bytes = unlimited.fixed.weights_bytes
    return _advice(num_parameters, weights_bytes, shards, fits, requests_per_hour)


def _advice(
    num_parameters: int,
    weights_bytes: int,
    shards: Budget,
    fits: bool,
    requests_per_hour: float | None,
) -> LoadAdvice:
    table = "whole" if num_parameters < WHOLE_BELOW else "shards"
    limit, held = shards.limit.num_bytes, min(weights_bytes, shards.fixed.weights_bytes)
    rest = shards.fixed.scratch_bytes + shards.fixed.process_bytes
    swapped = 0 if fits else weights_bytes - held
    why = [f"{num_parameters / 1e9:.2f} billion parameters: the table says {table}"]
    if num_parameters > DEVICES_ABOVE:
        why.append("above 10 billion it says several devices, too: this machine has one")
    why.append(
        f"weights {mib(weights_bytes)} + scratch and process {mib(rest)}, and a cache: "
        + (f"fits into {shards.limit}" if fits else f"does not fit into {shards.limit}")
    )
    if fits and table == "shards":
        why.append("all shards stay, so nothing is swapped while that is so")
    if not fits:
        why.append(
            f"{mib(held)} of the weights stay or are there for a time, {mib(swapped)} and more are "
            f"read each step: {swapped / DISK_BYTES_PER_S:.2f} s from a disk of 1 GB/s"
        )
    load = "shards" if not fits else table
    if requests_per_hour is not None and requests_per_hour < SELDOM_PER_HOUR:
        why.append(f"{requests_per_hour:g} requests an hour: load it when one comes")
        load = "lazy" if load == "whole" else "lazy-shards"
    return LoadAdvice(load, table, tuple(why), num_parameters, weights_bytes, limit, held, swapped)
