"""The command to ask before a model is fetched or loaded: check (will it fit, how fast).

Owns: its options, how an estimate is shown, what it means for the exit code.
May not know: how an estimate is made.
Read next: `../measure/forecast.py`; `preflight.py`, the whole checklist.
"""

from __future__ import annotations

import typer

from firsthand.cli import options
from firsthand.cli.output import (
    CHECK_FAILED,
    NO_MEMORY,
    RESULTS,
    in_bytes,
    print_json,
    reported,
    say,
)
from firsthand.cli.preflight import print_todo


def check(
    model: options.Model,
    max_sequences: options.Sequences = None,
    loading: options.Loading = options.LOADING,
    as_json: options.AsJson = False,
) -> None:
    """Say whether a model will fit, and how fast it can be, before it is fetched or loaded."""
    with reported(as_json):
        from firsthand.generation.load_options import LoadOptions
        from firsthand.measure.forecast import forecast
        from firsthand.observe.alert_settings import AlertSettings
        from firsthand.preflight.items import run
        from firsthand.preflight.on_disk import OnDisk

        wanted = LoadOptions(**options.load_keywords(loading), max_sequences=max_sequences)
        found = forecast(model, wanted)
        outcomes = []
        if found.is_here:
            for one in run(OnDisk(model, wanted, None, AlertSettings()).of_model()):
                outcomes.append(one)
                say(f"{one.name}: {RESULTS[one.passed]}, {one.seen}")
        good = all(one.passed is not False for one in outcomes)
        if as_json:
            items = [one.to_dict() for one in outcomes]
            print_json({"model": model, "fits": found.fits, **found.to_dict(), "items": items})
        else:
            for line in found.lines(in_bytes):
                print(line)
            print_todo(outcomes)
        if not found.fits:
            raise typer.Exit(NO_MEMORY)
        if not good:
            raise typer.Exit(CHECK_FAILED)
