"""Micro-batches: the parts are the batch, and their number is the best."""

from __future__ import annotations

import numpy as np
from hypothesis import given, settings
from hypothesis import strategies as st

from firsthand.cluster.pipeline.micro import RowCost, split_batch
from firsthand.compute.batch import FlatBatch


@st.composite
def batches(draw: st.DrawFn) -> FlatBatch:
    lengths = draw(st.lists(st.integers(1, 9), min_size=1, max_size=6))
    starts = [draw(st.integers(0, 40)) for _ in lengths]
    ends = np.cumsum(lengths)
    rows = draw(st.sets(st.integers(0, int(ends[-1]) - 1)))
    adapters = tuple(f"a{i % 2}" for i in range(len(lengths))) if draw(st.booleans()) else ()
    return FlatBatch(
        token_ids=np.arange(ends[-1], dtype=np.int32),
        positions=np.concatenate(
            [np.arange(s, s + n) for s, n in zip(starts, lengths, strict=True)]
        ).astype(np.int32),
        row_starts=np.concatenate([[0], ends]).astype(np.int32),
        block_starts=np.arange(4 * len(lengths), dtype=np.int64).reshape(-1, 4) * 16,
        block_size=16,
        logit_rows=np.array(sorted(rows), dtype=np.int32),
        adapters=adapters,
    )


def rows_of(batch: FlatBatch) -> list[tuple[int, int, int, str, bool]]:
    """Token, position, slot, adapter, and whether its logits are wanted."""
    sequence = np.repeat(np.arange(batch.num_sequences), np.diff(batch.row_starts))
    names = [batch.adapters[s] if batch.adapters else "" for s in sequence]
    wanted = set(batch.logit_rows.tolist())
    return [
        (int(token), int(position), int(slot), name, row in wanted)
        for row, (token, position, slot, name) in enumerate(
            zip(batch.token_ids, batch.positions, batch.slots(), names, strict=True)
        )
    ]


@given(batches(), st.integers(1, 70))
@settings(deadline=None, max_examples=100)
def test_s108_the_parts_of_a_batch_have_its_rows_in_order(batch: FlatBatch, count: int) -> None:
    parts = split_batch(batch, count)
    assert len(parts) == min(count, batch.num_tokens)
    assert [row for part in parts for row in rows_of(part)] == rows_of(batch)
    sizes = [part.num_tokens for part in parts]
    assert max(sizes) - min(sizes) <= 1
    for part in parts:
        assert part.row_starts[0] == 0
        assert (np.diff(part.row_starts) > 0).all()
        assert part.row_starts.dtype == part.logit_rows.dtype == np.int32


@given(st.floats(0.0, 50.0), st.floats(0.0, 5.0), st.integers(1, 300), st.integers(1, 8))
@settings(deadline=None, max_examples=200)
def test_no_other_number_of_parts_is_quicker(
    fixed_ms: float, row_ms: float, num_rows: int, num_stages: int
) -> None:
    cost = RowCost(fixed_ms, row_ms)
    chosen = cost.best_parts(num_rows, num_stages)
    assert 1 <= chosen <= num_rows
    best = min(cost.step_ms(num_rows, parts, num_stages) for parts in range(1, num_rows + 1))
    assert cost.step_ms(num_rows, chosen, num_stages) <= best * (1 + 1e-9) + 1e-12


def test_one_stage_needs_no_parts_and_reading_weights_forbids_them() -> None:
    assert RowCost(5.0, 1.0).best_parts(512, 1) == 1
    assert RowCost(5.0, 0.1).best_parts(1, 3) == 1
    assert RowCost(5.0, 0.7).best_parts(512, 2) == 8
