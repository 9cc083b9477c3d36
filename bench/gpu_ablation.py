"""What each choice of the executor brings: rules of fusion and graphs, left out one by one.

Owns: the ways, and the comparison with the whole.
May not know: kernels, what a rule does.
Read next: `gpu_steps.py`; `src/firsthand/compute/triton/fusing.py`, the rules.
"""

from __future__ import annotations

from typing import Any

from bench.gpu_models import SHAPES, fill, new_store
from bench.gpu_steps import Place, decode, new_executor, prompt


def ablation(place: Place, name: str) -> dict[str, Any]:
    """Each way's decoding and prompt; `times`: as long as with all rules and graphs. Of a prompt
    no graph is captured: there both ways are one, and differ by what a measurement does."""
    found: dict[str, Any] = {}
    for graphs in (True, False):
        for left_out in _left_out():
            way = _way(place, name, left_out, graphs=graphs)
            whole = next(iter(found.values()), way)
            for one, other in zip(_steps(way), _steps(whole), strict=True):
                one["times"] = one["step_ms"] / other["step_ms"]
            found[_called(left_out, graphs=graphs)] = way
    return found


def _left_out() -> list[tuple[str, ...]]:
    """None, each rule alone, and all."""
    from firsthand.compute.triton.fusing import RULES

    names = tuple(rule.name for rule in RULES)
    return [(), *((name,) for name in names), names]


def _way(place: Place, name: str, left_out: tuple[str, ...], *, graphs: bool) -> dict[str, Any]:
    shape = SHAPES[name]
    buckets = shape.rows if graphs else ()
    executor = new_executor(place, buckets=buckets, disabled_rules=left_out)
    fill(executor, shape, "float16")
    store = new_store(executor, shape)
    return {
        "operators": len(executor.ops),
        "decode": [decode(place, executor, store, shape, rows) for rows in shape.rows],
        "prompt": prompt(place, executor, store, shape),
    }


def _steps(way: dict[str, Any]) -> list[dict[str, Any]]:
    return [*way["decode"], way["prompt"]]


def _called(left_out: tuple[str, ...], *, graphs: bool) -> str:
    kind = "graph" if graphs else "eager"
    return kind if not left_out else f"{kind}, without {' and '.join(left_out)}"
