"""The command to ask before a deployment: preflight (go?).

Owns: its options, how items are shown, what they mean for the exit code.
May not know: what is asked.
Read next: `../preflight/`; `check.py`, which asks of the model alone.
"""

from __future__ import annotations

from collections.abc import Iterator
from contextlib import closing
from pathlib import Path
from typing import Annotated, Any

import typer

from firsthand.cli import options
from firsthand.cli.output import (
    CHECK_FAILED,
    RESULTS,
    print_json,
    print_table,
    reported,
    say,
)

SHOWN = ("ITEM", "RESULT", "MS", "SEEN")


def preflight(
    model: options.Model,
    config: Annotated[
        Path | None,
        typer.Option("--config", metavar="FILE", help="The server's settings; default: none."),
    ] = None,
    alerts: Annotated[
        Path | None,
        typer.Option("--alerts", metavar="FILE", help="Limits of the alerts; default: their own."),
    ] = None,
    junit: Annotated[
        Path | None,
        typer.Option(metavar="FILE", help="Write the outcome as JUnit, too; default: no."),
    ] = None,
    loading: options.Loading = options.LOADING,
    as_json: options.AsJson = False,
) -> None:
    """Run the checklist of a deployment; the exit code says whether to go."""
    with reported(as_json):
        from firsthand.preflight import items as checklist

        outcomes = []
        for one in checklist.run(_items(model, config, alerts, loading)):
            outcomes.append(one)
            say(f"{one.name}: {RESULTS[one.passed]}")
        go = all(one.passed is not False for one in outcomes)
        if junit is not None:
            junit.write_text(checklist.junit(outcomes), encoding="utf-8")
        if as_json:
            print_json({"model": model, "go": go, "items": [one.to_dict() for one in outcomes]})
        else:
            print_table(
                SHOWN, [(o.name, RESULTS[o.passed], f"{o.ms:.0f}", o.seen) for o in outcomes]
            )
            print_todo(outcomes)
            print("go" if go else "no go")
        if not go:
            raise typer.Exit(CHECK_FAILED)


def _items(
    model: str, config: Path | None, alerts: Path | None, loading: options.Loading
) -> Iterator[Any]:
    """In order; what an item needs is there only until the last one that needs it."""
    from tempfile import TemporaryDirectory

    from firsthand.cli.serve import read
    from firsthand.generation.load_options import LoadOptions
    from firsthand.observe.alert_settings import read_alert_settings
    from firsthand.preflight.loaded import Loaded
    from firsthand.preflight.on_disk import OnDisk
    from firsthand.preflight.on_release import OnRelease, signed
    from firsthand.preflight.served import Served
    from firsthand.preflight.server import started
    from firsthand.release.record import is_release, model_path, read_release

    wanted = LoadOptions(**options.load_keywords(loading))
    settings = None if config is None else read(str(config), {"model": [model]}).settings
    folder = Path(model).resolve()
    path = model
    if is_release(folder):
        path = str(model_path(folder, read_release(folder)))
        wanted = _of_release(model, config, loading) or wanted
    limits = read_alert_settings(alerts)
    on_disk = OnDisk(path, wanted, settings, limits)
    yield from on_disk.of_model()
    yield signed(path)
    if is_release(folder):
        yield from OnRelease(folder, limits.drill_age).items()
    yield from on_disk.of_machine()
    with closing(Loaded(path, wanted)) as loaded:
        yield from loaded.items()
    with TemporaryDirectory() as place, started(model, _flags(loading), Path(place)) as server:
        yield from Served(server, on_disk.identity()).items()


def _of_release(model: str, config: Path | None, loading: options.Loading) -> Any:
    """As its own settings say, and what was asked for here; None: another engine's."""
    from dataclasses import replace

    from firsthand.cli.serve import read
    from firsthand.release.engines import python_for
    from firsthand.server.rules import registry_entry

    settings = read(None if config is None else str(config), {"model": [model]}).settings
    if python_for([model]) is not None:
        return None
    usual = options.load_keywords(options.LOADING)
    asked = options.load_keywords(loading).items()
    given = {name: value for name, value in asked if value != usual[name]}
    return replace(registry_entry(settings, settings.model[0]).service.load, **given)


def _flags(loading: options.Loading) -> list[str]:
    """How the model is held, in the words of `serve`."""
    given = {
        "executor": loading.executor,
        "device": loading.device,
        "quantization": loading.quantization,
        "threads": loading.threads,
        "max-model-len": loading.max_context,
        "kv-cache-dtype": loading.kv_dtype,
        "block-size": loading.block_size,
        "memory-limit": loading.memory_limit,
    }
    return [f"--{name}={value}" for name, value in given.items() if value is not None]


def print_todo(outcomes: list[Any]) -> None:
    for one in outcomes:
        if one.passed is False:
            print(f"{one.name}: {one.seen}\n  next: {one.todo}")
