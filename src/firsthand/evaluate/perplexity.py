"""Perplexity: how surprised a model is by each token of a text, on average.

Owns: the score of a token, its average, and how sure that average is.
May not know: files, terminals, other metrics.
Read next: `windows.py`, which tokens count; `compute/native/csrc/sampler.cpp` for `token_logprob`.

The score of a token is its negative log-likelihood −log p (nats), p by the model's own logits: no
temperature, no filter. Perplexity is e to the average of the scores. Source: Jelinek et al.,
"Perplexity, a measure of the difficulty of speech recognition tasks", 1977.

The executor is used directly, without an engine: a window runs in steps of `max_logit_rows` rows,
and each step's logits are scored before the next, so one step's logits are all that memory holds.
On the native executor neither the steps nor the threads change a bit of a logit; log p is float64
arithmetic in a fixed order, and the sum of the scores is exact before it is rounded. So the result
depends on weights, format, window and text alone.
"""

from __future__ import annotations

import math
import time
from collections.abc import Callable, Iterator, Sequence
from dataclasses import replace
from pathlib import Path
from typing import Literal, get_args

import numpy as np
from numpy.typing import NDArray

from firsthand.checks import check_choice, check_integer
from firsthand.compute.batch import FlatBatch
from firsthand.compute.executor import Executor
from firsthand.compute.native import _native
from firsthand.errors import EngineError, InvalidRequest
from firsthand.evaluate.windows import Window, halves, strided, windows
from firsthand.generation.load_options import LoadOptions
from firsthand.generation.loading import LoadedModel, Progress, load_model
from firsthand.kvcache.store import KVStore
from firsthand.values import dataclass

DEFAULT_WINDOW = 512
STEP_ROWS = 128  # of logits at once: 24 MiB with a vocabulary of 49,152
MAX_MEAN_NLL = 700.0  # e to it is still a number

Method = Literal["windows", "strided", "halves"]
WindowDone = Callable[[int, int, float], None]  # windows done, windows in all, mean score so far


@dataclass(frozen=True, slots=True)
class Perplexity:
    """The result. `nlls` are the scores in the order of the text, `seconds` the time they took.

    `standard_error` is that of the perplexity, with the scores taken as independent; None where
    one token was scored. Two formats of one model differ by much less than it: compare their
    `nlls` in pairs.
    """

    nlls: tuple[float, ...]
    num_windows: int
    window: int
    seconds: float

    @property
    def num_tokens(self) -> int:
        """The tokens that were scored."""
        return len(self.nlls)

    @property
    def nll_per_token(self) -> float:
        return math.fsum(self.nlls) / len(self.nlls)

    @property
    def perplexity(self) -> float:
        return math.exp(self.nll_per_token)

    @property
    def standard_error(self) -> float | None:
        if len(self.nlls) < 2:
            return None
        mean = self.nll_per_token
        variance = math.fsum((nll - mean) ** 2 for nll in self.nlls) / (len(self.nlls) - 1)
        return self.perplexity * math.sqrt(variance / len(self.nlls))


def load_for_scoring(
    model: str | Path, options: LoadOptions, progress: Progress | None = None
) -> LoadedModel:
    """As `load_model`, with room for the logits of every row of a step, and one sequence."""
    sized = replace(options, max_sequences=1, max_step_tokens=STEP_ROWS, max_logit_rows=STEP_ROWS)
    return load_model(model, sized, progress)


def check_sizes(
    window: int, max_windows: int | None, stride: int | None = None, method: Method = "windows"
) -> None:
    """What can be refused before a model is loaded."""
    check_choice("method", method, get_args(Method))
    check_integer("window", window, 4 if method == "halves" else 2)
    if max_windows is not None:
        check_integer("windows", max_windows, 1)
    if (stride is not None) != (method == "strided"):
        raise InvalidRequest("stride", "goes with the method strided, and that one with a stride")
    if stride is not None:
        check_integer("stride", stride, 1, window)


