"""The command that proves equal bits on a model of one's own: verify.

Owns: its options, its progress, how the outcome is shown and what it means for the exit code.
May not know: what is proven, and how.
Read next: `evaluate/parity.py`.
"""

from __future__ import annotations

import time
from collections.abc import Sequence
from typing import Annotated, Any

import typer

from firsthand.cli import options
from firsthand.cli.output import (
    CHECK_FAILED,
    RESULTS,
    print_json,
    print_table,
    progress,
    reported,
    say,
)
from firsthand.errors import InvalidRequest

SHOWN = ("PROPERTY", "PROMISE", "RESULT", "LOGITS", "MS")


def verify(
    model: options.Model,
    only: Annotated[
        list[str] | None,
        typer.Option(metavar="PROPERTY", help="Prove only this; repeatable; default: all."),
    ] = None,
    batch_parity: Annotated[
        bool, typer.Option("--batch-parity", help="Prove only that company changes nothing.")
    ] = False,
    thorough: Annotated[
        bool, typer.Option("--thorough", help="Four times the requests, more ways to cut.")
    ] = False,
    sabotage: Annotated[
        str | None,
        typer.Option(
            metavar="FAULT", help="Put a fault in, to see it found: split-by-batch; default: none."
        ),
    ] = None,
    loading: options.Loading = options.LOADING,
    as_json: options.AsJson = False,
) -> None:
    """Prove that a request has equal bits alone and in company, on a model of yours.

    The promise is the native executor's; of another one it is told what holds.
    """
    with reported(as_json):
        from firsthand.evaluate.parity import checked_names, load_for_proof, prove
        from firsthand.evaluate.sabotage import sabotaged
        from firsthand.generation.load_options import LoadOptions
        from firsthand.measure.latency import format_of, threads_of

        if batch_parity and only:
            raise InvalidRequest("batch_parity", "is --only company; give one of the two")
        install = sabotaged(sabotage)
        names = checked_names(["company"] if batch_parity else only or [])
        began_s = time.perf_counter()
        report = progress()
        loaded = load_for_proof(
            model,
            LoadOptions(**options.load_keywords(loading)),
            lambda done, total: report("loading", done, total),
        )
        outcomes = []
        for one in prove(loaded, names, thorough=thorough, install=install):
            outcomes.append(one)
            say(f"{one.promise}: {RESULTS[one.passed]}, {one.num_logits} logits, {one.seen}")
        took_s = time.perf_counter() - began_s
        found = {
            "model": model,
            "executor": loading.executor,
            "promised": loading.executor == "native",
            "passed": all(one.passed for one in outcomes),
            "num_logits": sum(one.num_logits for one in outcomes),
            "seconds": took_s,
            "properties": [one.to_dict() for one in outcomes],
            "format": format_of(loaded),
            "kv_dtype": loading.kv_dtype,
            "threads": threads_of(loaded),
            "sabotage": sabotage,
        }
        if as_json:
            print_json(found)
        else:
            _show(outcomes, loading.executor, took_s)
        if found["promised"] and not found["passed"]:
            raise typer.Exit(CHECK_FAILED)


def _show(outcomes: Sequence[Any], executor: str, took_s: float) -> None:
    """`outcomes`: of `prove`, whose module is loaded when it is used."""
    rows = [
        (one.name, one.promise, RESULTS[one.passed], f"{one.num_logits}", f"{one.ms:.0f}")
        for one in outcomes
    ]
    print_table(SHOWN, rows)
    holds = sum(one.passed for one in outcomes)
    if executor != "native":
        print(f"{holds} of {len(outcomes)} hold; {executor} promises none of them")
    elif holds == len(outcomes):
        print(f"equal bits: {sum(one.num_logits for one in outcomes)} logits in {took_s:.1f} s")
    else:
        print(f"{outcomes[-1].promise}: {outcomes[-1].seen}")
