"""The command that makes a model smaller and says what it cost: quantize.

Owns: its options, and how the result is shown.
May not know: how anything is rounded or judged.
Read next: `quantize/quantize.py`.
"""

from __future__ import annotations

from dataclasses import asdict
from pathlib import Path
from typing import Annotated, Any

import typer

from firsthand.cli.options import AsJson, Model
from firsthand.cli.output import CHECK_FAILED, in_bytes, print_json, reported, say
from firsthand.values import dataclass


@dataclass(frozen=True, slots=True)
class Wanted:
    """What the model is to become: the fields of `Scheme`, as options."""

    kind: Annotated[
        str, typer.Option("--scheme", help="int8, int4 or int3 weights, or w8a8: activations too.")
    ] = "int4"
    group: Annotated[
        int | None,
        typer.Option(help="Columns with one scale, 0 for a row; default: 32 below 8 bits, else 0."),
    ] = None
    zeros: Annotated[bool, typer.Option("--zeros", help="A zero point for each group.")] = False
    method: Annotated[
        str,
        typer.Option(help="nearest, searched (scales), compensated (GPTQ) or scaled (AWQ)."),
    ] = "compensated"
    mixed: Annotated[
        bool, typer.Option("--auto-mixed", help="Leave the most sensitive layers at 8 bits.")
    ] = False
    budget: Annotated[
        float | None, typer.Option(metavar="BITS", help="Of --auto-mixed: bits per weight.")
    ] = None
    smoothing: Annotated[
        float, typer.Option(help="Of w8a8: how much of an outlier goes to the weights, 0 … 1.")
    ] = 0.5
    head: Annotated[
        bool, typer.Option("--head", help="Embedding and head too: 8 bits, one scale per row.")
    ] = False
    max_loss: Annotated[
        float, typer.Option(metavar="PERCENT", help="What the perplexity may grow by.")
    ] = 5.0
    force: Annotated[bool, typer.Option("--force", help="Write it whatever it costs.")] = False


WANTED = Wanted()


def quantize(
    model: Model,
    target: Annotated[Path, typer.Argument(metavar="DST", help="A folder to write.")],
    wanted: Wanted = WANTED,
    calibration: Annotated[
        Path | None, typer.Option(metavar="FILE", help="Real text to learn from, UTF-8.")
    ] = None,
    calibration_tokens: Annotated[int, typer.Option(help="Tokens of it at most.")] = 16_384,
    text: Annotated[
        Path | None,
        typer.Option(
            metavar="FILE",
            help="Text to judge on; default: the last tenth of the calibration text.",
        ),
    ] = None,
    as_json: AsJson = False,
) -> None:
    """Make a model smaller, measure what that cost, and write it if that is little enough."""
    with reported(as_json):
        from firsthand.files import read_text
        from firsthand.quantize import quantize as work
        from firsthand.quantize.scheme import Scheme

        checked: dict[str, Any] = asdict(wanted)
        done = work.quantize(
            model,
            target,
            Scheme(**checked),
            calibration=None if calibration is None else read_text(calibration, "calibration"),
            judged_on=None if text is None else read_text(text, "text"),
            num_tokens=calibration_tokens,
            progress=_say_progress,
            planned=_say_plan,
        )
        if as_json:
            print_json(done.fields())
        else:
            _show(done)
        if not done.published:
            raise typer.Exit(CHECK_FAILED)


def _say_plan(plan: Any) -> None:
    if plan.rounded_twice:
        say("the source was rounded before: this rounds a second time")
    if plan.num_bytes >= plan.source_bytes:
        sizes = f"{in_bytes(plan.source_bytes)}, the result about {in_bytes(plan.num_bytes)}"
        say(f"the source has {sizes}: no smaller, because it is quantised already")


def _say_progress(what: str, done: int, total: int) -> None:
    if done * 10 // total > (done - 1) * 10 // total:
        say(f"{what}: {done} of {total} layers")


def _show(done: Any) -> None:
    sizes = f"{in_bytes(done.source_bytes)} to {in_bytes(done.num_bytes)}"
    print(f"weights     {sizes}; {done.bits_per_weight:.3f} bits per weight of a layer")
    if done.judgement is not None:
        found = done.judgement
        change = f"{found.before:.4f} to {found.after:.4f}, {found.loss_percent:+.3f} %"
        print(f"perplexity  {change}, over {found.num_tokens} tokens")
    if done.calibration_sha256 is not None:
        print(f"calibrated  on {done.calibration_sha256[:16]}")
        if done.num_unseen:
            print(f"unseen      {done.num_unseen} layers: rounded to the nearest")
    for layer in sorted(done.layers, key=lambda one: -one.error)[:3]:
        print(f"worst       {layer.name}: {layer.error:.2e} of its outputs, {layer.bits} bits")
    print(f"time        {done.rounding_s:.1f} s for rounding, {done.seconds:.1f} s in all")
    limit = f"{done.scheme.max_loss:g} %"
    print(done.destination if done.published else f"not written: the loss is past {limit}")
    if not done.published:
        say(
            "less is lost with --group 16, --zeros, or --auto-mixed --budget BITS; "
            "--max-loss PERCENT or --force takes it as it is"
        )
