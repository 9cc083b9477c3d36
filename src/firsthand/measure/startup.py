"""How long a new process takes to its first token, and what it holds in memory then.

Owns: the processes, and the clock around them: from the start of one to the line that it prints.
May not know: what happens inside.
Read next: `first_token.py`, the child.

One start warms the disk's cache and is left out. An installed package has its modules compiled;
where Python is told not to keep them (PYTHONDONTWRITEBYTECODE), which costs a start 0.1 s, that
first start compiles them into a folder of the measurement.
"""

from __future__ import annotations

import json
import subprocess
import sys
import time
from collections.abc import Mapping
from dataclasses import asdict
from tempfile import TemporaryDirectory
from typing import IO, Any

from firsthand.checks import check_integer
from firsthand.config import read_environment
from firsthand.errors import EngineError
from firsthand.generation.load_options import LoadOptions
from firsthand.measure.latency import Spread, spread_of
from firsthand.values import dataclass
from firsthand.weights.catalogue import resolve

PROMPT_TOKENS = 16


@dataclass(frozen=True, slots=True)
class Startup:
    """`first_token_ms` from the start of the process; `load_ms` is the part that loads the model.

    `overhead_bytes`: the largest peak of the memory, less weights, keys and values.
    """

    first_token_ms: Spread
    load_ms: Spread
    peak_rss_bytes: int
    weights_bytes: int
    kv_used_bytes: int
    overhead_bytes: int

    def to_dict(self) -> dict[str, Any]:
        return asdict(self)


def measure_startup(
    model: str,
    options: Mapping[str, Any],
    repeats: int = 5,
    prompt_tokens: int = PROMPT_TOKENS,
) -> Startup:
    """Start `repeats` processes, one after another.

    `options` are fields of `LoadOptions`, checked here. Raises InvalidRequest, ModelNotFound, or
    EngineError with what a child said when it failed.
    """
    check_integer("repeats", repeats, 1)
    check_integer("prompt_tokens", prompt_tokens, 1)
    LoadOptions(**options)
    resolve(model, read_environment())
    arguments = ["-m", "firsthand.measure.first_token", model, str(prompt_tokens)]
    arguments.append(json.dumps(dict(options)))
    with TemporaryDirectory() as folder:
        compiled = ["-X", f"pycache_prefix={folder}"] if sys.dont_write_bytecode else []
        command = [sys.executable, *compiled, *arguments]
        runs = [_start(command) for _ in range(repeats + 1)][1:]
    last = runs[-1][1]
    peak = max(int(held["peak_rss_bytes"]) for _, held in runs)
    weights, kv = int(last["weights_bytes"]), int(last["kv_used_bytes"])
    return Startup(
        first_token_ms=spread_of([ms for ms, _ in runs]),
        load_ms=spread_of([float(held["load_ms"]) for _, held in runs]),
        peak_rss_bytes=peak,
        weights_bytes=weights,
        kv_used_bytes=kv,
        overhead_bytes=peak - weights - kv,
    )


def _start(command: list[str]) -> tuple[float, dict[str, Any]]:
    """Milliseconds to the first line, and the second line."""
    started_s = time.perf_counter()
    with subprocess.Popen(command, stdout=subprocess.PIPE, text=True) as process:
        try:
            assert process.stdout is not None
            _line(process.stdout)
            ms = (time.perf_counter() - started_s) * 1e3
            return ms, _line(process.stdout)
        except BaseException:
            process.kill()
            raise


def _line(stream: IO[str]) -> dict[str, Any]:
    text = stream.readline()
    try:
        value = json.loads(text)
    except ValueError:
        raise EngineError("the process that was started ended without an answer") from None
    if "error" in value:
        raise EngineError(f"the process that was started failed: {value['error']}")
    return dict(value)