def cut(
    loaded: LoadedModel,
    text: str,
    window: int,
    max_windows: int | None = None,
    stride: int | None = None,
    method: Method = "windows",
) -> list[Window]:
    """The windows of a text. Raises InvalidRequest for a window beyond the context or a text with
    nothing to score."""
    check_sizes(window, max_windows, stride, method)
    check_integer("window", window, 2, loaded.spec.context_length)
    tokenizer = loaded.tokenizer
    bos_id = tokenizer.bos_id if tokenizer.add_bos else None
    token_ids = tokenizer.encode(text, add_bos=False)
    if stride is not None:
        found = strided(token_ids, window, stride, bos_id)
    elif method == "halves":
        found = halves(token_ids, window, bos_id)
    else:
        found = [Window(ids) for ids in windows(token_ids, window, bos_id)]
    if not found:
        raise InvalidRequest("text", "has too few tokens: there is nothing to score")
    return found[:max_windows]


def perplexity(
    loaded: LoadedModel,
    text: str,
    *,
    window: int = DEFAULT_WINDOW,
    max_windows: int | None = None,
    stride: int | None = None,
    method: Method = "windows",
    progress: WindowDone | None = None,
) -> Perplexity:
    """Score a text in windows of `window` tokens, the first `max_windows` of them, cut as `method`
    says (see `windows.py`).

    Control tokens in the text are text. Raises as `cut`, and EngineError where the model gives no
    finite score.
    """
    parts = cut(loaded, text, window, max_windows, stride, method)
    claim = loaded.claim()
    try:
        began_s = time.perf_counter()
        nlls: list[float] = []
        for count, part in enumerate(parts, 1):
            scores = score(loaded.executor, loaded.store, part.token_ids, loaded.max_logit_rows)
            nlls += scores[part.first - 1 :]
            if progress is not None:
                progress(count, len(parts), math.fsum(nlls) / len(nlls))
        seconds = time.perf_counter() - began_s
    finally:
        claim.release()
    if math.fsum(nlls) / len(nlls) > MAX_MEAN_NLL:
        raise EngineError("the perplexity is beyond the range of a number")
    return Perplexity(tuple(nlls), len(parts), window, seconds)


def score(
    executor: Executor, store: KVStore, token_ids: Sequence[int], max_rows: int
) -> list[float]:
    """The score of each token but the first, computed at most `max_rows` rows at a time.

    The last token is scored and never read, so n tokens take n − 1 rows. The store's first blocks
    are overwritten. Raises EngineError for logits without a finite score.
    """
    return [_nll(row, target) for row, target in logits_of(executor, store, token_ids, max_rows)]


def logits_of(
    executor: Executor, store: KVStore, token_ids: Sequence[int], max_rows: int
) -> Iterator[tuple[NDArray[np.float32], int]]:
    """Each token but the first, with the logits (V,) that it is scored by; those are valid until
    the next is asked for."""
    for start in range(0, len(token_ids) - 1, max_rows):
        stop = min(start + max_rows, len(token_ids) - 1)
        logits = executor.run(_step(token_ids[start:stop], start, store), store)
        yield from zip(logits, token_ids[start + 1 : stop + 1], strict=True)


def _nll(row: NDArray[np.float32], token_id: int) -> float:
    try:
        logprob = _native.token_logprob(np.ascontiguousarray(row, dtype=np.float32), token_id)
    except ValueError as error:
        raise EngineError(str(error)) from error
    if logprob == -math.inf:
        raise EngineError(f"the model gives token {token_id} no probability: its logit is masked")
    return -logprob


def _step(token_ids: Sequence[int], start: int, store: KVStore) -> FlatBatch:
    """One sequence's tokens from position `start`, with the logits of every row wanted."""
    rows = np.arange(len(token_ids), dtype=np.int32)
    num_blocks = -(-(start + len(token_ids)) // store.block_size)
    blocks = [store.block_start(block_id) for block_id in range(num_blocks)]
    return FlatBatch(
        token_ids=np.array(token_ids, dtype=np.int32),
        positions=start + rows,
        row_starts=np.array([0, len(token_ids)], dtype=np.int32),
        block_starts=np.array([blocks], dtype=np.int64),
        block_size=store.block_size,
        logit_rows=rows,
    )
