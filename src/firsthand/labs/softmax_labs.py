"""Lab of the online softmax: tiles that forget to rescale what they summed before.

Owns: the softmax in tiles with one line left out.
May not know: how the kernels walk a context.
Read next: `compute/torch/attention.py`, `tiled`.
"""

from __future__ import annotations

import numpy as np

from firsthand.labs.attention_labs import evidence_of
from firsthand.labs.charts import Lines, Series
from firsthand.labs.forward import Floats, Parts, mix
from firsthand.labs.lab import Evidence, Lab
from firsthand.labs.words import Words
from firsthand.labs.workbench import Workbench

TILE = 8
HEAD_SIZE = 64


def tiles(scores: Floats, values: Floats, *, rescale_sum: bool, rescale_out: bool) -> Floats:
    """Scores come in tiles; m is the largest so far, what was summed under a smaller one is to be
    multiplied by e^(m_old − m_new)."""
    m = np.full((*scores.shape[:2], 1), -np.inf, np.float32)
    total = np.zeros_like(m)
    out = np.zeros((*scores.shape[:2], values.shape[2]), np.float32)
    for start in range(0, scores.shape[2], TILE):
        tile = scores[:, :, start : start + TILE]
        m_new = np.maximum(m, tile.max(axis=2, keepdims=True))
        base = np.where(np.isneginf(m_new), np.float32(0), m_new)  # a tile that nobody sees
        weights = np.exp(tile - base)
        change = np.exp(m - base)
        total = total * (change if rescale_sum else 1) + weights.sum(axis=2, keepdims=True)
        out = out * (change if rescale_out else 1) + weights @ values[:, start : start + TILE]
        m = m_new
    return np.asarray(out / total, np.float32)


def without(scores: Floats, values: Floats) -> Floats:
    return tiles(scores, values, rescale_sum=False, rescale_out=False)


def sum_only(scores: Floats, values: Floats) -> Floats:
    return tiles(scores, values, rescale_sum=True, rescale_out=False)


def whole(scores: Floats, values: Floats) -> Floats:
    return tiles(scores, values, rescale_sum=True, rescale_out=True)


WITHOUT = Words("tiles, nothing rescaled", "分块，不做修正")
SUM_ONLY = Words("tiles, only the sum rescaled", "分块，只修正分母")
WHOLE = Words("tiles, both rescaled", "分块，两者都修正")


def online_softmax(bench: Workbench) -> Evidence:
    return evidence_of(
        bench,
        ((WITHOUT, Parts(mix=without)), (SUM_ONLY, Parts(mix=sum_only))),
        [_errors()],
    )


def _errors() -> Lines:
    """One query over random keys: how far the output is off as more tiles are walked."""
    source = np.random.default_rng(0)
    lengths = [TILE * tiles for tiles in (1, 2, 3, 4, 6, 8, 12, 16, 24, 32)]
    scores = source.normal(size=(16, 4, lengths[-1])).astype(np.float32) * np.float32(2)
    values = source.normal(size=(16, lengths[-1], HEAD_SIZE)).astype(np.float32)
    curves = []
    for what, way in ((WITHOUT, without), (SUM_ONLY, sum_only), (WHOLE, whole)):
        errors = []
        for length in lengths:
            part, held = scores[:, :, :length], values[:, :length]
            errors.append(float(np.abs(way(part, held) - mix(part, held)).max()))
        curves.append(Series(what, tuple(map(float, lengths)), tuple(errors)))
    return Lines(
        Words(
            f"Largest error of an output, tiles of {TILE} keys",
            f"输出的最大误差（每块 {TILE} 个键）",
        ),
        Words("keys", "键的数目"),
        Words("error", "误差"),
        tuple(curves),
        log=True,
    )


LABS = (
    Lab(
        name="online-softmax",
        title=Words("A softmax in tiles that does not rescale", "分块 softmax 忘了修正"),
        question=Words(
            "Keys come tile by tile, and a later tile may hold the largest score. What of the "
            "tiles before it?",
            "键一块一块地来，最大的分数可能在后面的块里。那么前面的块怎么办？",
        ),
        run=online_softmax,
        cause=Words(
            "Each tile is weighed by its distance from the largest score so far. When that grows, "
            "what was summed before has been weighed by another yardstick: too heavy by e to the "
            "difference. Within one tile all is right, so short prompts show nothing.",
            "每块按与“目前最大分数”的差来加权。最大值变大后，之前累积的是用另一把尺子量的，重了 "
            "e 的差次方倍。"
            "只有一块时一切正确，所以短提示看不出问题。",
        ),
        cure=Words(
            "When a tile raises the maximum, sum and output are both multiplied by "
            "e^(m_old − m_new); and every length is tested against the plain formula.",
            "某块抬高最大值时，分母与输出都乘以 e^(m_旧 − m_新)；并对各种长度与朴素公式比较。",
        ),
        places=(
            "firsthand.compute.torch.attention.tiled",
            "firsthand.compute.torch.attention.formula",
        ),
        sources=("A §3.4",),
        seconds=5,
        needs_model=True,
    ),
)
