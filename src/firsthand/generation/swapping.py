"""Loading with a part of the weights in memory: what goes through a model, and who lets weights go.

Owns: the conditions under which shards work.
May not know: how shards are chosen or read, where a packed form lies.
Read next: `loading.py`, which calls; `packing.py`; `compute/native/shards.py`.
"""

from __future__ import annotations

from typing import Protocol

from firsthand.compute.executor import Executor, Swaps
from firsthand.errors import CheckpointError, InvalidRequest
from firsthand.generation.packing import Packing, TakenForm
from firsthand.models import families
from firsthand.models.spec import ModelSpec
from firsthand.weights.checkpoint import Checkpoint, WeightSink
from firsthand.weights.loading import LoadReport, PackedForm, Progress, load
from firsthand.weights.sources import Quantization


class Reader(Protocol):
    """Hands a model's weights over; see `weights.loading.load`."""

    def __call__(
        self,
        sink: WeightSink,
        progress: Progress | None = None,
        packed: PackedForm | None = None,
    ) -> LoadReport: ...


def reader(checkpoint: Checkpoint, spec: ModelSpec, quantization: Quantization) -> Reader:
    family = families.family(spec)

    def read(
        sink: WeightSink, progress: Progress | None = None, packed: PackedForm | None = None
    ) -> LoadReport:
        slots, layout = family.slots(spec), family.gguf_layout
        return load(checkpoint, slots, layout, sink, quantization, progress, packed)

    return read


def swap_weights(
    executor: Executor,
    packing: Packing | None,
    packed: TakenForm | None,
    room_bytes: int | None,
) -> None:
    """Let weights come and go with the steps. Raises CapacityExceeded when too few can stay."""
    if packing is None or not isinstance(executor, Swaps):
        message = "shards are those of the packed form; FIRSTHAND_PACK_CACHE is 0"
        raise InvalidRequest("load", message)
    if packed is None or packing.path is None:
        raise CheckpointError(packing.source, "its packed form is not that of the model")
    executor.swap(packed, room_bytes)
