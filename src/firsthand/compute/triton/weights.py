"""Weights to the device, block by block: mapped file, pinned staging, device.

Owns: how a block of rows is written on the device, and the two pieces of memory it passes through.
May not know: names of layers, files, kernels.
Read next: `linear.py` (what a `DeviceWeight` is); `../../quant/formats.py`.

A format is kept: float16 stays float16, codes stay codes, four bits stay four. Two things change:
float32 is rounded to the type of the activations, where that is another; and so is a format whose
groups no kernel takes. A block is `BLOCK_BYTES` at most, so beside the file's own pages, which are
given back after each matrix, the host holds two of them, however large the model is.
"""

from __future__ import annotations

import numpy as np
import torch
from numpy.typing import NDArray

from firsthand.compute.triton.linear import LEAST_PIECE, DeviceWeight, piece_of
from firsthand.quant.formats import (
    ChannelWeight,
    FloatFormat,
    FloatWeight,
    Format,
    GroupedFormat,
    GroupedWeight,
    Weight,
    WeightSource,
    decode,
    row_blocks,
)

STAGING_BYTES = 4 << 20
_FLOATS = {"float16": torch.float16, "bfloat16": torch.bfloat16, "float32": torch.float32}


class Staging:
    """Two pieces of pinned memory by turns: one is filled while the other is on its way.

    On a CPU there is no way to go: the block is copied to its place.
    """

    def __init__(self, device: torch.device) -> None:
        self._device = device
        self._is_cuda = device.type == "cuda"
        self._turn = 0
        self._pieces: list[torch.Tensor] = []
        self._sent: list[torch.cuda.Event] = []
        if self._is_cuda:
            self._stream = torch.cuda.Stream(device)
            self._pieces = [
                torch.empty(STAGING_BYTES, dtype=torch.uint8, pin_memory=True) for _ in range(2)
            ]
            self._sent = [torch.cuda.Event() for _ in range(2)]

    def send(self, block: NDArray[np.generic], target: torch.Tensor) -> None:
        """Contiguous bytes to a contiguous part of a tensor of the same size."""
        if not self._is_cuda:
            target.view(torch.uint8).numpy().reshape(-1)[:] = block.reshape(-1).view(np.uint8)
            return
        given = block.reshape(-1).view(np.uint8)
        wanted = target.view(torch.uint8).view(-1)
        for start in range(0, given.size, STAGING_BYTES):
            part = given[start : start + STAGING_BYTES]
            piece, sent = self._pieces[self._turn], self._sent[self._turn]
            sent.synchronize()  # before the first use: at once
            piece[: part.size].numpy()[:] = part
            with torch.cuda.stream(self._stream):
                wanted[start : start + part.size].copy_(piece[: part.size], non_blocking=True)
                sent.record(self._stream)
            self._turn = 1 - self._turn

    def finish(self) -> None:
        """Wait for what is on its way; the pinned memory is given back."""
        if self._is_cuda:
            self._stream.synchronize()
            self._pieces, self._sent = [], []


def load_weight(
    source: WeightSource, staging: Staging, device: torch.device, active: torch.dtype
) -> DeviceWeight:
    """The matrix on the device, taken block by block; then its pages are given back."""
    n, k = source.shape
    weight = new_weight(source.format, n, k, device, active)
    for start, stop in row_blocks(n, k):
        _write(source.rows(start, stop), weight, start, stop, staging)
    source.release()
    return weight


def new_weight(
    format: Format, n: int, k: int, device: torch.device, active: torch.dtype
) -> DeviceWeight:
    """Room for a matrix (n, k) of a format, in the form that kernels read."""

    def new(*shape: int, dtype: torch.dtype) -> torch.Tensor:
        return torch.empty(shape, dtype=dtype, device=device)

    match format:
        case GroupedFormat(bits, group, scale_dtype, has_minimum, zero) if _fits(group):
            groups = -(-k // group)
            scale = _FLOATS[scale_dtype]
            piece = piece_of(group)
            return DeviceWeight(
                (n, k),
                new(n, -(-k // (2 * piece)) * piece, dtype=torch.uint8)
                if bits == 4
                else new(n, k, dtype=torch.int8),
                new(n, groups, dtype=scale),
                new(n, groups, dtype=scale) if has_minimum else None,
                group,
                zero,
            )
        case GroupedFormat():
            return DeviceWeight((n, k), new(n, k, dtype=active))
        case FloatFormat(dtype):
            held = active if dtype == "float32" else _FLOATS[dtype]
            return DeviceWeight((n, k), new(n, k, dtype=held))
    codes = new(n, k, dtype=torch.int8)
    whole = -(-k // 128) * 128  # one group, a whole number of pieces
    return DeviceWeight((n, k), codes, new(n, 1, dtype=torch.float32), None, whole)


def _fits(group: int) -> bool:
    return piece_of(group) >= LEAST_PIECE


def _write(block: Weight, weight: DeviceWeight, start: int, stop: int, staging: Staging) -> None:
    if weight.scales is None:
        staging.send(_floats(block, weight.values.dtype), weight.values[start:stop])
        return
    if isinstance(block, ChannelWeight):
        staging.send(np.ascontiguousarray(block.codes), weight.values[start:stop])
        staging.send(block.scales, weight.scales[start:stop])
        return
    assert isinstance(block, GroupedWeight)
    codes = block.codes
    if block.format.bits == 4:
        codes = pack_pairs(codes.view(np.uint8), weight.piece)
    staging.send(np.ascontiguousarray(codes), weight.values[start:stop])
    staging.send(np.ascontiguousarray(block.scales), weight.scales[start:stop])
    if block.minima is not None and weight.minima is not None:
        staging.send(np.ascontiguousarray(block.minima), weight.minima[start:stop])


def _floats(block: Weight, held: torch.dtype) -> NDArray[np.generic]:
    """The block in the type that is held: as it is, or rounded to nearest."""
    if isinstance(block, FloatWeight) and _FLOATS[block.format.dtype] == held:
        return np.ascontiguousarray(block.values)
    rounded = torch.from_numpy(decode(block)).to(held)
    return np.asarray(rounded.view(torch.uint8).numpy())


def pack_pairs(codes: NDArray[np.uint8], piece: int) -> NDArray[np.uint8]:
    """Codes (n, K) of 0 … 15, two in a byte, (n, runs · piece): see `linear.py`. What a last run
    lacks is 0."""
    n, k = codes.shape
    runs = -(-k // (2 * piece))
    padded = np.zeros((n, runs, 2, piece), np.uint8)
    padded.reshape(n, -1)[:, :k] = codes
    pairs: NDArray[np.uint8] = padded[:, :, 0] | padded[:, :, 1] << 4
    return pairs.reshape(n, runs * piece)
