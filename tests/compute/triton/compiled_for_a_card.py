"""Every kernel, launched as the executor launches it, for a card that is not here: compiled alone.

Owns: the absent card, and a launch of each kind that makes other code.
May not know: what any kernel computes.
Read next: `test_by_interpreter.py`, which runs this in a process of its own.

An interpreter takes more than a compiler does. Tensors are torch's `meta`: a type and a shape
without memory, so sizes are those of real models. A launch goes all its way but for the last step.
"""

from __future__ import annotations

import importlib
import pkgutil
import re
from typing import Any

import pytest
import torch
from triton.backends.compiler import GPUTarget
from triton.backends.nvidia import compiler as nvidia
from triton.runtime.driver import driver
from triton.runtime.jit import JITFunction

import firsthand.compute.triton as package
from firsthand.compute.ops import AttentionRule
from firsthand.compute.triton import rows, sampling
from firsthand.compute.triton.attention import Queries, attend, dot_dtype
from firsthand.compute.triton.cache import LayerMemory, Places, store
from firsthand.compute.triton.linear import embed, linear
from firsthand.compute.triton.tiles import tiles_for
from firsthand.compute.triton.weights import new_weight
from tests.compute.native.micro import FORMATS

META = torch.device("meta")
# What a program may ask for, of each capability.
SHARED_BYTES = {80: 163 << 10, 89: 99 << 10, 90: 227 << 10}


class AbsentCard:
    """What Triton asks a driver for before it launches. What is compiled is kept per device."""

    def __init__(self, capability: int) -> None:
        self.capability = capability

    def get_current_device(self) -> int:
        return self.capability

    def get_current_stream(self, device: int) -> int:
        return 0

    def get_current_target(self) -> Any:
        return GPUTarget("cuda", self.capability, 32)


@pytest.fixture
def compiled(monkeypatch: pytest.MonkeyPatch) -> list[Any]:
    """What launches have made so far."""
    made: list[Any] = []
    launch = JITFunction.run

    def run(self: Any, *arguments: Any, warmup: bool, **named: Any) -> None:
        made.append(launch(self, *arguments, warmup=True, **named))

    monkeypatch.setattr(JITFunction, "run", run)
    return made


def half(*shape: int, dtype: torch.dtype = torch.bfloat16) -> torch.Tensor:
    return torch.empty(shape, dtype=dtype, device=META)


def floats(*shape: int) -> torch.Tensor:
    return half(*shape, dtype=torch.float32)


def integers(*shape: int) -> torch.Tensor:
    return half(*shape, dtype=torch.int32)


def launch_rows() -> None:
    rows.norm(floats(7, 4096), floats(4096), 1e-5, half(7, 4096))
    rows.norm(floats(7, 4096), floats(4096), 1e-5, half(7, 4096), half(7, 4096), floats(7, 4096))
    rows.rope(half(7, 4096), floats(512, 64), floats(512, 64), integers(7), half(7, 4096))
    for kind in ("silu", "gelu_tanh"):
        rows.activation(half(7, 11008), half(7, 11008), kind, half(7, 11008))
    sampling.best(floats(3, 32000), integers(3))
    sampling.log_softmax(floats(3, 32000), floats(3, 32000))


def launch_products() -> None:
    """Every form of a weight, and every tile of one of them."""
    for name, heights in {
        "float16": (1, 300),
        "channel": (1,),
        "q4_1": (1, 300),
    }.items():
        weight = new_weight(FORMATS[name], 11008, 4096, META, torch.bfloat16)
        for height in heights:
            linear(half(height, 4096), weight, half(height, 11008), floats(11008))
        embed(integers(7), weight, 1.5, floats(7, 4096))
    linear(half(7, 4096), weight, half(7, 11008), steady=True)


def launch_attention(
    held: torch.dtype, rule: AttentionRule, *, size: int = 128, many: bool = True
) -> None:
    """8 query heads over 2: rows that stand alone and, with `many`, tiles of them."""
    heads, num_rows, splits = 2, 40, 8
    scales = [None if held.is_floating_point else floats(4096, heads) for _ in range(2)]
    keys, values = (half(4096, heads, size, dtype=held) for _ in range(2))
    memory = LayerMemory(keys, values, *scales)
    places = Places(integers(num_rows), integers(num_rows), integers(4096), 16)
    k = half(num_rows, heads * size)
    store(k, k, memory, places, (floats(512, size // 2), floats(512, size // 2)))
    q = half(num_rows, 4 * heads * size)
    tiles = integers(3 if many else 0)
    room = SHARED_BYTES[driver.active.capability]
    cut = tiles_for(4, size, dot_dtype(held, q.dtype), room)
    queries = Queries(integers(5), tiles, tiles, splits, cut)
    parts, sums = floats(5, 4 * heads, splits, size), floats(5, 4 * heads, splits, 2)
    attend(q, memory, places, queries, rule, torch.empty_like(q), parts, sums)


@pytest.mark.parametrize("capability", SHARED_BYTES)
def test_every_kernel_is_compiled_for_a_card(compiled: list[Any], capability: int) -> None:
    driver.set_active(AbsentCard(capability))
    launch_rows()
    launch_products()
    launch_attention(torch.float16, AttentionRule())
    launch_attention(torch.int8, AttentionRule(window=1024, cap=30.0))
    launch_attention(torch.int16, AttentionRule(), many=False)
    assert {one.name for one in compiled} == entries()
    check(compiled, capability)


@pytest.mark.parametrize(
    ("capability", "held"),
    [(80, torch.float16), (80, torch.int16), (89, torch.float16), (89, torch.float32)],
    ids=str,
)
def test_the_largest_heads_have_room(
    compiled: list[Any], monkeypatch: pytest.MonkeyPatch, capability: int, held: torch.dtype
) -> None:
    """No further than to where the memory is known: the rest of the way is the longest."""
    monkeypatch.setattr(nvidia.llvm, "optimize_module", lambda *_, **__: None)
    monkeypatch.setattr(
        nvidia.CUDABackend, "make_ptx", lambda *given: given[2].update(name="") or ""
    )
    monkeypatch.setattr(nvidia.CUDABackend, "make_cubin", lambda *_: b"")
    driver.set_active(AbsentCard(capability))
    launch_attention(held, AttentionRule(), size=256)
    check_room(compiled, capability)


def check(compiled: list[Any], capability: int) -> None:
    """There is a program for the card, and its shared memory is there."""
    for one in compiled:
        assert one.metadata.target.arch == capability
        assert one.asm["cubin"].startswith(b"\x7fELF"), one.name
    check_room(compiled, capability)


def check_room(compiled: list[Any], capability: int) -> None:
    for one in compiled:
        assert one.metadata.shared <= SHARED_BYTES[capability], one.metadata


def entries() -> set[str]:
    """Every kernel of the package that is no part of another one."""
    found: dict[str, Any] = {}
    for module in pkgutil.iter_modules(package.__path__, package.__name__ + "."):
        held = vars(importlib.import_module(module.name))
        found |= {name: one for name, one in held.items() if isinstance(one, JITFunction)}
    sources = {name: one.src for name, one in found.items()}
    return {
        name
        for name in found
        if not any(
            re.search(rf"\b{name}\(", source) for by, source in sources.items() if by != name
        )
    }
