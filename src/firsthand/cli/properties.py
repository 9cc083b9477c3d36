"""What is promised, asked of a real run: the checks of selftest.

Owns: the list of checks, and how formats, seeds and the other executor are asked for.
May not know: how any of them is kept.
Read next: `evaluate/parity.py`, equal bits; `generation/llm.py`, which is asked.

A micro-model with random weights talks nonsense, but the properties hold for any weights: so the
check needs no download and takes seconds. Loaded by the command when it runs.
"""

from __future__ import annotations

import time
from collections.abc import Callable, Iterator
from functools import partial
from importlib.util import find_spec
from pathlib import Path
from typing import Literal

from firsthand.errors import AnswerCancelled
from firsthand.evaluate.parity import load_for_proof, prove
from firsthand.generation import LLM, Completion
from firsthand.generation.load_options import LoadOptions
from firsthand.generation.options import Options
from firsthand.request import FinishReason
from firsthand.values import dataclass

PROMPT = "A test of the whole path, 世界 🙂: "
NUM_TOKENS = 24
GREEDY: Options = {
    "max_tokens": NUM_TOKENS,
    "ignore_end": True,
    "temperature": 0.0,
    "logprobs": 0,
}
# Both executors compute in float32 here, in different orders; the logits are of size 1 to 10.
MAX_LOGPROB_DIFFERENCE = 1e-3

Outcome = tuple[bool, str]  # whether it held, what was seen


@dataclass(frozen=True, slots=True)
class Check:
    """One property: whether it held (None: it could not be asked), what was seen, how long."""

    name: str
    passed: bool | None
    seen: str
    ms: float


def run_checks(model: Path) -> Iterator[Check]:
    """Every check in order; one that raises has failed, and says how. An interrupt ends them all,
    with KeyboardInterrupt: it is the person's word, and no outcome."""
    yield _timed("native, none: loads and answers", partial(_answers, model, "none"))
    yield _timed("native, int8: loads and answers", partial(_answers, model, "int8"))
    yield _timed("native, int4: loads and answers", partial(_answers, model, "int4"))
    yield _timed("the same seed gives the same answer", partial(_same_seed, model))
    yield from _promises(model)
    torch_name = "native = torch, within a bound"
    if find_spec("torch") is None:
        yield Check(torch_name, None, "the torch extra is not installed", 0.0)
    else:
        yield _timed(torch_name, partial(_torch, model))


def _timed(name: str, check: Callable[[], Outcome]) -> Check:
    started_s = time.perf_counter()
    try:
        passed, seen = check()
    except AnswerCancelled:
        raise
    except Exception as error:
        passed, seen = False, f"{type(error).__name__}: {error}"
    return Check(name, passed, seen, (time.perf_counter() - started_s) * 1e3)


def _answers(model: Path, quantization: Literal["none", "int8", "int4"]) -> Outcome:
    with LLM(model, quantization=quantization) as llm:
        done = _ask(llm)
    return len(done.token_ids) == NUM_TOKENS, f"{len(done.token_ids)} tokens"


def _same_seed(model: Path) -> Outcome:
    with LLM(model) as llm:
        first, again, other = (
            _ended(
                llm.generate(PROMPT, max_tokens=NUM_TOKENS, ignore_end=True, seed=seed)
            ).token_ids
            for seed in (1, 1, 2)
        )
    return first == again != other, "and another seed gives another"


def _promises(model: Path) -> Iterator[Check]:
    """What `firsthand verify` proves on a model of one's own."""
    try:
        for outcome in prove(load_for_proof(model, LoadOptions())):
            yield Check(outcome.promise, outcome.passed, outcome.seen, outcome.ms)
    except AnswerCancelled:
        raise
    except Exception as error:
        yield Check("equal bits", False, f"{type(error).__name__}: {error}", 0.0)


def _torch(model: Path) -> Outcome:
    with (
        LLM(model, quantization="none", kv_dtype="float32") as native,
        LLM(model, quantization="none", kv_dtype="float32", executor="torch") as torch,
    ):
        ours, theirs = _ask(native), _ask(torch)
    worst = max(abs(a - b) for a, b in zip(_logprobs(ours), _logprobs(theirs), strict=True))
    same = ours.token_ids == theirs.token_ids
    return same and worst < MAX_LOGPROB_DIFFERENCE, f"log-probabilities differ by {worst:.1e}"


def _ask(llm: LLM) -> Completion:
    return _ended(llm.generate(PROMPT, **GREEDY))


def _ended(done: Completion) -> Completion:
    """It, unless Ctrl-C cut it short. Raises AnswerCancelled."""
    if done.finish.reason is FinishReason.CANCELLED:
        raise AnswerCancelled("interrupted while an answer was waited for")
    return done


def _logprobs(done: Completion) -> list[float]:
    return [entry.logprob for entry in done.logprobs or ()]
