"""The stages together, as the engine sees them: an executor, and the store that goes with it.

Owns: the cut of a step into parts, and what is remembered of the last steps.
May not know: how work travels (`links.py`), scheduling, sampling.
Read next: `micro.py` (the cut), `timeline.py` (what the spans say), `loading.py`.

The engine above does not know of stages: blocks, scheduler and sampler are where they always are,
in the process that asks. A step goes through the stages in parts, so that all of them compute; what
it takes until the first part has come to the last stage, and from the last part on in the first
one, is the bubble.
"""

from __future__ import annotations

from collections import deque
from collections.abc import Sequence

import numpy as np
from numpy.typing import NDArray

from firsthand.cluster.pipeline.links import Links
from firsthand.cluster.pipeline.micro import RowCost, split_batch
from firsthand.cluster.pipeline.splits import Costs
from firsthand.cluster.pipeline.timeline import Span
from firsthand.cluster.pipeline.work import Work
from firsthand.compute.batch import FlatBatch
from firsthand.compute.executor import Held, ModelProgram, OpTime
from firsthand.errors import EngineError, UnsupportedModel
from firsthand.kvcache.arrays import KVLayout, KVType, LayerArrays
from firsthand.kvcache.store import KVStore
from firsthand.quant.formats import WeightSource
from firsthand.quant.low_rank import LowRank

KEPT_SPANS = 20_000  # of the last steps


class StageStore:
    """The stages' stores as one: the same blocks in each. What is to be copied goes with the next
    step, before it: until then nobody reads it."""

    def __init__(
        self,
        *,
        num_blocks: int,
        block_size: int,
        bytes_per_token: int,
        kv_dtype: KVType,
        layout: KVLayout,
    ) -> None:
        self._num_blocks = num_blocks
        self._block_size = block_size
        self._bytes_per_token = bytes_per_token
        self._kv_dtype = kv_dtype
        self._layout = layout
        self._copies: list[tuple[int, int]] = []

    @property
    def block_size(self) -> int:
        return self._block_size

    @property
    def num_blocks(self) -> int:
        return self._num_blocks

    @property
    def num_bytes(self) -> int:
        return self._num_blocks * self._block_size * self._bytes_per_token

    @property
    def kv_dtype(self) -> KVType:
        return self._kv_dtype

    @property
    def layout(self) -> KVLayout:
        return self._layout

    def resident_bytes(self, num_tokens: int) -> int:
        return num_tokens * self._bytes_per_token

    def block_start(self, block_id: int) -> int:
        return block_id * self._block_size

    def layer(self, layer: int) -> LayerArrays:
        raise EngineError(f"the keys and values of layer {layer} are a stage's")

    def copy_block(self, source: int, target: int) -> None:
        self._copies.append((source, target))

    def fill_block(self, block_id: int, byte: int) -> None:
        raise EngineError("blocks of a split model are not filled from here")

    def take_copies(self) -> tuple[tuple[int, int], ...]:
        taken, self._copies = tuple(self._copies), []
        return taken


class PipelineExecutor:
    """See `compute/executor.py`. `num_parts` None: as many as pay by `cost`, which was measured."""

    name = "pipeline"

    def __init__(
        self,
        links: Links,
        *,
        vocab_size: int,
        held: Held,
        num_parts: int | None = None,
    ) -> None:
        self._links = links
        self._vocab_size = vocab_size
        self._held = held
        self._num_parts = num_parts
        self._clocks = links.clocks()
        self._spans: deque[Span] = deque(maxlen=KEPT_SPANS)
        self._num_steps = 0
        self.cost: RowCost | None = None

    @property
    def spans(self) -> list[Span]:
        """Of the last steps, on this process's clock."""
        return list(self._spans)

    def forget_spans(self) -> None:
        self._spans.clear()

    def run(self, batch: FlatBatch, store: KVStore) -> NDArray[np.float32]:
        return _logits(self._through(split_batch(batch, self._parts_of(batch)), store))

    def trace(self, batch: FlatBatch, store: KVStore) -> tuple[NDArray[np.float32], list[OpTime]]:
        done = self._through([batch], store, is_traced=True)
        return _logits(done), list(done[0].ops)

    def costs(self, batch: FlatBatch, store: KVStore) -> Costs:
        """What each layer, and what is around them, takes for this batch, in ms."""
        (done,) = self._through([batch], store, is_traced=True)
        layers = tuple(ms for stage in done.costs for ms in stage.layers)
        return Costs(layers, done.costs[0].before, done.costs[-1].after)

    def memory(self) -> Held:
        """Of all stages together."""
        return self._held

    def load_weight(self, source: WeightSource) -> None:
        raise _of_stages("weights")

    def load_vector(self, name: str, values: NDArray[np.float32]) -> None:
        raise _of_stages("weights")

    def alias(self, name: str, target: str) -> None:
        raise _of_stages("weights")

    def prepare(self, program: ModelProgram, max_tokens: int, max_logit_rows: int) -> None:
        raise _of_stages("plans")

    def add_adapter(self, name: str, factors: Sequence[LowRank]) -> None:
        raise UnsupportedModel("a model that is split over stages takes no adapters")

    def logits(self, rows: NDArray[np.int32]) -> NDArray[np.float32]:
        raise UnsupportedModel("of a model that is split over stages no prompt can be scored")

    def hidden(self, rows: NDArray[np.int32]) -> NDArray[np.float32]:
        raise UnsupportedModel("of a model that is split over stages no prompt can be pooled")

    def _parts_of(self, batch: FlatBatch) -> int:
        if self._num_parts is not None:
            return self._num_parts
        if self.cost is None:
            return 1
        return self.cost.best_parts(batch.num_tokens, self._links.num_stages)

    def _through(
        self, batches: Sequence[FlatBatch], store: KVStore, *, is_traced: bool = False
    ) -> list[Work]:
        copies = store.take_copies() if isinstance(store, StageStore) else ()
        self._num_steps += 1
        works = [
            Work(
                step=self._num_steps,
                part=part,
                batch=batch,
                copies=() if part else copies,
                is_traced=is_traced,
            )
            for part, batch in enumerate(batches)
        ]
        done = self._links.run(works)
        self._spans.extend(self._on_our_clock(span) for work in done for span in work.spans)
        return done

    def _on_our_clock(self, span: Span) -> Span:
        later_s = self._clocks[span.stage]
        return Span(
            span.step,
            span.part,
            span.stage,
            span.began_s + later_s,
            span.ended_s + later_s,
            span.num_rows,
            span.num_bytes,
        )


def _logits(done: Sequence[Work]) -> NDArray[np.float32]:
    rows = [work.rows for work in done if work.rows is not None]
    return rows[0] if len(rows) == 1 else np.concatenate(rows)


def _of_stages(what: str) -> EngineError:
    return EngineError(f"the stages of a split model load their {what} themselves")
