"""The command that says how well a model knows a text, how far it is from another, and what two of
them are worth together: eval.

Owns: its options, the files of the texts, and how the result is shown.
May not know: what perplexity, a divergence or a score of texts is.
Read next: `evaluate/perplexity.py`, `evaluate/divergence.py`, `evaluate/text_scores.py`;
`cascade.py`.
"""

from __future__ import annotations

import json
import math
import sys
from collections.abc import Callable
from dataclasses import asdict
from functools import partial
from pathlib import Path
from typing import Annotated, Any

import typer

from firsthand.checks import check_choice
from firsthand.cli import options
from firsthand.cli.cascade import progress as progress_of_answers
from firsthand.cli.cascade import show_cascade
from firsthand.cli.generate import say_context
from firsthand.cli.output import print_json, print_table, progress, reported, say
from firsthand.errors import InvalidRequest
from firsthand.files import read_text
from firsthand.values import dataclass

METRICS = ("perplexity", "divergence", "bleu", "rouge", "cascade")


@dataclass(frozen=True, slots=True)
class Windows:
    """How a text is cut, and how much of it is read."""

    window: Annotated[int, typer.Option(help="Tokens that the model reads at a time.")] = 512
    max_windows: Annotated[
        int | None,
        typer.Option("--windows", help="Score only so many windows; default: the whole text."),
    ] = None
    method: Annotated[
        str,
        typer.Option(help="windows side by side; strided (transformers'); halves (llama.cpp's)."),
    ] = "windows"
    stride: Annotated[
        int | None,
        typer.Option(help="Of strided: tokens from one window to the next; default: none."),
    ] = None


WINDOWS = Windows()


def evaluate(
    model: options.Model,
    text: Annotated[
        Path | None,
        typer.Option(metavar="FILE", help="The text to score, UTF-8; default: none, for the rest."),
    ] = None,
    metric: Annotated[
        str,
        typer.Option(
            help="perplexity, divergence, bleu, rouge; or cascade: MODEL is a file of `cascade "
            "calibrate`, which says form and tokens."
        ),
    ] = "perplexity",
    windows: Windows = WINDOWS,
    candidates: Annotated[
        list[str] | None,
        typer.Option(
            "--candidate",
            metavar="MODEL[@FORMAT]",
            help="Of divergence: who is compared with MODEL as floats; repeatable; default: MODEL.",
        ),
    ] = None,
    report_out: Annotated[
        Path | None,
        typer.Option(
            metavar="FOLDER", help="Of divergence and cascade: write a report there; default: none."
        ),
    ] = None,
    pairs: Annotated[
        Path | None,
        typer.Option(
            metavar="FILE",
            help="Of the rest: JSON lines, reference and prompt or answer; default: none.",
        ),
    ] = None,
    max_tokens: Annotated[int, typer.Option(help="Of bleu and rouge: new tokens at most.")] = 256,
    loading: options.Loading = options.LOADING,
    as_json: options.AsJson = False,
) -> None:
    """Measure how well a model predicts a text, or what a smaller form of it lost."""
    with reported(as_json):
        check_choice("metric", metric, METRICS)
        chosen = options.load_keywords(loading)
        if metric == "cascade":
            _cascade(model, pairs, loading, report_out, as_json)
            return
        if metric in ("bleu", "rouge"):
            if pairs is None:
                raise InvalidRequest("pairs", f"{metric} needs a file of them")
            _score_texts(model, metric, pairs, max_tokens, chosen, as_json)
            return
        if text is None:
            raise InvalidRequest("text", f"{metric} needs a file of it")
        if metric == "divergence":
            names = candidates or [f"{model}@{loading.quantization}"]
            _compare(model, names, read_text(text, "text"), windows, chosen, report_out, as_json)
        else:
            _perplexity(model, read_text(text, "text"), windows, loading, chosen, as_json)


