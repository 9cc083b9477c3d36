"""Every kernel at the end of tensors of more than 2³¹ values: no place is counted in 32 bits.

Owns: memory that is larger than the machine's, the last program of a launch, run alone, and an
overflow of 32 bits as an error.
May not know: what else a kernel is tested for: `interpreted_rows.py` and its neighbours.
Read next: `device.py`.

A tensor here is mapped and hardly touched, so its size costs nothing. Of a launch the last program
alone is run: it has the highest places.
"""

from __future__ import annotations

import math
import mmap
from dataclasses import replace
from typing import Any

import pytest
import torch
from triton.runtime import interpreter

from firsthand.compute.ops import AttentionRule
from firsthand.compute.triton import rows, sampling
from firsthand.compute.triton.attention import Queries, attend
from firsthand.compute.triton.cache import LayerMemory, Places, store
from firsthand.compute.triton.launch import is_interpreted
from firsthand.compute.triton.linear import DeviceWeight, embed, linear
from firsthand.compute.triton.tiles import tiles_for
from tests.compute.triton.device import assert_near, integers, random

pytestmark = pytest.mark.skipif(not is_interpreted(), reason="memory that is not there")

ROWS, WIDTH = (1 << 16) + 7, 1 << 15
HEADS, SIZE = 512, 64
NO_RESERVE = getattr(mmap, "MAP_NORESERVE", 0x4000)  # of Linux: larger than the machine's memory


class LastProgram(interpreter.GridExecutor):  # type: ignore[misc]
    """A launch of one program: the last one. Tensors are where they are: none is copied."""

    def __init__(self, fn: Any, names: Any, grid: tuple[int, ...], hooks: Any) -> None:
        super().__init__(fn, names, (1,) * len(grid), hooks)
        self._last = tuple(n - 1 for n in grid) + (0,) * (3 - len(grid))

    def _init_args_hst(self, given: Any, named: Any) -> Any:
        interpreter.interpreter_builder.set_grid_idx = self._stand
        return given, named

    def _restore_args_dev(self, *_: Any) -> None:
        del interpreter.interpreter_builder.set_grid_idx

    def _stand(self, *_: int) -> None:
        interpreter.interpreter_builder.grid_idx = self._last


@pytest.fixture(autouse=True)
def last_program_alone(monkeypatch: pytest.MonkeyPatch) -> None:
    strict = replace(interpreter.InterpreterOptions(), debug=True, sanitize_overflow=True)
    monkeypatch.setattr(interpreter, "GridExecutor", LastProgram)
    monkeypatch.setattr(interpreter.interpreter_builder, "options", strict)


def mapped(*shape: int, dtype: torch.dtype = torch.float16) -> torch.Tensor:
    """Zeros, of which no page is there before it is written."""
    num_bytes = math.prod(shape) * dtype.itemsize
    memory = mmap.mmap(-1, num_bytes, flags=mmap.MAP_PRIVATE | mmap.MAP_ANONYMOUS | NO_RESERVE)
    return torch.frombuffer(memory, dtype=dtype).view(shape)


def test_rows_behind_the_border() -> None:
    x, gain, y = mapped(ROWS, WIDTH), random(WIDTH), random(WIDTH, seed=1)
    assert x.numel() > 2**31
    x[-1] = y
    held = x[-1].float()
    out, total, more = mapped(ROWS, WIDTH), mapped(ROWS, WIDTH), mapped(ROWS, WIDTH)
    more[-1] = 1.0
    rows.norm(x, gain, 1e-5, out, more, total)
    assert torch.equal(total[-1], (held + 1.0).half())
    wanted = (held + 1.0) * torch.rsqrt((held + 1.0).square().mean() + 1e-5) * gain
    assert_near(out[-1], wanted)
    rows.activation(x, more, "silu", out)
    assert_near(out[-1, -1024:], torch.nn.functional.silu(held[-1024:]))
    half = SIZE // 2
    position = 2**31 // half
    cos, sin = (mapped(position + 1, half, dtype=torch.float32) for _ in range(2))
    positions, sin[-1] = mapped(ROWS, dtype=torch.int32), 1.0  # a quarter turn
    positions[-1] = position
    rows.rope(x, cos, sin, positions, out)
    first, second = held.view(HEADS, 2, half).unbind(1)
    assert torch.equal(out[-1].float(), torch.stack([-second, first], 1).flatten())


