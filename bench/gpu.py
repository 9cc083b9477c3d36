"""One command for a card: what is right, what is fast, and how far from the card's own limits.

Owns: the order of the measurements, their deadline, and the form of the result.
May not know: kernels.
Read next: `gpu_steps.py`, `gpu_models.py`, `gpu_ablation.py`; docs/gpu.md.

    python bench/gpu.py --minutes 8 [--model NAME] [--out FILE]
    python bench/gpu.py --smoke            the whole of it, tiny, in Triton's interpreter

Each part adds to one JSON object, which is written after every part: what a deadline cuts off is
missing, not lost. A part that fails says so in its place, and the others go on. The limits are
measured in the same process: a long copy, and a large product of the library's.
"""

from __future__ import annotations

import argparse
import json
import math
import os
import platform
import subprocess
import sys
import time
from collections.abc import Callable, Sequence
from pathlib import Path
from typing import Any

ROOT = Path(__file__).resolve().parents[1]
sys.path[:0] = [str(ROOT), str(ROOT / "src")]

from bench.record import head  # noqa: E402

NEEDED = ("numpy", "torch", "triton")


class Run:
    """The options, the deadline, and what was found so far."""

    def __init__(self, options: argparse.Namespace) -> None:
        self.smoke = bool(options.smoke)
        self.model = str(options.model)
        self.out = Path(options.out)
        self.device = "cpu" if self.smoke else "cuda"
        self.ends_s = time.monotonic() + 60 * options.minutes
        self.found: dict[str, Any] = {
            **head("gpu"),
            "smoke": self.smoke,
            "left_out": [],
        }

    @property
    def left_s(self) -> float:
        return self.ends_s - time.monotonic()

    def part(self, name: str, least_s: float, measure: Callable[[], Any]) -> None:
        """Measure, if there is time for it, and keep what was found."""
        if self.left_s < least_s:
            self.found["left_out"].append(name)
        else:
            began_s = time.monotonic()
            try:
                found = measure()
            except Exception as error:
                found = {"failed": f"{type(error).__name__}: {error}"[:2000]}
            self.found[name] = found
            print(f"{name}: {time.monotonic() - began_s:.1f} s", file=sys.stderr)
        self.out.parent.mkdir(parents=True, exist_ok=True)
        self.out.write_text(json.dumps(self.found, indent=1) + "\n", encoding="utf-8")


def main(arguments: Sequence[str]) -> int:
    parser = argparse.ArgumentParser(description=__doc__.partition("\n")[0])
    parser.add_argument("--minutes", type=float, default=8.0)
    parser.add_argument("--model", default="smollm2-135m", help="the small real one, if it is here")
    parser.add_argument("--smoke", action="store_true", help="tiny, without a card")
    parser.add_argument("--out", default=str(ROOT / "bench" / "results" / "gpu.json"))
    run = Run(parser.parse_args(arguments))
    os.environ["TRITON_INTERPRET"] = "1" if run.smoke else "0"  # before triton is imported
    run.part("built", -math.inf, build)
    run.part("machine", 5, lambda: machine(run))
    run.part("kernels", 20, lambda: kernels(run))
    for shape, formats in [("smoke", ("float16", "int4"))] if run.smoke else REAL_SHAPES:
        for format in formats:
            run.part(f"{shape} {format}", 20, lambda s=shape, f=format: model(run, s, f))
    run.part("ablation", 60, lambda: ablated(run))
    run.part("transformers", 20, lambda: beside_transformers(run))
    run.part("real model", 10, lambda: real_model(run))
    print(json.dumps(run.found))
    failed = [
        name for name, part in run.found.items() if isinstance(part, dict) and "failed" in part
    ]
    return 1 if failed else 0


REAL_SHAPES = [("1b", ("float16",)), ("7b", ("float16", "int4"))]


def build() -> dict[str, Any]:
    """The kernels of the CPU, which sample: compiled where they are missing."""
    for library in NEEDED:
        __import__(library)
    try:
        import firsthand.compute.native._native  # noqa: F401
    except ImportError:
        command = [sys.executable, "-m", "pip", "install", "--no-deps", "--no-build-isolation"]
        subprocess.run([*command, "-e", str(ROOT)], check=True, stdout=sys.stderr)
        return {"native": "compiled now"}
    return {"native": "there"}


