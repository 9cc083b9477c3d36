"""The command that says how well a model knows a text: eval.

Owns: its options, the file of the text, and how the result is shown.
May not know: what perplexity is.
Read next: `evaluate/perplexity.py`.
"""

from __future__ import annotations

import math
import sys
from collections.abc import Callable
from dataclasses import asdict
from pathlib import Path
from typing import Annotated

import typer

from firsthand.checks import check_choice
from firsthand.cli import options
from firsthand.cli.generate import say_context
from firsthand.cli.output import print_json, progress, reported, say
from firsthand.errors import CheckpointError, InvalidRequest
from firsthand.files import read_whole

MAX_TEXT_BYTES = 64 * 2**20
METRICS = ("perplexity",)


def evaluate(
    model: options.Model,
    text: Annotated[Path, typer.Option(metavar="FILE", help="The text to score, UTF-8.")],
    metric: Annotated[str, typer.Option(help="What to measure: perplexity.")] = "perplexity",
    window: Annotated[int, typer.Option(help="Tokens that the model reads at a time.")] = 512,
    max_windows: Annotated[
        int | None,
        typer.Option("--windows", help="Score only so many windows; default: the whole text."),
    ] = None,
    loading: options.Loading = options.LOADING,
    as_json: options.AsJson = False,
) -> None:
    """Measure how well a model predicts a text."""
    with reported(as_json):
        from firsthand.cli.report import formats_held
        from firsthand.evaluate.perplexity import check_sizes, load_for_scoring, perplexity
        from firsthand.generation.load_options import LoadOptions

        check_choice("metric", metric, METRICS)
        check_sizes(window, max_windows)
        content = read_file(text)
        chosen = asdict(loading) | {"disabled_rules": tuple(loading.disabled_rules or ())}
        report = progress()
        loaded = load_for_scoring(
            model, LoadOptions(**chosen), lambda done, total: report("loading", done, total)
        )
        say_context(loading.max_context, loaded.spec.context_length)
        found = perplexity(
            loaded, content, window=window, max_windows=max_windows, progress=window_progress()
        )
        held = formats_held(loaded.weights)
        if as_json:
            print_json(
                {
                    "model": model,
                    "metric": metric,
                    "perplexity": found.perplexity,
                    "standard_error": found.standard_error,
                    "nll_per_token": found.nll_per_token,
                    "tokens_scored": found.num_tokens,
                    "windows": found.num_windows,
                    "window": found.window,
                    "seconds": found.seconds,
                    "executor": loaded.executor.name,
                    "quantization": loading.quantization,
                    "format": held,
                    "kv_dtype": loading.kv_dtype,
                }
            )
        else:
            sure = "" if found.standard_error is None else f" ± {found.standard_error:.4f}"
            print(f"perplexity  {found.perplexity:.4f}{sure}")
            print(f"score       {found.nll_per_token:.6f} nats per token")
            print(f"scored      {found.num_tokens} tokens, {found.num_windows} × {window} at most")
            print(f"weights     {held}; KV {loading.kv_dtype}")
            print(f"time        {found.seconds:.1f} s")


def read_file(path: Path) -> str:
    """A text file, whole. Raises InvalidRequest for what is no text."""
    try:
        return read_whole(path, MAX_TEXT_BYTES).decode("utf-8")
    except CheckpointError as error:
        raise InvalidRequest("text", str(error)) from None
    except UnicodeDecodeError as error:
        raise InvalidRequest("text", f"{path} is not UTF-8: {error}") from None


def window_progress() -> Callable[[int, int, float], None]:
    """One line that is redrawn on a terminal; elsewhere a line for each tenth of the work."""
    live = sys.stderr.isatty()

    def report(done: int, total: int, mean_nll: float) -> None:
        tenth = done * 10 // total > (done - 1) * 10 // total
        if live or tenth:
            so_far = f"{math.exp(mean_nll):.4f}" if mean_nll < 700 else "huge"
            end = "\r" if live and done < total else "\n"
            say(f"window {done} of {total}: perplexity {so_far} so far", end=end)

    return report