def test_logits_behind_the_border() -> None:
    width = 1 << 14
    logits = mapped(2**31 // width + 1, width, dtype=torch.float32)
    logits[-1, 10_000] = 1.0
    ids, out = mapped(len(logits), dtype=torch.int32), mapped(*logits.shape, dtype=torch.float32)
    sampling.best(logits, ids)
    sampling.log_softmax(logits, out)
    assert int(ids[-1]) == 10_000
    assert_near(out[-1], torch.log_softmax(logits[-1], 0), steps=40)


def test_rows_of_a_product_behind_the_border() -> None:
    """Of x, and of the result: to be behind it in both at once takes long."""
    k = 1 << 12
    num_rows = 2**31 // k + 7
    weight = DeviceWeight((3, k), random(3, k).half())
    x, out = mapped(num_rows, k), mapped(num_rows, 3, dtype=torch.float32)
    x[-1] = random(k)
    linear(x, weight, out)
    assert_near(out[-1], (x[-1:].float() @ weight.values.float().T)[0], steps=40)
    weight = DeviceWeight((WIDTH, 16), random(WIDTH, 16))
    x, out = torch.ones(ROWS, 16), mapped(ROWS, WIDTH)
    linear(x, weight, out)
    assert_near(out[-1, -64:], weight.values[-64:].sum(1))
    table = DeviceWeight((1, WIDTH), random(1, WIDTH))
    embed(mapped(ROWS, dtype=torch.int32), table, 1.0, out)
    assert_near(out[-1, -1024:], table.values[0, -1024:])


@pytest.mark.parametrize("dtype", [torch.float32, torch.int8, torch.uint8], ids=str)
def test_a_weight_behind_the_border(dtype: torch.dtype) -> None:
    """Its rows lie as far apart as those of a long one do, and so do those of its scales."""
    x, k, codes = random(1, 64), 64, torch.arange(32)
    values = mapped(ROWS, WIDTH, dtype=dtype)
    scales = None if dtype.is_floating_point else mapped(ROWS, WIDTH)
    values[-1, :32] = codes
    row = torch.zeros(k)
    row[:32] = codes
    if dtype == torch.uint8:  # a byte's upper half is the value 32 further
        row[:32], row[32:] = codes % 16, codes // 16
    if scales is not None:
        scales[-1, :2] = 0.5
        row = (row + 1) / 2  # scale · code + minimum
    weight = DeviceWeight((ROWS, k), values, scales, scales, 0 if scales is None else 32)
    out, got = mapped(1, ROWS, dtype=torch.float32), torch.zeros(1, k)
    linear(x, weight, out)
    assert_near(out[:, -1], x @ row)
    embed(integers([ROWS - 1]), weight, 1.0, got)
    assert torch.equal(got[0], row)


@pytest.mark.parametrize("dtype", [torch.float16, torch.int8], ids=str)
@pytest.mark.parametrize("many", [False, True], ids=["single", "tile"])
def test_a_cache_behind_the_border(dtype: torch.dtype, many: bool) -> None:
    """The last row of a step attends to itself alone, in the last block: what comes is its v."""
    slots = -(-ROWS // 16) * 16
    scales = None if dtype.is_floating_point else mapped(slots, HEADS, dtype=torch.float32)
    keys, values = (mapped(slots, HEADS, SIZE, dtype=dtype) for _ in range(2))
    assert keys.numel() > 2**31
    memory = LayerMemory(keys, values, scales, scales)
    at = mapped(ROWS, dtype=torch.int32)
    places = Places(at, at, integers([slots - 16]), 16)
    k, v, out = (mapped(ROWS, HEADS * SIZE) for _ in range(3))
    k[-1] = v[-1] = random(HEADS * SIZE)
    store(k, v, memory, places)
    none, last, counts = (mapped(n, dtype=torch.int32) for n in (1, ROWS, ROWS))
    last[-1], counts[-1] = ROWS - 1, 1
    cut = tiles_for(1, SIZE, dtype, 1 << 20)
    queries = Queries(*((none[:0], last) if many else (last, none[:0])), counts, 1, cut)
    parts, sums = (mapped(ROWS * HEADS * n, dtype=torch.float32) for n in (SIZE, 2))
    attend(k, memory, places, queries, AttentionRule(), out, parts, sums)
    assert_near(out[-1, -SIZE:], v[-1, -SIZE:].float(), steps=1 if scales is None else 8)