def _perplexity(
    model: str,
    text: str,
    windows: Windows,
    loading: options.Loading,
    chosen: dict[str, Any],
    as_json: bool,
) -> None:
    from firsthand.cli.report import formats_held
    from firsthand.evaluate.perplexity import check_sizes, load_for_scoring, perplexity
    from firsthand.generation.load_options import LoadOptions

    how: dict[str, Any] = asdict(windows)
    check_sizes(**how)
    report = progress()
    loaded = load_for_scoring(
        model, LoadOptions(**chosen), lambda done, total: report("loading", done, total)
    )
    say_context(loading.max_context, loaded.spec.context_length)
    found = perplexity(loaded, text, **how, progress=window_progress())
    held = formats_held(loaded.weights)
    if as_json:
        print_json(
            {
                "model": model,
                "metric": "perplexity",
                "perplexity": found.perplexity,
                "standard_error": found.standard_error,
                "nll_per_token": found.nll_per_token,
                "tokens_scored": found.num_tokens,
                "windows": found.num_windows,
                "window": found.window,
                "method": windows.method,
                "stride": windows.stride,
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
        print(
            f"scored      {found.num_tokens} tokens, {found.num_windows} × {found.window} at most"
        )
        print(f"weights     {held}; KV {loading.kv_dtype}")
        print(f"time        {found.seconds:.1f} s")


def _compare(
    model: str,
    names: list[str],
    text: str,
    windows: Windows,
    chosen: dict[str, Any],
    report_out: Path | None,
    as_json: bool,
) -> None:
    from firsthand.evaluate import candidates, candidates_plot
    from firsthand.evaluate.perplexity import check_sizes

    how: dict[str, Any] = asdict(windows)
    check_sizes(**how)
    report = _Report.into(report_out)
    rows = candidates.compare(model, names, text, chosen, **how, progress=say)
    told = candidates.as_rows(rows)
    if report is not None:
        draw = partial(candidates_plot.write_plot, rows)
        report.write(told, candidates.as_markdown(rows), draw)
    if as_json:
        print_json({"metric": "divergence", "rows": told})
    else:
        print_table(candidates.HEADINGS, [candidates.cells(row) for row in rows])


def _cascade(
    file: str,
    pairs: Path | None,
    loading: options.Loading,
    report_out: Path | None,
    as_json: bool,
) -> None:
    from firsthand.cascade.calibration import read_calibration
    from firsthand.cascade.tradeoff import curve, point
    from firsthand.evaluate import cascade_plot, cascade_report
    from firsthand.evaluate.cascade import samples_by
    from firsthand.evaluate.pairs import read_questions

    if pairs is None:
        raise InvalidRequest("pairs", "cascade needs a file of prompts")
    for name in ("quantization", "kv_dtype", "executor"):
        if getattr(loading, name) != getattr(options.LOADING, name):
            raise InvalidRequest(name, "is in the file of the calibration")
    report = _Report.into(report_out)
    made, questions = read_calibration(Path(file)), read_questions(pairs)
    chosen: Any = options.load_keywords(loading)
    samples = samples_by(made, questions, chosen, progress_of_answers)
    if report is not None:
        now = point(made, samples, made.confidence)
        draw = partial(cascade_plot.write_plot, curve(made, samples), now)
        told = cascade_report.as_facts(made, samples)
        report.write(told, cascade_report.as_markdown(made, samples), draw)
    show_cascade(made, samples, as_json=as_json)


@dataclass(frozen=True, slots=True)
class _Report:
    """A folder with the same in JSON, in Markdown and, with the extra `plots`, as a picture."""

    folder: Path
    draws: bool

    @classmethod
    def into(cls, folder: Path | None) -> _Report | None:
        """Before anything is measured."""
        from firsthand.measure.ablation_plot import check_plot

        if folder is None:
            return None
        folder.mkdir(exist_ok=True)
        try:
            check_plot(folder / "report.svg")
        except InvalidRequest as error:
            say(f"the report has no picture: {error}")
            return cls(folder, False)
        return cls(folder, True)

    def write(self, facts: object, text: str, draw: Callable[[Path], None]) -> None:
        content = json.dumps(facts, indent=1)
        (self.folder / "report.json").write_text(content, encoding="utf-8")
        (self.folder / "report.md").write_text(text, encoding="utf-8")
        if self.draws:
            draw(self.folder / "report.svg")


def _score_texts(
    model: str,
    metric: str,
    path: Path,
    max_tokens: int,
    chosen: dict[str, Any],
    as_json: bool,
) -> None:
    from firsthand.evaluate.pairs import answers, read_pairs
    from firsthand.evaluate.text_scores import bleu, rouge

    pairs = read_pairs(path)
    references = [pair.reference for pair in pairs]
    if any(pair.answer is None for pair in pairs):
        from firsthand.generation.llm import LLM

        with LLM(model, **chosen) as llm:
            given = answers(
                pairs, lambda p: llm.generate(p, max_tokens=max_tokens, temperature=0).text
            )
    else:
        given = answers(pairs, str)
    found = asdict(bleu(given, references) if metric == "bleu" else rouge(given, references))
    if as_json:
        print_json({"model": model, "metric": metric, "pairs": len(pairs), **found})
    else:
        for name, value in found.items():
            print(f"{name:10}  {value}" if isinstance(value, str) else f"{name:10}  {value:.4f}")


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
