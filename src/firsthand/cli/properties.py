"""What the engine promises, asked of a real run: the checks of selftest.

Owns: the list of properties, and how each is asked for.
May not know: how any of them is kept.
Read next: `generation/llm.py`, which is asked.

A micro-model with random weights talks nonsense, but the properties hold for any weights: so the
check needs no download and takes seconds. Loaded by the command when it runs.
"""

from __future__ import annotations

import time
from collections.abc import Callable, Iterator
from dataclasses import dataclass
from functools import partial
from importlib.util import find_spec
from pathlib import Path
from typing import Literal

from firsthand.compute.fusion import RULES
from firsthand.generation import LLM, Completion
from firsthand.generation.options import Options
from firsthand.request import FinishReason

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
    yield _timed("streamed = at once", partial(_streamed, model))
    yield _timed("1 thread = 2 threads", partial(_threads, model))
    yield _timed("several prompts at once = each alone", partial(_together, model))
    yield _timed("a prompt in pieces = whole", partial(_pieces, model))
    yield _timed("plan before fusion = after", partial(_unfused, model))
    torch_name = "native = torch, within a bound"
    if find_spec("torch") is None:
        yield Check(torch_name, None, "the torch extra is not installed", 0.0)
    else:
        yield _timed(torch_name, partial(_torch, model))


def _timed(name: str, check: Callable[[], Outcome]) -> Check:
    started_s = time.perf_counter()
    try:
        passed, seen = check()
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


def _streamed(model: Path) -> Outcome:
    with LLM(model) as llm:
        whole = _ask(llm)
        chunks = list(llm.stream(PROMPT, **GREEDY))
        for chunk in chunks:
            if chunk.completion is not None:
                _ended(chunk.completion)
    text = "".join(chunk.text for chunk in chunks)
    ids = tuple(token_id for chunk in chunks for token_id in chunk.token_ids)
    return (text, ids) == (whole.text, whole.token_ids), f"{len(chunks)} chunks"


def _threads(model: Path) -> Outcome:
    with LLM(model, threads=1) as one, LLM(model, threads=2) as two:
        return _equal(_ask(one), _ask(two))


def _together(model: Path) -> Outcome:
    prompts = [PROMPT, PROMPT[:9], PROMPT[::-1]]
    with LLM(model) as llm:
        alone = [_ended(llm.generate(prompt, **GREEDY)) for prompt in prompts]
        together = [_ended(done) for done in llm.generate(prompts, **GREEDY)]
    return all(_equal(*pair)[0] for pair in zip(alone, together, strict=True)), "same bits"


def _pieces(model: Path) -> Outcome:
    with LLM(model) as whole, LLM(model, max_step_tokens=7) as pieces:
        return _equal(_ask(whole), _ask(pieces))


def _unfused(model: Path) -> Outcome:
    every_rule = tuple(rule.name for rule in RULES)
    with LLM(model) as fused, LLM(model, disabled_rules=every_rule) as unfused:
        return _equal(_ask(fused), _ask(unfused))


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
    """It, unless Ctrl-C cut it short."""
    if done.finish.reason is FinishReason.CANCELLED:
        raise KeyboardInterrupt
    return done


def _equal(one: Completion, other: Completion) -> Outcome:
    same = one.token_ids == other.token_ids and _logprobs(one) == _logprobs(other)
    return same, "same bits" if same else "other bits"


def _logprobs(done: Completion) -> list[float]:
    return [entry.logprob for entry in done.logprobs or ()]
