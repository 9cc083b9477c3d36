"""Where the budget's numbers come from: estimated before a load, measured after it.

Owns: the estimates of weights, scratch and process, each with the measurement it rests on.
May not know: how the budget is shared out (`memory/budget.py`).
Read next: `loading.py`, which asks twice.

The estimate comes first, because a model that cannot fit should be refused before minutes are
spent on reading it, and before the system ends the process. What is then loaded is measured, and
the KV cache gets what is left of the limit.
"""

from __future__ import annotations

import os
from collections.abc import Mapping
from dataclasses import replace
from pathlib import Path
from typing import Protocol

from firsthand.compute.executor import Held
from firsthand.engine.guessing.config import MAX_STEP_GUESSES
from firsthand.generation.executors import device_free_bytes
from firsthand.kvcache.regions import HEADROOM
from firsthand.memory.budget import (
    Budget,
    Fixed,
    Limit,
    Wish,
    kv_bytes_per_token,
    make_budget,
    resolve_limit,
    room_for_weights,
    share_of,
)
from firsthand.memory.machine import free_bytes
from firsthand.models import families
from firsthand.models.spec import ModelSpec
from firsthand.weights.adapters import adapter_bytes
from firsthand.weights.checkpoint import Checkpoint
from firsthand.weights.loading import planned_bytes
from firsthand.weights.sources import Quantization

MOST_SEQUENCES = 16  # when nobody says how many

# Resident beside weights, scratch and cache with a vocabulary of 49,152 tokens: 81 MB with the
# native executor, 331 MB with torch. Most of the difference to an empty vocabulary is its objects.
PROCESS_BYTES = {"native": 64 << 20, "torch": 320 << 20, "triton": 320 << 20}
PROCESS_BYTES_PER_TOKEN = 512  # of the vocabulary


class Sizes(Protocol):
    """The options that a budget depends on; their meaning is at `LoadOptions`."""

    @property
    def executor(self) -> str: ...
    @property
    def device(self) -> str: ...
    @property
    def quantization(self) -> Quantization: ...
    @property
    def kv_dtype(self) -> str: ...
    @property
    def kv_store(self) -> str: ...
    @property
    def block_size(self) -> int: ...
    @property
    def max_context(self) -> int | None: ...
    @property
    def max_step_tokens(self) -> int: ...
    @property
    def max_sequences(self) -> int | None: ...
    @property
    def max_logit_rows(self) -> int | None: ...
    @property
    def threads(self) -> int | None: ...
    @property
    def lora(self) -> Mapping[str, str] | None: ...
    @property
    def speculative_config(self) -> Mapping[str, bool | int | str] | None: ...
    @property
    def memory_limit(self) -> int | str: ...
    @property
    def load(self) -> str: ...


def expect(checkpoint: Checkpoint, spec: ModelSpec, sizes: Sizes, draft_bytes: int = 0) -> Budget:
    """The budget by estimate, with `draft_bytes` for a draft; the limit is measured now. Raises
    CapacityExceeded, and what `weights.loading.load` raises for tensors that do not fit the model.
    """
    family = families.family(spec)
    # The torch executor holds every weight as float32.
    held_as = "none" if sizes.executor == "torch" else sizes.quantization
    slots = family.slots(spec)
    sizes_bytes = planned_bytes(checkpoint, slots, family.gguf_layout, held_as)
    adapters_bytes = sum(adapter_bytes(Path(folder)) for folder in (sizes.lora or {}).values())
    fixed = Fixed(
        weights_bytes=sum(sizes_bytes) + adapters_bytes,
        scratch_bytes=_scratch_bytes(spec, sizes),
        process_bytes=_process_bytes(spec, sizes),
        estimated=True,
        draft_bytes=draft_bytes,
    )
    wish = _wish(spec, sizes, sequences_of(sizes))
    limit = limit_of(sizes)
    room = room_for_weights(limit, fixed, wish)
    if sizes.load == "shards" and room is not None:
        # Which shards there are is known with the plan; two of them have to fit, at the least.
        least_bytes = sum(sorted(sizes_bytes)[-2:]) + adapters_bytes
        held_bytes = min(fixed.weights_bytes, max(room, least_bytes))
        fixed = replace(fixed, weights_bytes=held_bytes)
    return make_budget(limit, fixed, wish)


def weights_room(expected: Budget, held: Held, spec: ModelSpec, sizes: Sizes) -> int | None:
    """What weights may hold at a time, with the scratch as measured; None: no limit is known."""
    fixed = _settled(expected, held)
    return room_for_weights(expected.limit, fixed, _wish(spec, sizes, expected.max_sequences))


