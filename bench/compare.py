"""Ours and the rivals in one run, each in a process of its own, one after another in turns.

Owns: the workloads, the turns, the lines.
May not know: how an engine is called (`bench/rivals/`).
Read next: `rivals/engines.py`, who takes part; `rivals/protocol.py`, what is asked; `table.py`,
which makes the README's table of the lines.

    python bench/compare.py [--workloads prompt512,decode] [--engines llama.cpp] [--repeats 5]

| workload | what is done | the figure |
|---|---|---|
| prompt512, prompt1900 | a prompt of so many tokens, one new token | prompt tokens/s |
| decode | a prompt of 16, 128 new tokens | new tokens/s after the first |
| concurrent16 | 16 prompts of 64 at once, 128 new tokens each | new tokens/s, all time counted |
| serving16 | the same by 16 clients of a server, streamed | new tokens/s, all time counted |
| start | a new process, a prompt of 16; the file is in the disk's cache | s to the first token |
| memory | the same process | most bytes resident, in MiB |
| perplexity | 20 windows of 512 tokens of a text, the second halves scored | perplexity |

All get the same random token ids, greedy, the end ignored, the same number of threads. One round
warms up and is left out. In each round every engine has its turn, so that a ratio is between
neighbours in time; `ours_over` is that of the rounds one by one: how many times as fast (or small)
ours is. An engine that is not there or fails has a line that says so, never none.
"""

from __future__ import annotations

import argparse
import contextlib
import json
import math
import os
import random
import re
import signal
import statistics
import subprocess
import sys
import threading
import time
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any

ROOT = Path(__file__).resolve().parents[1]
sys.path.insert(0, str(ROOT))

from bench.record import cpu, head  # noqa: E402
from bench.rivals.engines import ENGINES, OURS, Engine  # noqa: E402

UNITS = {
    "prompt512": "tokens/s",
    "prompt1900": "tokens/s",
    "decode": "tokens/s",
    "concurrent16": "tokens/s",
    "serving16": "tokens/s",
    "start": "s",
    "memory": "MiB",
    "perplexity": "",
}
WORKLOADS = tuple(name for name in UNITS if name != "memory")  # it comes with start
NEW_TOKENS = 128
WINDOW, NUM_WINDOWS = 512, 20
IDS = (100, 48_000)  # of ordinary tokens
ANSWER_LIMIT_S = 900.0
PAUSE_S = 0.3  # until the threads of the last engine sleep


class Failed(Exception):
    """An engine gave no answer; the text says why."""


class Process:
    """One engine that runs and answers."""

    def __init__(self, engine: Engine, rivals: Path, source: Path, threads: int) -> None:
        if reason := engine.lacks(rivals, source):
            raise Failed(reason)
        count = str(threads)
        environment = {**os.environ, "BENCH_THREADS": count, "OMP_NUM_THREADS": count}
        environment |= {"HF_HUB_OFFLINE": "1", "OPENVINO_TELEMETRY": "0"}
        self._process = subprocess.Popen(
            engine.command(rivals, source),
            stdin=subprocess.PIPE,
            stdout=subprocess.PIPE,
            stderr=subprocess.DEVNULL,
            text=True,
            env=environment,
            process_group=0,
        )

    def ask(self, question: Mapping[str, Any]) -> dict[str, Any]:
        watch = threading.Timer(ANSWER_LIMIT_S, self._kill)
        watch.start()
        try:
            assert self._process.stdin is not None and self._process.stdout is not None
            self._process.stdin.write(json.dumps(question) + "\n")
            self._process.stdin.flush()
            answer = json.loads(self._process.stdout.readline())
        except (OSError, ValueError):
            raise Failed("ended without an answer") from None
        finally:
            watch.cancel()
        if "error" in answer:
            raise Failed(str(answer["error"]))
        return dict(answer)

    def peak_mib(self) -> float:
        status = Path(f"/proc/{self._process.pid}/status").read_text(encoding="ascii")
        found = re.search(r"^VmHWM:\s+(\d+) kB$", status, re.MULTILINE)
        return int(found[1]) / 1024 if found else math.nan

    def close(self) -> None:
        self._kill()
        self._process.communicate()

    def _kill(self) -> None:
        """With what it started itself."""
        with contextlib.suppress(ProcessLookupError):
            os.killpg(self._process.pid, signal.SIGKILL)