def machine(run: Run) -> dict[str, Any]:
    """Names and versions, and the two limits: bytes and multiply-accumulates a second."""
    import torch
    import triton

    from bench.gpu_steps import timed

    size = 1 << (16 if run.smoke else 29)
    source = torch.ones(size, dtype=torch.float32, device=run.device)
    target = torch.empty_like(source)
    copy_ms = timed(run, lambda: target.copy_(source))
    side = 64 if run.smoke else 8192
    a = torch.ones((side, side), dtype=torch.bfloat16, device=run.device)
    product_ms = timed(run, lambda: a @ a)
    found: dict[str, Any] = {
        "python": platform.python_version(),
        "torch": torch.__version__,
        "triton": triton.__version__,
        "copied_gb_per_second": 2 * source.nbytes / copy_ms / 1e6,
        "bf16_tflops": 2 * side**3 / product_ms / 1e9,
    }
    if run.device == "cuda":
        free, whole = torch.cuda.mem_get_info()
        found |= {
            "card": torch.cuda.get_device_name(),
            "capability": list(torch.cuda.get_device_capability()),
            "cuda": torch.version.cuda,
            "memory_bytes": whole,
            "free_bytes": free,
        }
    return found


def kernels(run: Run) -> dict[str, Any]:
    """Each file of kernel tests in a process of its own, on this device."""
    folder = ROOT / "tests" / "compute" / "triton"
    files = sorted(folder.glob("interpreted_rows.py" if run.smoke else "interpreted_*.py"))
    environment = {**os.environ, "PYTHONPATH": str(ROOT / "src")}
    found = {}
    for file in files:
        limit_s = max(1.0, min(120.0, run.left_s / 2))
        command = [sys.executable, "-m", "pytest", "-q", "-p", "no:cacheprovider", str(file)]
        command += ["-k", "best_token"] if run.smoke else []
        try:
            done = subprocess.run(
                command,
                cwd=ROOT,
                env=environment,
                capture_output=True,
                text=True,
                timeout=limit_s,
                check=False,
            )
        except subprocess.TimeoutExpired:
            found[file.stem] = "ran past its time"
            continue
        last = (done.stdout.strip().splitlines() or [""])[-1]
        found[file.stem] = "right" if done.returncode == 0 else f"wrong: {done.stdout[-1500:]}"
        print(f"{file.stem}: {last}", file=sys.stderr)
    return found


def model(run: Run, name: str, format: str) -> dict[str, Any]:
    """A model of a shape: its load, decoding and prompts beside the limits, and its bits."""
    from bench.gpu_models import SHAPES, fill
    from bench.gpu_steps import new_executor, wait

    shape = SHAPES[name]
    executor = new_executor(run, buckets=shape.rows)
    began_s = time.monotonic()
    met = fill(executor, shape, format)
    wait(run)
    held = executor.memory()
    found: dict[str, Any] = {
        "parameters": met,
        "load_s": time.monotonic() - began_s,
        "weights_bytes": held.weights_bytes,
        "scratch_bytes": held.scratch_bytes,
    }
    store_and_steps(run, executor, name, met, found)
    del executor
    if format == "float16" and name != "7b":  # as many loads as there are ways
        found["bits"] = bits(run, name, format)
    return found


def store_and_steps(run: Run, executor: Any, name: str, met: int, found: dict[str, Any]) -> None:
    from bench.gpu_models import SHAPES, new_store
    from bench.gpu_steps import decode, picked, prompt

    shape, limits = SHAPES[name], run.found["machine"]
    store = new_store(executor, shape)
    read = executor.memory().weights_bytes - 2 * shape.vocab_size * shape.width  # no embedding
    found["decode"] = []
    for rows in shape.rows:
        step = decode(run, executor, store, shape, rows)
        num_bytes = read + rows * shape.context * store.slot_bytes
        per_second = num_bytes / step["step_ms"] / 1e6
        step |= picked(run, executor, store, shape, rows)
        step["tokens_per_second"] = rows / step["step_ms"] * 1e3
        step["bytes"] = num_bytes
        step["share_of_bandwidth"] = per_second / limits["copied_gb_per_second"]
        found["decode"].append(step)
    found["prompt"] = prompt(run, executor, store, shape)
    rate = 2 * met * shape.max_tokens / found["prompt"]["step_ms"] / 1e9
    found["prompt"]["share_of_bf16_peak"] = rate / limits["bf16_tflops"]
    facts = executor.compiled_steps()
    found["graphs"] = None if facts is None else facts.to_dict()