def settle(expected: Budget, held: Held, spec: ModelSpec, sizes: Sizes) -> Budget:
    """The budget over what is there now. An executor that measures no scratch keeps the estimate.

    Raises CapacityExceeded when the estimate was too small and nothing is left for the cache.
    """
    return make_budget(
        expected.limit, _settled(expected, held), _wish(spec, sizes, expected.max_sequences)
    )


def settle_stage(limit: Limit, held: Held, spec: ModelSpec, sizes: Sizes) -> Budget:
    """Of a process that has some of a model's layers alone: `spec` with that number of them. The
    limit is that of `limit_of`, before its weights were there. Raises CapacityExceeded."""
    fixed = Fixed(
        weights_bytes=held.weights_bytes,
        scratch_bytes=held.scratch_bytes,
        process_bytes=_process_bytes(spec, sizes),
        estimated=False,
    )
    return make_budget(limit, fixed, _wish(spec, sizes, sequences_of(sizes)))


def sequences_of(sizes: Sizes) -> int:
    """How many are to run at once, where memory allows it."""
    most = min(MOST_SEQUENCES, sizes.max_step_tokens, sizes.max_logit_rows or MOST_SEQUENCES)
    return sizes.max_sequences or most


def _settled(expected: Budget, held: Held) -> Fixed:
    return Fixed(
        weights_bytes=held.weights_bytes,
        scratch_bytes=held.scratch_bytes or expected.fixed.scratch_bytes,
        process_bytes=expected.fixed.process_bytes,
        estimated=False,
        draft_bytes=expected.fixed.draft_bytes,
    )


def _wish(spec: ModelSpec, sizes: Sizes, max_sequences: int) -> Wish:
    return Wish(
        bytes_per_token=kv_bytes_per_token(
            spec.num_layers, spec.num_kv_heads, spec.head_size, sizes.kv_dtype
        ),
        block_size=sizes.block_size,
        context_length=spec.context_length,
        context_is_asked=sizes.max_context is not None,
        max_sequences=max_sequences,
        sequences_are_asked=sizes.max_sequences is not None,
        headroom=HEADROOM if sizes.kv_store == "contiguous" else 1.0,
    )


def _process_bytes(spec: ModelSpec, sizes: Sizes) -> int:
    """Of a card's memory the process has taken its part before anybody asks what is free."""
    if sizes.executor == "triton" and sizes.device != "cpu":
        return 0
    return PROCESS_BYTES[sizes.executor] + PROCESS_BYTES_PER_TOKEN * spec.vocab_size


def limit_of(sizes: Sizes) -> Limit:
    """Memory of another device is not the machine's; what is free of it, only its executor says."""
    if sizes.device != "cpu" and share_of(sizes.memory_limit) is not None:
        free = device_free_bytes(sizes.executor, sizes.device)
        if free is None:
            return Limit(None, f"{sizes.device} has its own memory")
        return resolve_limit(sizes.memory_limit, free)
    return resolve_limit(sizes.memory_limit, free_bytes())


def _scratch_bytes(spec: ModelSpec, sizes: Sizes) -> int:
    """Memory of one step, at most: what lives at once of a token's values, the widest of its rows
    once more in the form that a product takes, the logits, all as float32; what each thread keeps
    of the heads that it works on, and what they join of an attention that they share."""
    ffn_width, routed = spec.ffn_width, 0
    if spec.experts is not None:
        hidden = max(spec.experts.width, spec.experts.shared_width)
        ffn_width, routed = max(ffn_width, hidden), spec.width + 2 * spec.experts.num_experts + 3
    live = 2 * spec.width + spec.q_width + 2 * spec.kv_width + 2 * ffn_width + spec.head_size
    live += routed + (spec.head_size if spec.local_rope is not None else 0)
    widest = max(spec.width, spec.q_width, ffn_width)
    logit_rows = sizes.max_logit_rows or sizes.max_sequences or MOST_SEQUENCES
    if sizes.speculative_config is not None:
        logit_rows += MAX_STEP_GUESSES
    threads = sizes.threads or os.cpu_count() or 1
    rows = sizes.max_step_tokens * (live + 2 * widest) + logit_rows * spec.vocab_size
    joined_bytes = 1 << 20 if threads > 1 else 0
    return 4 * rows + threads * (65536 + 1536 * spec.head_size) + joined_bytes