@dataclass(frozen=True, slots=True)
class Settings:
    rivals: Path
    source: Path
    threads: int
    repeats: int


class Contest:
    """The engines, and for each the process that it has, or why it has none."""

    def __init__(self, engines: Sequence[Engine], settings: Settings) -> None:
        self.engines = engines
        self.settings = settings
        self._running: dict[Engine, Process] = {}

    def start(self, engine: Engine) -> Process:
        given = self.settings
        return Process(engine, given.rivals, given.source, given.threads)

    def running(self, engine: Engine) -> Process:
        if engine not in self._running:
            self._running[engine] = self.start(engine)
        return self._running[engine]

    def stop(self, engine: Engine) -> None:
        if engine in self._running:
            self._running.pop(engine).close()

    def close(self) -> None:
        for engine in list(self._running):
            self.stop(engine)

    def rounds(self, workload: str) -> tuple[dict[Engine, list[Any]], dict[Engine, str]]:
        """What each engine reached, round by round; and of those that failed, why."""
        is_served = workload == "serving16"
        engines = [engine for engine in self.engines if engine.is_server == is_served]
        reached: dict[Engine, list[Any]] = {engine: [] for engine in engines}
        failed: dict[Engine, str] = {}
        for turn in range(-1, self.settings.repeats):
            for engine in engines:
                if engine in failed:
                    continue
                try:
                    value = self.turn(engine, workload, turn)
                except Failed as error:
                    failed[engine] = str(error)
                    self.stop(engine)
                    continue
                if turn >= 0:
                    reached[engine].append(value)
                shown = ", ".join(f"{part:.4g}" for part in value)
                print(f"{workload} {turn} {engine.name} {engine.weights}: {shown}", file=sys.stderr)
                time.sleep(PAUSE_S)
        return reached, failed

    def turn(self, engine: Engine, workload: str, seed: int) -> tuple[float, ...]:
        """The figure of one workload; of `start`, the memory's too."""
        if workload == "start":
            began_s = time.perf_counter()
            process = self.start(engine)
            try:
                process.ask(generation([prompt(16, seed)], 1))
                return time.perf_counter() - began_s, process.peak_mib()
            finally:
                process.close()
        process = self.running(engine)
        if workload == "decode":
            answer = process.ask(generation([prompt(16, seed)], NEW_TOKENS))
            return ((NEW_TOKENS - 1) / (answer["all_s"] - answer["first_s"]),)
        if workload in ("concurrent16", "serving16"):
            prompts = [prompt(64, f"{seed}.{index}") for index in range(16)]
            answer = process.ask(generation(prompts, NEW_TOKENS))
            return (len(prompts) * NEW_TOKENS / answer["all_s"],)
        length = int(workload.removeprefix("prompt"))
        answer = process.ask(generation([prompt(length, seed)], 1))
        return (length / (answer["first_s"] or answer["all_s"]),)

    def perplexities(self) -> tuple[dict[Engine, list[Any]], dict[Engine, str]]:
        token_windows = windows(self.settings.source)
        engines = [engine for engine in self.engines if not engine.is_server]
        reached: dict[Engine, list[Any]] = {engine: [] for engine in engines}
        failed: dict[Engine, str] = {}
        for engine in engines:
            try:
                nlls = [self._score(engine, window) for window in token_windows]
            except Failed as error:
                failed[engine] = str(error)
                self.stop(engine)
                continue
            value = math.exp(math.fsum(nlls) / (len(nlls) * (WINDOW - WINDOW // 2 - 1)))
            reached[engine].append((value,))
            print(f"perplexity {engine.name} {engine.weights}: {value:.4f}", file=sys.stderr)
        return reached, failed

    def _score(self, engine: Engine, window: Sequence[int]) -> float:
        question = {"op": "score", "window": window, "start": WINDOW // 2 + 1}
        return float(self.running(engine).ask(question)["nll"])


def generation(prompts: Sequence[Sequence[int]], new_tokens: int) -> dict[str, Any]:
    return {"op": "generate", "prompts": prompts, "new_tokens": new_tokens}


def prompt(length: int, seed: int | str) -> list[int]:
    """Random ids, the same for every engine; another seed has no prefix in common."""
    numbers = random.Random(f"{length}/{seed}")
    return [numbers.randrange(*IDS) for _ in range(length)]


def windows(source: Path) -> list[list[int]]:
    """The tokens of Python's own help texts, which every machine has."""
    from pydoc_data.topics import topics

    from firsthand.generation.reading import read_tokenizer
    from firsthand.weights.open import open_checkpoint

    text = "\n".join(topics[name] for name in sorted(topics))
    token_ids = read_tokenizer(open_checkpoint(source)).encode(text[:200_000], add_bos=False)
    return [list(token_ids[at * WINDOW :][:WINDOW]) for at in range(NUM_WINDOWS)]


def spread(values: Sequence[float]) -> dict[str, float]:
    found = (min(values), statistics.median(values), max(values))
    return {
        name: float(f"{x:.5g}") for name, x in zip(("min", "median", "max"), found, strict=True)
    }


def lines(
    workload: str, values: Mapping[Engine, Sequence[float]], failed: Mapping[Engine, str]
) -> Iterator[dict[str, Any]]:
    """One per engine and format. A rate is better if it is larger, any other figure if smaller."""
    is_rate = UNITS[workload] == "tokens/s"
    for engine, reached in values.items():
        line: dict[str, Any] = {
            "workload": workload,
            "unit": UNITS[workload],
            "engine": engine.name,
            "version": engine.version,
            "weights": engine.weights,
        }
        if engine in failed:
            yield {**line, "missing": failed[engine]}
            continue
        ratios = {}
        for ours, our_values in values.items():
            if ours.name == OURS and our_values and ours not in failed:
                pairs = list(zip(our_values, reached, strict=True))
                ratios[ours.weights] = spread([a / b if is_rate else b / a for a, b in pairs])
        yield {**line, "repeats": len(reached), **spread(reached), "ours_over": ratios}


def measured(contest: Contest, workload: str) -> Iterator[dict[str, Any]]:
    if workload == "perplexity":
        reached, failed = contest.perplexities()
    else:
        reached, failed = contest.rounds(workload)
    names = ("start", "memory") if workload == "start" else (workload,)
    for index, name in enumerate(names):
        yield from lines(name, {e: [v[index] for v in of] for e, of in reached.items()}, failed)


def chosen(names: str) -> list[Engine]:
    """Ours always, and the rivals that are named."""
    wanted = [name for name in names.split(",") if name]
    shown = {engine: f"{engine.name} {engine.weights}" for engine in ENGINES}
    return [
        engine
        for engine in ENGINES
        if engine.name == OURS or not wanted or any(name in shown[engine] for name in wanted)
    ]


def machine_line(threads: int) -> dict[str, Any]:
    """What this machine can do at most, measured by loops that do nothing else."""
    from firsthand.measure.limits import measure_limits

    limits = measure_limits(135_000_000, threads).to_dict()
    return {"workload": "machine", "engine": "machine", "weights": "", **limits}


def main(arguments: Sequence[str]) -> int:
    from firsthand.config import read_environment
    from firsthand.weights.catalogue import resolve

    parser = argparse.ArgumentParser(description="Ours and the rivals, in turns.")
    parser.add_argument("--model", default="smollm2-135m", help="a name or a .gguf file")
    parser.add_argument("--rivals", type=Path, default=ROOT / ".rivals", help="where they are")
    parser.add_argument("--workloads", default=",".join(WORKLOADS))
    parser.add_argument("--engines", default="", help="parts of their names; all if not given")
    parser.add_argument("--repeats", type=int, default=5)
    parser.add_argument("--threads", type=int, default=2)
    parser.add_argument("--out", type=Path, default=ROOT / "bench" / "results" / "compare.jsonl")
    given = parser.parse_args(arguments)
    source = resolve(given.model, read_environment()).path
    made = {**head("rivals"), "cpu": cpu(), "model": source.name, "threads": given.threads}
    settings = Settings(given.rivals.resolve(), source, given.threads, given.repeats)
    contest = Contest(chosen(given.engines), settings)
    given.out.parent.mkdir(parents=True, exist_ok=True)
    with given.out.open("a", encoding="utf-8") as file:

        def keep(line: Mapping[str, Any]) -> None:
            text = json.dumps({**made, **line}, ensure_ascii=False)
            print(text, flush=True)
            file.write(text + "\n")
            file.flush()

        keep(machine_line(given.threads))
        try:
            for workload in given.workloads.split(","):
                for line in measured(contest, workload):
                    keep({**line, "load": round(os.getloadavg()[0], 1)})
        finally:
            contest.close()
    return 0


if __name__ == "__main__":
    sys.exit(main(sys.argv[1:]))