def bits(run: Run, name: str, format: str) -> dict[str, Any]:
    """Which changes of a step leave a row's bits alone: by default, and where that is asked for."""
    import numpy as np

    from bench.gpu_models import SHAPES, batch_of, fill, new_store
    from bench.gpu_steps import new_executor

    shape = SHAPES[name]
    half = min(shape.context // 2, shape.max_tokens)
    found: dict[str, Any] = {}
    for steady in (False, True):
        kept: dict[str, Any] = {}
        for way, (rules, graphs) in WAYS.items():
            buckets = shape.rows if graphs else ()
            executor = new_executor(
                run, deterministic=steady, buckets=buckets, disabled_rules=rules
            )
            fill(executor, shape, format)
            store = new_store(executor, shape)
            last = batch_of(shape, [(0, half, 1)])
            executor.run(batch_of(shape, [(0, 0, half)]), store)
            kept[way] = executor.run(last, store).copy()
            if way == "eager":
                others = [(which, 0, 1) for which in range(1, max(shape.rows))]
                many = batch_of(shape, [(0, half, 1), *others])
                kept["company"] = executor.run(many, store)[:1].copy()
                for start, stop in ((0, half // 3), (half // 3, half)):
                    executor.run(batch_of(shape, [(0, start, stop - start)]), store)
                kept["chunks"] = executor.run(last, store).copy()
            del executor, store
        plain = kept.pop("eager")
        found["deterministic" if steady else "default"] = {
            way: bool(np.array_equal(plain, other)) for way, other in kept.items()
        }
    return found


# What else a step may be: rules of fusion that are left out, and whether a graph is replayed.
WAYS: dict[str, tuple[tuple[str, ...], bool]] = {
    "eager": ((), False),
    "unfused": (("residual-norm", "rope"), False),
    "graph": ((), True),
}


def ablated(run: Run) -> dict[str, Any]:
    """What fusing and graphs bring, each alone and all: see `gpu_ablation.py`."""
    from bench.gpu_ablation import ablation

    return ablation(run, "smoke" if run.smoke else "1b")


def beside_transformers(run: Run) -> dict[str, Any]:
    """So many requests at once, greedy, over models of one shape: tokens a second of each."""
    import numpy as np

    from bench.gpu_models import SHAPES, batch_of, fill, new_store
    from bench.gpu_steps import new_executor, timed
    from bench.gpu_transformers import generation

    shape = SHAPES["smoke" if run.smoke else "1b"]
    requests, prompt, new = (2, 3, 2) if run.smoke else (16, 128, 64)
    their_ms = timed(run, generation(shape, run.device, requests, prompt, new), repeats=3)
    executor = new_executor(run, buckets=shape.rows)
    fill(executor, shape, "float16")
    store = new_store(executor, shape)

    def ours() -> None:
        per = max(1, shape.max_tokens // prompt)
        for first in range(0, requests, per):
            some = range(first, min(first + per, requests))
            executor.run(batch_of(shape, [(which, 0, prompt) for which in some]), store)
        for at in range(prompt, prompt + new - 1):
            logits = executor.run(
                batch_of(shape, [(which, at, 1) for which in range(requests)]), store
            )
            np.argmax(logits, axis=1)

    our_ms = timed(run, ours, repeats=3)
    tokens = requests * new
    return {
        "requests": requests,
        "new_tokens": new,
        "transformers_tokens_per_second": tokens / their_ms * 1e3,
        "tokens_per_second": tokens / our_ms * 1e3,
        "times": their_ms / our_ms,
    }


def real_model(run: Run) -> dict[str, Any]:
    """The small real model, through the whole engine: its text beside that of the CPU's kernels."""
    from firsthand.errors import ModelNotFound
    from firsthand.generation.llm import LLM

    model, folder = run.model, run.out.parent / "gpu-micro-model"
    if run.smoke:
        from firsthand.cli.micro_model import write_micro_model

        folder.mkdir(parents=True, exist_ok=True)
        model = str(write_micro_model(folder))
    found: dict[str, Any] = {"model": Path(model).name}
    texts = []
    new = 2 if run.smoke else 64
    options: dict[str, Any] = {"max_context": 64 if run.smoke else 1024, "kv_dtype": "float16"}
    card: dict[str, Any] = {"executor": "triton", "device": run.device, "compile": not run.smoke}
    try:
        for chosen in ({}, card):
            with LLM(model, **options, **chosen) as llm:
                llm.generate("Once", max_tokens=new, temperature=0.0, ignore_end=True)
                began_s = time.monotonic()
                done = llm.generate("Once", max_tokens=new, temperature=0.0, ignore_end=True)
                texts.append(list(done.token_ids))
                name = llm.loaded.executor.name
                found[f"{name}_tokens_per_second"] = new / (time.monotonic() - began_s)
    except ModelNotFound as error:
        return found | {"missing": str(error)}
    same = sum(a == b for a, b in zip(*texts, strict=True))
    return found | {"equal_tokens": same, "tokens": new}


if __name__ == "__main__":
    raise SystemExit(main(sys.argv[1:]))
