"""The command that proves the whole path on this machine: selftest.

Owns: the list of properties that are asked for.
May not know: how any of them is kept.
Read next: `micro.py`, the generated model; `generation/llm.py`.

A micro-model with random weights talks nonsense, but the properties that the engine promises
hold for any weights: so the check needs no download and takes seconds.
"""

from __future__ import annotations

import time
from collections.abc import Callable, Iterator
from dataclasses import dataclass
from importlib.util import find_spec
from pathlib import Path
from typing import Any

import typer

from firsthand.cli.options import AsJson
from firsthand.cli.output import CHECK_FAILED, print_json, print_table, reported

PROMPT = "A test of the whole path, 世界 🙂: "
NUM_TOKENS = 24
QUANTIZATIONS = ("none", "int8", "int4")
# Both executors compute in float32 here, in different orders; the logits are of size 1 to 10.
MAX_LOGPROB_DIFFERENCE = 1e-3


@dataclass(frozen=True, slots=True)
class Check:
    """One property: what was asked, whether it held, what was seen, and how long it took."""

    name: str
    passed: bool
    seen: str
    ms: float


def selftest(as_json: AsJson = False) -> None:
    """Prove the whole path on a small generated model."""
    with reported(as_json):
        from tempfile import TemporaryDirectory

        from firsthand.cli.micro import write_micro_model

        with TemporaryDirectory() as folder:
            checks = list(run_checks(write_micro_model(Path(folder))))
        failed = [check for check in checks if not check.passed]
        if as_json:
            print_json(
                {
                    "passed": not failed,
                    "checks": [
                        {"name": c.name, "passed": c.passed, "seen": c.seen, "ms": c.ms}
                        for c in checks
                    ],
                }
            )
        else:
            rows = [(c.name, "ok" if c.passed else "FAILED", f"{c.ms:.0f}", c.seen) for c in checks]
            print_table(("CHECK", "RESULT", "MS", "SEEN"), rows)
            print(f"{len(checks) - len(failed)} of {len(checks)} checks passed")
        if failed:
            raise typer.Exit(CHECK_FAILED)


def run_checks(model: Path) -> Iterator[Check]:
    """Every check in order; one that raises has failed, and says how."""
    for quantization in QUANTIZATIONS:
        yield _timed(f"native, {quantization}: loads and answers", _answers, model, quantization)
    yield _timed("the same seed gives the same answer", _same_seed, model)
    yield _timed("streamed = at once", _streamed, model)
    yield _timed("1 thread = 2 threads", _threads, model)
    yield _timed("several prompts at once = each alone", _together, model)
    yield _timed("a prompt in pieces = whole", _pieces, model)
    yield _timed("plan before fusion = after", _unfused, model)
    if find_spec("torch") is None:
        yield Check("native = torch", True, "left out: the torch extra is not installed", 0.0)
    else:
        yield _timed("native = torch, within a bound", _torch, model)


def _timed(name: str, check: Callable[..., tuple[bool, str]], *arguments: Any) -> Check:
    started_s = time.perf_counter()
    try:
        passed, seen = check(*arguments)
    except Exception as error:
        passed, seen = False, f"{type(error).__name__}: {error}"
    return Check(name, passed, seen, (time.perf_counter() - started_s) * 1e3)


def _answers(model: Path, quantization: str) -> tuple[bool, str]:
    done = _ask(model, quantization=quantization)
    return len(done.token_ids) == NUM_TOKENS, f"{len(done.token_ids)} tokens"


def _same_seed(model: Path) -> tuple[bool, str]:
    with _open(model) as llm:
        first, again, other = (
            llm.generate(PROMPT, **_options(temperature=1.0, seed=seed)).token_ids
            for seed in (1, 1, 2)
        )
    return first == again != other, "and another seed gives another"


def _streamed(model: Path) -> tuple[bool, str]:
    with _open(model) as llm:
        whole = llm.generate(PROMPT, **_options())
        chunks = list(llm.stream(PROMPT, **_options()))
    text = "".join(chunk.text for chunk in chunks)
    ids = tuple(token_id for chunk in chunks for token_id in chunk.token_ids)
    return (text, ids) == (whole.text, whole.token_ids), f"{len(chunks)} chunks"


def _threads(model: Path) -> tuple[bool, str]:
    return _equal(_ask(model, threads=1), _ask(model, threads=2))


def _together(model: Path) -> tuple[bool, str]:
    prompts = [PROMPT, PROMPT[:9], PROMPT[::-1]]
    with _open(model) as llm:
        alone = [llm.generate(prompt, **_options()) for prompt in prompts]
        together = llm.generate(prompts, **_options())
    return all(_equal(*pair)[0] for pair in zip(alone, together, strict=True)), "same bits"


def _pieces(model: Path) -> tuple[bool, str]:
    return _equal(_ask(model), _ask(model, max_step_tokens=7))


def _unfused(model: Path) -> tuple[bool, str]:
    from firsthand.compute.fusion import RULES

    return _equal(_ask(model), _ask(model, disabled_rules=[rule.name for rule in RULES]))


def _torch(model: Path) -> tuple[bool, str]:
    ours = _ask(model, quantization="none", kv_dtype="float32")
    theirs = _ask(model, quantization="none", kv_dtype="float32", executor="torch")
    worst = max(abs(a - b) for a, b in zip(_logprobs(ours), _logprobs(theirs), strict=True))
    same = ours.token_ids == theirs.token_ids
    return same and worst < MAX_LOGPROB_DIFFERENCE, f"log-probabilities differ by {worst:.1e}"


def _equal(one: Any, other: Any) -> tuple[bool, str]:
    same = one.token_ids == other.token_ids and _logprobs(one) == _logprobs(other)
    return same, "same bits" if same else "other bits"


def _logprobs(done: Any) -> list[float]:
    return [entry.logprob for entry in done.logprobs]


def _ask(model: Path, **loading: Any) -> Any:
    with _open(model, **loading) as llm:
        return llm.generate(PROMPT, **_options())


def _open(model: Path, **loading: Any) -> Any:
    from firsthand.generation import LLM

    return LLM(model, **loading)


def _options(**more: Any) -> dict[str, Any]:
    fixed = {"max_tokens": NUM_TOKENS, "ignore_end": True, "temperature": 0.0, "logprobs": 0}
    return fixed | more
