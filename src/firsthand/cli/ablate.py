"""The command bench ablate: one variable at a time, of one sequence or of the whole system.

Owns: its options and the layout of what it found.
May not know: which values a variable has, how one is measured.
Read next: `../measure/ablation.py`, `../measure/system_ablation.py`.
"""

from __future__ import annotations

from collections.abc import Collection
from pathlib import Path
from typing import Annotated, Any

import typer

from firsthand.cli import options
from firsthand.cli.bench import OutputTokens, PlotOut, PromptTokens, Repeats, load_options
from firsthand.cli.output import print_json, print_table, reported, say
from firsthand.errors import InvalidRequest
from firsthand.files import check_writable

BAR_WIDTH = 20  # of the base's speed


def ablate(
    model: options.Model,
    prompt_tokens: PromptTokens = 512,
    output_tokens: OutputTokens = 64,
    repeats: Repeats = 3,
    only: Annotated[
        list[str] | None,
        typer.Option(metavar="VARIABLE", help="Change only this; may be repeated; default: all."),
    ] = None,
    plot_out: PlotOut = None,
    system: Annotated[
        bool, typer.Option("--system", help="Of many requests, not of one sequence.")
    ] = False,
    num_requests: Annotated[
        int | None, typer.Option(help="With --system: so many at once; default: 32.")
    ] = None,
    report_out: Annotated[
        Path | None,
        typer.Option(
            metavar="FILE", help="With --system: a page with plots, .html; default: none."
        ),
    ] = None,
    loading: options.Loading = options.LOADING,
    as_json: options.AsJson = False,
) -> None:
    """Change one thing at a time, and show what each is worth."""
    with reported(as_json):
        if plot_out is not None and system:
            raise InvalidRequest("plot_out", "is of one sequence; with --system, --report-out")
        if report_out is not None and not system:
            raise InvalidRequest("report_out", "goes with --system")
        if num_requests is not None and not system:
            raise InvalidRequest("num_requests", "goes with --system")
        if system:
            sizes = (32 if num_requests is None else num_requests, prompt_tokens, output_tokens)
            rows = _system(model, sizes, repeats, only or (), report_out, loading)
        else:
            rows = _alone(
                model, (prompt_tokens, output_tokens), repeats, only or (), plot_out, loading
            )
        if as_json:
            print_json({"outcomes": [one.to_dict() for one in rows]})
        elif system:
            _print_system(rows)
        else:
            _print_alone(rows)


def _alone(
    model: str,
    sizes: tuple[int, int],
    repeats: int,
    only: Collection[str],
    plot_out: Path | None,
    loading: options.Loading,
) -> list[Any]:
    from firsthand.generation.load_options import LoadOptions
    from firsthand.measure import ablation, ablation_plot

    if plot_out is not None:
        ablation_plot.check_plot(plot_out)
    base = LoadOptions(**load_options(loading))
    outcomes = list(ablation.ablate(model, base, *sizes, repeats, _begin, only))
    if plot_out is not None:
        title = f"{Path(model).name}: {sizes[0]} tokens of prompt, {sizes[1]} new ones"
        ablation_plot.write_plot(outcomes, title, plot_out)
        say(f"wrote {plot_out}")
    return outcomes


def _system(
    model: str,
    sizes: tuple[int, int, int],
    repeats: int,
    only: Collection[str],
    report_out: Path | None,
    loading: options.Loading,
) -> list[Any]:
    from firsthand.compute.native.cores import available_threads
    from firsthand.generation.load_options import LoadOptions
    from firsthand.measure.ablation_page import page_of
    from firsthand.measure.system_ablation import Work, ablate_system

    if report_out is not None:
        if report_out.suffix != ".html":
            raise InvalidRequest("report_out", f"must end in .html, not {report_out.name!r}")
        check_writable("report_out", report_out)
    base = LoadOptions(**options.load_keywords(loading))
    work = Work(*sizes)
    outcomes = list(ablate_system(model, base, _profiles(), work, repeats, _begin, only))
    if report_out is not None:
        facts = (
            f"{work.num_requests} requests at once, {work.prompt_tokens} tokens of prompt of which "
            f"half are shared, up to {work.output_tokens} new ones; pairs of runs: {repeats}.",
            f"{base.threads or available_threads()} threads, executor {base.executor}.",
        )
        page = page_of(f"{Path(model).name}: one thing at a time", facts, outcomes)
        report_out.write_text(page, encoding="utf-8")
        say(f"wrote {report_out}")
    return outcomes


def _profiles() -> dict[str, dict[str, Any]]:
    """What each profile of the server makes of the options of a load."""
    from firsthand.generation.load_options import LoadOptions
    from firsthand.server.profiles import PROFILES
    from firsthand.server.rules import load_options as of_settings
    from firsthand.server.settings import Settings

    plain = of_settings(Settings())
    found = {}
    for name, values in PROFILES.items():
        made = of_settings(Settings(**values))
        changed = {one: getattr(made, one) for one in LoadOptions.__slots__}
        found[name] = {one: value for one, value in changed.items() if value != getattr(plain, one)}
    return found


def _begin(variation: Any) -> None:
    say(f"measuring {variation.variable} {variation.value}".rstrip())


def _print_alone(outcomes: list[Any]) -> None:
    rows = [
        (
            f"{one.variable} {one.value}".rstrip(),
            f"{one.speed.prompt_tokens_per_second.median:.1f}",
            f"{one.prompt_ratio:.2f}",
            _bar(one.prompt_ratio),
            f"{one.speed.decode_tokens_per_second.median:.1f}",
            f"{one.decode_ratio:.2f}",
            _bar(one.decode_ratio),
        )
        for one in outcomes
    ]
    print_table(("CHANGE", "PROMPT/S", "× BASE", "", "DECODE/S", "× BASE", ""), rows)
    for one in outcomes:
        if one.variable == "speculation" and one.value != "off":
            print(
                f"of {one.num_guesses} guessed tokens {one.num_accepted} were right, behind ids "
                "spread over the vocabulary; `run --speculative-config` tells it of your text"
            )


def _print_system(outcomes: list[Any]) -> None:
    rows = [
        (
            f"{one.variable} {one.value}",
            name,
            f"{one.values[name]:.4g}",
            f"{one.base_values[name]:.4g}",
            f"{ratio:.2f}",
            _bar(ratio),
        )
        for one in outcomes
        for name, ratio in one.ratios.items()
    ]
    print_table(("CHANGE", "OF", "MEDIAN", "BASE", "× BETTER", ""), rows)


def _bar(ratio: float) -> str:
    return "█" * min(3 * BAR_WIDTH, round(BAR_WIDTH * ratio))
