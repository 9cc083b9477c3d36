"""Where the kernels run in these tests, and numbers to run them on.

Owns: the device, seeded numbers, and the comparison with a formula in float64.
May not know: any kernel. Read next: `interpreted_rows.py`.
"""

from __future__ import annotations

from typing import Any

import torch

from firsthand.compute.triton.launch import is_interpreted

DEVICE = "cpu" if is_interpreted() else "cuda"
FLOATS = {"float32": torch.float32, "float16": torch.float16, "bfloat16": torch.bfloat16}
STEP = {torch.float32: 1e-6, torch.float16: 1e-3, torch.bfloat16: 8e-3}  # of one rounding


def random(*shape: int, seed: int = 0, dtype: torch.dtype = torch.float32) -> torch.Tensor:
    made = torch.Generator().manual_seed(seed)
    return torch.randn(shape, generator=made).to(dtype).to(DEVICE)


def empty(*shape: int, dtype: torch.dtype = torch.float32) -> torch.Tensor:
    """Filled with what ruins whatever reads it."""
    fill: Any = float("nan") if dtype.is_floating_point else -99
    return torch.full(shape, fill, dtype=dtype, device=DEVICE)


def integers(values: Any) -> torch.Tensor:
    return torch.tensor(values, dtype=torch.int32, device=DEVICE)


def assert_near(found: torch.Tensor, wanted: torch.Tensor, steps: float = 4.0) -> None:
    """Within so many roundings of the type of `found`, relative to the largest value."""
    assert torch.isfinite(found).all()
    size = float(wanted.abs().max())
    error = float((found.double() - wanted.double().to(found.device)).abs().max())
    assert error <= steps * STEP[found.dtype] * size, (error, size)
