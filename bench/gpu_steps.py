"""What one step costs on a device: its time, and the part of it in which the card was busy.

Owns: the clock, the executor that is measured, a decoding step and a prompt.
May not know: in which order anything is measured, and beside what.
Read next: `gpu.py`; `gpu_models.py`, the models and batches.
"""

from __future__ import annotations

import statistics
import time
from collections.abc import Callable
from typing import Any, Protocol

from bench.gpu_models import Shape, batch_of, decoding

REPEATS = 20


class Place(Protocol):
    """Where it is measured; `smoke`: in the interpreter, once, for the sake of having run."""

    smoke: bool
    device: str


def new_executor(place: Place, **options: Any) -> Any:
    """Activations as transformers would have them, so that the two are alike."""
    from firsthand.compute.triton.executor import TritonExecutor

    if place.smoke and options.get("buckets"):
        options["capture"] = lambda call: call  # a graph wants a card
    dtype = "float32" if place.smoke else "float16"
    return TritonExecutor(place.device, dtype, **options)


def decode(place: Place, executor: Any, store: Any, shape: Shape, rows: int) -> dict[str, Any]:
    """A token for so many sequences; `overhead`: the share in which the card was idle."""
    batch = decoding(shape, rows)
    step_ms = timed(place, lambda: executor.run(batch, store))
    device_ms = _device_ms(place, executor, batch, store)
    return {
        "rows": rows,
        "step_ms": step_ms,
        "device_ms": device_ms,
        "overhead": None if device_ms is None else 1 - device_ms / step_ms,
    }


def picked(place: Place, executor: Any, store: Any, shape: Shape, rows: int) -> dict[str, Any]:
    """The same where only ids come back, and where the likeliest tokens do."""
    batch = decoding(shape, rows)
    return {
        "ids_ms": timed(place, lambda: executor.run_best(batch, store)),
        "shortlist_ms": timed(place, lambda: executor.run_shortlist(batch, store)),
    }


def prompt(place: Place, executor: Any, store: Any, shape: Shape) -> dict[str, Any]:
    """As many tokens of one sequence as a step takes."""
    batch = batch_of(shape, [(0, 0, shape.max_tokens)])
    step_ms = timed(place, lambda: executor.run(batch, store))
    return {"tokens": shape.max_tokens, "step_ms": step_ms}


def timed(place: Place, call: Callable[[], object], repeats: int = REPEATS) -> float:
    """The median in milliseconds, after two calls that compile and warm; in the interpreter none is
    to be compiled."""
    repeats, warm = (1, 0) if place.smoke else (repeats, 2)
    times = []
    for nth in range(warm + repeats):
        wait(place)
        began_s = time.perf_counter()
        call()
        wait(place)
        if nth >= warm:
            times.append((time.perf_counter() - began_s) * 1e3)
    return statistics.median(times)


def wait(place: Place) -> None:
    if place.device == "cuda":
        import torch

        torch.cuda.synchronize()


def _device_ms(place: Place, executor: Any, batch: Any, store: Any) -> float | None:
    """What the card itself was busy in one step, by torch's profiler; None: there is no card."""
    if place.device != "cuda":
        return None
    import torch

    from firsthand.compute.torch.profiling import profile_step

    step = profile_step(lambda: executor.run(batch, store), torch.device(place.device))
    return sum(call.device_ms for call in step.calls)
