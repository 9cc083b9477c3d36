"""How a kernel is made, and what the interpreter needs to be told.

Owns: the decorator of all kernels, and the type that a product is made in.
May not know: what any kernel computes.
Read next: `rows.py`.
"""

from __future__ import annotations

import inspect
from collections.abc import Callable
from types import MappingProxyType
from typing import Any

import torch
import triton
import triton.language as tl

VARYING = ("rows", "num_tiles")  # arguments that change from step to step

# Of every launch: a product and a sum are joined only where a matrix instruction does so.
OPTIONS = MappingProxyType({"enable_fp_fusion": False})

_TYPES = MappingProxyType(
    {torch.float16: tl.float16, torch.bfloat16: tl.bfloat16, torch.float32: tl.float32}
)


def kernel(function: Callable[..., Any]) -> Any:
    """Compiled when it is first launched. How many rows a step has never picks other code.

    Its parameters say `tl.tensor` or `tl.constexpr`: the compiler reads annotations, and takes no
    name that is not triton's.
    """
    varying = [name for name in inspect.signature(function).parameters if name in VARYING]
    return triton.jit(function, do_not_specialize=varying)


def is_interpreted() -> bool:
    """Whether kernels run in Triton's interpreter, on tensors in the machine's memory."""
    return bool(triton.knobs.runtime.interpret)


def product_type(dtype: torch.dtype) -> Any:
    """The type of both sides of a product; sums are float32 always.

    The interpreter cannot multiply bfloat16. In float32 such a product is exact, as on a card.
    """
    if dtype == torch.bfloat16 and is_interpreted():
        return tl.float32
    return _TYPES[dtype]


def power_of_two(count: int, least: int = 1) -> int:
    """The first that is not below either."""
    return int(max(least, triton.next_power_of_2(count)))
