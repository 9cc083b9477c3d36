"""Every kernel, compiled for a card that is not here: an interpreter takes more than a compiler.

Owns: a signature of each kernel, as the executor launches it.
May not know: what any kernel computes.
Read next: `test_by_interpreter.py`, which runs this in a process of its own.
"""

from __future__ import annotations

import inspect
from typing import Any

import triton
import triton.language as tl
from triton.backends.compiler import GPUTarget
from triton.compiler import ASTSource

from firsthand.compute.triton import attention, cache, linear, rows, sampling
from firsthand.compute.triton.launch import OPTIONS

TARGET = GPUTarget("cuda", 90, 32)
HALF, FLOAT, INT, CODES = "*bf16", "*fp32", "*i32", "*u8"

Kernel = tuple[Any, dict[str, str], dict[str, Any]]


def linears() -> list[Kernel]:
    found: list[Kernel] = []
    for form, held, piece, minimum in (
        ("float", "*bf16", 64, False),
        ("codes8", "*i8", 128, False),
        ("codes4", CODES, 32, True),
        ("codes4", CODES, 16, True),
    ):
        pointers = {"x": HALF, "values": held, "scales": "*fp16", "minima": "*fp16"}
        shared = {"FORM": form, "PIECE": piece, "HAS_MINIMUM": minimum}
        for height, columns in ((16, 16), (64, 64), linear.STEADY):
            sizes = {"HAS_BIAS": True, "DOT": tl.bfloat16, "ROWS": height, "COLUMNS": columns}
            found.append((linear._linear, {**pointers, "bias": FLOAT, "out": HALF}, shared | sizes))
        more = {"ids": INT, "out": FLOAT, "factor": "fp32"}
        found.append((linear._embed, pointers | more, shared | {"BLOCK": 1024}))
    return found


def attentions() -> list[Kernel]:
    places = {"positions": INT, "table_at": INT, "tables": INT}
    shared = {"SIZE": 128, "CHUNK": attention.CHUNK, "SPLIT": attention.SPLIT}
    found: list[Kernel] = []
    for held, codes, dot in (
        ("*fp16", 0, tl.float16),
        ("*i8", 8, tl.bfloat16),
        ("*i16", 16, tl.float32),
    ):
        memory = {"keys": held, "values": held, "key_scales": FLOAT, "value_scales": FLOAT}
        heads = {"HEADS": 8, "HALF": 64, "CODES": codes, "ROTATE": True}
        found.append(
            (
                cache._store,
                places | memory | {"k": HALF, "v": HALF, "cos": FLOAT, "sin": FLOAT},
                heads,
            )
        )
        pointers = {"q": HALF, "out": HALF, "firsts": INT, "counts": INT, "parts": FLOAT}
        pointers |= {"sums": FLOAT, "scale": "fp32", "cap": "fp32"}
        for many, queries in ((True, 64), (False, 16)):
            sizes = {"GROUP": 4, "QUERIES": queries, "MANY": many, "CODES": codes > 0}
            rule = {"HAS_CAP": True, "HAS_WINDOW": True, "DOT": dot}
            found.append((attention._attend, places | memory | pointers, shared | sizes | rule))
    merge = {"parts": FLOAT, "sums": FLOAT, "singles": INT, "positions": INT, "out": HALF}
    return [*found, (attention._merge, merge, shared | {"HAS_WINDOW": True})]


def kernels() -> list[Kernel]:
    turn = {"x": HALF, "out": HALF, "cos": FLOAT, "sin": FLOAT, "positions": INT}
    return [
        (
            rows._norm,
            {
                "x": FLOAT,
                "residual": HALF,
                "gain": FLOAT,
                "total": FLOAT,
                "out": HALF,
                "eps": "fp32",
            },
            {"BLOCK": 4096, "HAS_RESIDUAL": True},
        ),
        (rows._rope, turn, {"HEADS": 32, "HALF": 64}),
        *(
            (rows._activation, {"gate": HALF, "up": HALF, "out": HALF}, {"KIND": k, "BLOCK": 1024})
            for k in ("silu", "gelu_tanh")
        ),
        (sampling._best, {"logits": FLOAT, "out": INT}, {"BLOCK": 1024}),
        (sampling._log_softmax, {"logits": FLOAT, "out": FLOAT}, {"BLOCK": 1024}),
        *attentions(),
        *linears(),
    ]


def test_every_kernel_is_compiled_for_a_card() -> None:
    """What is not named is a whole number."""
    for kernel, named, constants in kernels():
        names = list(inspect.signature(kernel.fn).parameters)
        signature = {
            name: "constexpr" if name in constants else named.get(name, "i32") for name in names
        }
        assert set(named) | set(constants) <= set(names), kernel.fn.__name__
        places = {(names.index(name),): value for name, value in constants.items()}
        source = ASTSource(kernel, signature, places)
        made = triton.compile(source, target=TARGET, options=dict(OPTIONS))
        assert made.asm["cubin"], kernel.fn.__name__
