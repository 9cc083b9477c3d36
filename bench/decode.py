"""How fast one sequence goes: a prompt of 512 tokens, then 128 new ones.

Owns: the workload and the form of a result: one JSON line, printed, and appended to
`bench/results/decode.jsonl`.
May not know: how anything is computed; it uses `LLM` as any program does.
Read next: docs/experiments.md, where results are written about.

    python bench/decode.py MODEL [--quantization …] [--executor …] [--threads N] [--runs N]

Each figure has minimum, median and maximum over the runs; the first run warms up and is left out.
"""

from __future__ import annotations

import argparse
import json
import platform
import statistics
import subprocess
from collections.abc import Sequence
from datetime import UTC, datetime
from pathlib import Path
from typing import Any

from firsthand.generation import LLM, Completion

ROOT = Path(__file__).resolve().parents[1]
PROMPT_TOKENS = 512
NEW_TOKENS = 128


def main() -> None:
    arguments = read_arguments()
    loading = {"quantization": arguments.quantization, "executor": arguments.executor}
    if arguments.threads is not None:
        loading["threads"] = arguments.threads
    with LLM(arguments.model, **loading) as llm:
        prompt = prompt_of(llm.loaded.spec.vocab_size)
        runs = [measure(llm, prompt) for _ in range(arguments.runs + 1)][1:]
        line = json.dumps(result(arguments, llm, runs), ensure_ascii=False)
    print(line)
    folder = ROOT / "bench" / "results"
    folder.mkdir(parents=True, exist_ok=True)
    with (folder / "decode.jsonl").open("a", encoding="utf-8") as file:
        file.write(line + "\n")


def read_arguments() -> argparse.Namespace:
    parser = argparse.ArgumentParser(description=str(__doc__).splitlines()[0])
    parser.add_argument("model")
    parser.add_argument("--quantization", default="auto")
    parser.add_argument("--executor", default="native")
    parser.add_argument("--threads", type=int)
    parser.add_argument("--runs", type=int, default=5)
    return parser.parse_args()


def prompt_of(vocab_size: int) -> list[int]:
    """Ids spread over the vocabulary: the same for every model of its size."""
    return [(7919 * index + 13) % vocab_size for index in range(PROMPT_TOKENS)]


def measure(llm: LLM, prompt: list[int]) -> Completion:
    stream = llm.stream(prompt, max_tokens=NEW_TOKENS, temperature=0, ignore_end=True)
    return stream.completion()


def result(arguments: argparse.Namespace, llm: LLM, runs: Sequence[Completion]) -> dict[str, Any]:
    reports = [run.report for run in runs]
    formats = sorted({tensor.format for tensor in llm.loaded.weights.tensors})
    return {
        "bench": "decode",
        "at": datetime.now(UTC).isoformat(timespec="seconds"),
        "commit": commit(),
        "machine": machine(),
        "model": Path(arguments.model).name,
        "executor": arguments.executor,
        "isa": getattr(llm.loaded.executor, "isa", None),
        "threads": getattr(llm.loaded.executor, "threads", None),
        "formats": formats,
        "prompt_tokens": PROMPT_TOKENS,
        "new_tokens": NEW_TOKENS,
        "runs": len(runs),
        "prompt_per_second": spread([report.prompt_per_second or 0.0 for report in reports]),
        "predicted_per_second": spread([report.predicted_per_second or 0.0 for report in reports]),
        "load_ms": llm.loaded.times.total_ms,
        "peak_rss_bytes": reports[-1].memory.peak_rss_bytes,
    }


def spread(values: Sequence[float]) -> dict[str, float]:
    return {"min": min(values), "median": statistics.median(values), "max": max(values)}


def commit() -> str:
    """The commit, with a mark if the tree differs from it."""
    done = subprocess.run(
        ["git", "describe", "--always", "--dirty", "--abbrev=12"],
        cwd=ROOT,
        capture_output=True,
        text=True,
    )
    return done.stdout.strip() or "none"


def machine() -> str:
    """The processor's own name, where the system tells it."""
    try:
        lines = Path("/proc/cpuinfo").read_text(encoding="utf-8").splitlines()
    except OSError:
        return platform.processor() or platform.machine()
    names = [line.partition(":")[2].strip() for line in lines if line.startswith("model name")]
    return f"{len(names)} × {names[0]}" if names else platform.machine()


if __name__ == "__main__":
    main()
