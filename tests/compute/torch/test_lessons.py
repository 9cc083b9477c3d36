"""The lessons are proven: each classic mistake is made here, and our checks catch it.

Owns: faulty variants of the executor's parts, and the checks that must tell them from ours.
May not know: anything of the product that would make it faulty; there is no such switch.
Read next: `test_attention.py` and `test_executor.py`, which use the same comparisons.
"""

from __future__ import annotations

import math
from collections.abc import Callable
from dataclasses import replace
from typing import Any

import numpy as np
import pytest
from numpy.typing import NDArray

pytest.importorskip("torch")
import torch

from firsthand.compute.batch import FlatBatch
from firsthand.compute.torch import attention as ours
from firsthand.compute.torch.executor import TorchExecutor
from firsthand.compute.torch.ops import TorchOps
from firsthand.models.families import read_config
from firsthand.models.spec import ModelSpec
from tests.compute.torch.tiny import ArrayStore, Piece, config, flat, prompt, ready

pytestmark = pytest.mark.torch

N = 150  # positions: two whole tiles and a part
CUTS = ([N], [N - 1, 1], [63, 1, 1, N - 65])


def printed(q: Any, k: Any, v: Any, positions: Any) -> Any:
    """Equation 1 in float64, one row, one head, one key after another: nothing to get wrong."""
    t, num_heads, head_size = q.shape
    group = num_heads // k.shape[1]
    q, k, v = (x.double().numpy() for x in (q, k, v))
    out = np.zeros((t, num_heads, head_size))
    for row, position in enumerate(positions.tolist()):
        for head in range(num_heads):
            seen_k, seen_v = k[: position + 1, head // group], v[: position + 1, head // group]
            scores = seen_k @ q[row, head] / math.sqrt(head_size)
            weights = np.exp(scores - scores.max())
            out[row, head] = weights / weights.sum() @ seen_v
    return torch.tensor(out)


Attention = Callable[[Any, Any, Any, Any], Any]  # of a plain rule


def check_attention(attention: Attention) -> None:
    """The comparison: a whole prompt, one token after a cache, and pieces."""
    generator = torch.Generator().manual_seed(5)
    q = 3 * torch.randn(N, 6, 8, generator=generator)
    k, v = (torch.randn(N, 2, 8, generator=generator) for _ in range(2))
    wanted = printed(q, k, v, torch.arange(N))
    for sizes in CUTS:
        start = 0
        for size in sizes:
            stop = start + size
            found = attention(q[start:stop], k[:stop], v[:stop], torch.arange(start, stop))
            torch.testing.assert_close(found.double(), wanted[start:stop], rtol=0, atol=1e-5)
            start = stop


def by_formula(
    q: Any,
    k: Any,
    v: Any,
    mask: Any,
    scores_of: Callable[[Any, Any], Any] | None = None,
    softmax: Callable[[Any], Any] = ours.softmax,
) -> Any:
    """The formula with one part exchanged."""
    q, k, v = ours.by_head(q, k, v)
    scores = (q @ k.transpose(1, 2)) * q.shape[-1] ** -0.5
    if scores_of is not None:
        scores = scores_of(q, k)
    assert mask.shape in (scores.shape[1:], (1, 1))
    return (softmax(scores.masked_fill(~mask, -math.inf)) @ v).transpose(0, 1)


def right_mask(k: Any, positions: Any) -> Any:
    return ours.causal_mask(positions, torch.arange(k.shape[0]))


def scale_after_softmax(q: Any, k: Any, v: Any, positions: Any) -> Any:
    size = q.shape[-1] ** -0.5
    return by_formula(
        q,
        k,
        v,
        right_mask(k, positions),
        lambda q, k: q @ k.transpose(1, 2),
        lambda scores: ours.softmax(scores) * size,
    )


def scale_forgotten(q: Any, k: Any, v: Any, positions: Any) -> Any:
    return by_formula(q, k, v, right_mask(k, positions), lambda q, k: q @ k.transpose(1, 2))


def scale_by_the_width_of_all_heads(q: Any, k: Any, v: Any, positions: Any) -> Any:
    size = (q.shape[1] * q.shape[2]) ** -0.5
    mask = right_mask(k, positions)
    return by_formula(q, k, v, mask, lambda q, k: q @ k.transpose(1, 2) * size)


def mask_inverted(q: Any, k: Any, v: Any, positions: Any) -> Any:
    return by_formula(q, k, v, ~right_mask(k, positions))


def mask_inverted_but_for_itself(q: Any, k: Any, v: Any, positions: Any) -> Any:
    """The quiet form of it: no row is empty, so no NaN gives it away."""
    itself = torch.arange(k.shape[0])[None, :] == positions[:, None]
    return by_formula(q, k, v, ~right_mask(k, positions) | itself)


def mask_forgotten(q: Any, k: Any, v: Any, positions: Any) -> Any:
    return by_formula(q, k, v, torch.ones(len(positions), k.shape[0], dtype=torch.bool))


def mask_of_the_queries_only(q: Any, k: Any, v: Any, positions: Any) -> Any:
    """(t, t) beside a cache: refused by its shape, and at t = 1 it broadcasts silently."""
    t = len(positions)
    return by_formula(q, k, v, torch.ones(t, t).tril().bool())


def mask_that_forgets_the_cache(q: Any, k: Any, v: Any, positions: Any) -> Any:
    """(t, n) as it must be, but counted as if the first query stood at position 0."""
    return by_formula(q, k, v, torch.ones(len(positions), k.shape[0]).tril().bool())


def mask_off_by_one(q: Any, k: Any, v: Any, positions: Any) -> Any:
    return by_formula(q, k, v, right_mask(k, positions + 1))


def groups_in_the_wrong_order(q: Any, k: Any, v: Any, positions: Any) -> Any:
    group = q.shape[1] // k.shape[1]
    return ours.formula(q, k.repeat(1, group, 1), v.repeat(1, group, 1), positions)


def tiles(q: Any, k: Any, v: Any, positions: Any, rescale_sum: bool, rescale_out: bool) -> Any:
    """The online softmax that forgets to rescale what it summed under a smaller maximum."""
    q, k, v = ours.by_head(q, k, v)
    m = torch.full((*q.shape[:2], 1), -math.inf)
    total, out = torch.zeros_like(m), torch.zeros_like(q)
    for start in range(0, k.shape[1], ours.CHUNK):
        key_positions = torch.arange(start, min(start + ours.CHUNK, k.shape[1]))
        scores = q @ k[:, key_positions].transpose(1, 2) * q.shape[-1] ** -0.5
        scores = scores.masked_fill(~ours.causal_mask(positions, key_positions), -math.inf)
        m_new = torch.maximum(m, scores.amax(-1, keepdim=True))
        weights, change = torch.exp(scores - m_new), torch.exp(m - m_new)
        total = total * (change if rescale_sum else 1.0) + weights.sum(-1, keepdim=True)
        out = out * (change if rescale_out else 1.0) + weights @ v[:, key_positions]
        m = m_new
    return (out / total).transpose(0, 1)


def tiles_without_rescaling(q: Any, k: Any, v: Any, positions: Any) -> Any:
    return tiles(q, k, v, positions, False, False)


def tiles_that_rescale_the_sum_only(q: Any, k: Any, v: Any, positions: Any) -> Any:
    return tiles(q, k, v, positions, True, False)


def tiles_that_rescale_the_output_only(q: Any, k: Any, v: Any, positions: Any) -> Any:
    return tiles(q, k, v, positions, False, True)


FAULTS = (
    scale_after_softmax,
    scale_forgotten,
    scale_by_the_width_of_all_heads,
    mask_inverted,
    mask_inverted_but_for_itself,
    mask_forgotten,
    mask_of_the_queries_only,
    mask_that_forgets_the_cache,
    mask_off_by_one,
    groups_in_the_wrong_order,
    tiles_without_rescaling,
    tiles_that_rescale_the_sum_only,
    tiles_that_rescale_the_output_only,
)


@pytest.mark.parametrize("attention", ours.ATTENTIONS.values(), ids=ours.ATTENTIONS)
def test_ours_pass_the_comparison(attention: Any) -> None:
    check_attention(attention)


def test_the_stand_ins_are_right_where_nothing_is_exchanged() -> None:
    """So that a fault below is caught for its fault, and not for its stand-in."""
    check_attention(lambda q, k, v, positions: by_formula(q, k, v, right_mask(k, positions)))
    check_attention(lambda q, k, v, positions: tiles(q, k, v, positions, True, True))


@pytest.mark.parametrize("fault", FAULTS, ids=lambda fault: fault.__name__)
def test_the_comparison_catches(fault: ours.Attention) -> None:
    with pytest.raises(AssertionError):
        check_attention(fault)


def test_a_mask_of_the_queries_only_is_seen_by_its_shape() -> None:
    q, k = torch.zeros(3, 1, 4), torch.zeros(7, 1, 4)
    mask = torch.ones(3, 3).tril().bool()
    with pytest.raises(AssertionError, match=r"\(t, n\)"):
        assert ours.has_shape(mask, t=len(q), n=len(k))


def test_softmax_without_its_shift_overflows_where_ours_does_not() -> None:
    scores = torch.tensor([[100.0, 99.0]])
    naive = torch.exp(scores) / torch.exp(scores).sum(-1, keepdim=True)
    assert not torch.isfinite(naive).all()
    assert torch.isfinite(ours.softmax(scores)).all()


# ---- the executor: positions and the store ------------------------------------------------------

Run = Callable[[FlatBatch, ArrayStore], NDArray[np.float32]]


@pytest.fixture(scope="module")
def spec() -> ModelSpec:
    return read_config(config())


@pytest.fixture(scope="module")
def executor() -> Any:
    return ready(TorchExecutor(attention="formula"))


def check_reuse(run: Run, store: ArrayStore) -> None:
    """A sequence on blocks that another has used is as on fresh ones."""
    first, second = prompt(40), prompt(20, seed=9)
    fresh = run(flat([Piece(second)]), store).copy()
    run(flat([Piece(first)]), store)
    again = run(flat([Piece(second)]), store)
    np.testing.assert_array_equal(again, fresh)


def check_steps(run: Run, store: ArrayStore) -> None:
    """A prompt in steps is as at once, up to the order of float32 sums; that may tip a number
    that lies between two of float16's."""
    ids = prompt(30)
    whole = run(flat([Piece(ids)]), store).copy()
    found = [run(flat([Piece(ids[:25])]), store).copy()]
    found += [run(flat([Piece([ids[p]], p)]), store).copy() for p in range(25, 30)]
    bound = 2e-5 if store.dtype == np.float32 else 2e-3
    np.testing.assert_allclose(np.concatenate(found), whole, rtol=0, atol=bound)


def test_ours_pass_reuse_and_steps(executor: Any, spec: ModelSpec) -> None:
    check_reuse(executor.run, ArrayStore(spec))
    check_steps(executor.run, ArrayStore(spec))
    check_steps(executor.run, ArrayStore(spec, "float16"))


def test_a_position_that_is_not_reset_is_caught(executor: Any, spec: ModelSpec) -> None:
    """The next sequence goes on counting where the last one ended, and so reads its tokens."""
    counted = 0

    def run(batch: FlatBatch, store: ArrayStore) -> NDArray[np.float32]:
        nonlocal counted
        moved = replace(batch, positions=batch.positions + np.int32(counted))
        counted += batch.num_tokens
        return np.asarray(executor.run(moved, store))

    with pytest.raises(AssertionError):
        check_reuse(run, ArrayStore(spec))


class TurnedFromZero(TorchOps):
    """RoPE counts from the beginning of the step, the store from that of the sequence."""

    def __init__(self, *arguments: Any) -> None:
        super().__init__(*arguments)
        rows = np.arange(self._batch.num_tokens)
        starts = self._batch.row_starts
        begin = np.repeat(starts[:-1], np.diff(starts))
        frequencies = torch.tensor(read_config(config()).rope.inverse_frequencies)
        angles = torch.tensor(rows - begin)[:, None, None] * frequencies
        self._rotations = [(angles.cos(), angles.sin())]


class ReadsItsOwnUnrounded(TorchOps):
    """Attends to the keys and values of this step as they were before the store rounded them."""

    def store(self, layer: int, k: Any, v: Any) -> None:
        super().store(layer, k, v)
        self._own = (k, v)

    def _read(self, layer: int, slots: Any) -> Any:
        found = super()._read(layer, slots)
        for read, own in zip(found, self._own, strict=True):
            read[-len(own) :] = own.unflatten(1, read.shape[1:])
        return found


@pytest.mark.parametrize("fault", [TurnedFromZero, ReadsItsOwnUnrounded])
def test_steps_catch(
    fault: type[TorchOps], executor: Any, spec: ModelSpec, monkeypatch: pytest.MonkeyPatch
) -> None:
    """S26: the position that turns a key is the index at which it is stored; and what is read
    of this step is what every later step will read."""
    monkeypatch.setattr("firsthand.compute.torch.executor.TorchOps", fault)
    with pytest.raises(AssertionError):
        check_steps(executor.run, ArrayStore(spec, "float16"))
