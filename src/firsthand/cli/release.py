"""The commands about releases: stage, promote, canary, rollback, history, drill, gc.

Owns: their options, and how the store's answers are shown.
May not know: how any of it is done.
Read next: `release/store.py`, `release/switching.py`, `release/drill.py`.
"""

from __future__ import annotations

from collections.abc import Callable
from pathlib import Path
from typing import Annotated, Any

import typer

from firsthand.cli import options
from firsthand.cli.output import CHECK_FAILED, in_bytes, print_json, print_table, reported, say
from firsthand.errors import InvalidRequest
from firsthand.files import read_text, strict_toml

MAX_CONFIG_BYTES = 1 << 20
MAX_DRILL_DAYS = 3650.0
OUTSIDE = ("lora_modules", "chat_template")  # files that are no part of the model
StoreFolder = Annotated[Path, typer.Argument(metavar="STORE", help="The folder of the releases.")]
Undrilled = Annotated[
    bool, typer.Option("--force", help="Without a recent drill that passed; the history says so.")
]
DrillAge = Annotated[
    float | None,
    typer.Option("--drill-age", metavar="DAYS", help="For how long a drill counts; default: 30."),
]
Named = Annotated[
    str,
    typer.Argument(metavar="[RELEASE]", help="A number, latest, current, or a hash's beginning."),
]
Admin = Annotated[
    Path | None,
    typer.Option(
        "--admin-socket",
        metavar="PATH",
        help="Of the running server; without it the next one that starts serves the release.",
    ),
]
ServedAs = Annotated[
    str | None,
    typer.Option("--model", metavar="NAME", help="As the server calls it; default: the release's."),
]


def stage(
    store: StoreFolder,
    model: options.Model,
    name: Annotated[str | None, typer.Option(help="What requests call it.")] = None,
    config: Annotated[
        Path | None,
        typer.Option("--config", metavar="FILE", help="TOML: settings of one [[model]] table."),
    ] = None,
    contract: Annotated[
        str | None, typer.Option(metavar="MODULE:CLASS", help="Of the data that it is asked.")
    ] = None,
    golden: Annotated[
        bool, typer.Option("--golden/--no-golden", help="Write its golden tokens down.")
    ] = True,
    allow_older: Annotated[
        bool, typer.Option("--allow-older", help="Also a version before one that is there.")
    ] = False,
    as_json: options.AsJson = False,
) -> None:
    """Put a model into the store as a release: nothing is served by that."""
    with reported(as_json):
        from firsthand.config import read_environment
        from firsthand.near_names import near_names
        from firsthand.release.staging import Staged, stage
        from firsthand.release.store import Store
        from firsthand.weights.catalogue import resolve
        from firsthand.weights.gguf_parts import title
        from firsthand.weights.verifying import sums_of

        environment = read_environment()
        path = resolve(model, environment).path
        called = name or title(path.resolve().name)
        configuration = _configuration(config)
        run = _run(called, configuration)
        run(path)  # what no server would take is refused before anything is copied
        staged = Staged(
            called,
            configuration,
            _contract_hash(contract),
            run if golden else None,
            environment.trusted_keys,
            allow_older=allow_older,
        )
        release, is_new = stage(Store(store.absolute()), path, staged, sums_of(environment))
        if as_json:
            print_json({"release": release.number, "id": release.id, "new": is_new})
            return
        print(f"{release.number}  {release.id}")
        say(f"{release.name}: {'staged' if is_new else 'was staged before'}")
        others = Store(store.absolute())
        for pair in near_names(others.read(number).name for number in others.numbers()):
            say(f"warning: {pair[0]} and {pair[1]} are one character apart")


def promote(
    store: StoreFolder,
    release: Named = "latest",
    admin: Admin = None,
    model: ServedAs = None,
    force: Undrilled = False,
    drill_age: DrillAge = None,
    as_json: options.AsJson = False,
) -> None:
    """Make a release the current one: in a running server under its traffic, and on disk."""
    with reported(as_json):
        _switched(_switch(store, admin, model, drill_age).promote(release, force=force), as_json)


def canary(
    store: StoreFolder,
    release: Named = "latest",
    share: Annotated[
        str, typer.Option(help="Of the requests, as 5% or 0.05; 0: end the canary that there is.")
    ] = "5%",
    by: Annotated[
        str, typer.Option(help="request or key: what decides who gets the new one.")
    ] = "request",
    admin: Admin = None,
    model: ServedAs = None,
    force: Undrilled = False,
    drill_age: DrillAge = None,
    as_json: options.AsJson = False,
) -> None:
    """Give a release a share of the requests, beside the one that is served; it is taken back by
    itself where it answers worse. Promote it, or end it with --share 0."""
    with reported(as_json):
        switch = _switch(store, admin, model, drill_age)
        if share in ("0", "0%"):
            line = switch.end_canary()
        else:
            line = switch.canary(release, share, by, force=force)
        _switched(line, as_json)


def rollback(
    store: StoreFolder,
    release: Annotated[
        str | None, typer.Argument(metavar="[RELEASE]", help="Default: what was current before.")
    ] = None,
    admin: Admin = None,
    model: ServedAs = None,
    as_json: options.AsJson = False,
) -> None:
    """Return to an earlier release, as promote does, without asking for a drill."""
    with reported(as_json):
        _switched(_switch(store, admin, model).rollback(release), as_json)


def history(store: StoreFolder, as_json: options.AsJson = False) -> None:
    """Show which releases are there, and what happened to them."""
    with reported(as_json):
        from firsthand.release.history import BEGUN

        found = _opened(store)
        current, previous = found.current(), found.previous()
        lines = list(found.history.lines())
        if as_json:
            there = {"releases": found.numbers(), "current": current, "previous": previous}
            print_json({**there, "history": lines})
            return
        rows = [
            (line["at"], line["event"], str(line.get("release") or "-"), _told(line))
            for line in lines
            if not line["event"].endswith(BEGUN)
        ]
        print_table(("AT", "EVENT", "RELEASE", ""), rows)
        say(f"current: {current or 'none'}; a rollback returns to: {previous or 'none'}")


def drill(
    store: StoreFolder,
    release: Named = "latest",
    new_contract: Annotated[
        bool, typer.Option("--new-contract", help="That its contract is another one is meant.")
    ] = False,
    as_json: options.AsJson = False,
) -> None:
    """Deploy a release and return to the one before it, under load, in a server of its own."""
    with reported(as_json):
        from firsthand.release.drill import Drill

        found = _opened(store)

        def read(folder: Path) -> object:
            return _run("", {})(folder)

        report = Drill(found, read, say, new_contract).run(release)
        if as_json:
            print_json(report.to_dict())
        else:
            print(report.markdown(), end="")
        if not report.passed:
            raise typer.Exit(CHECK_FAILED)


def gc(
    store: StoreFolder,
    keep: Annotated[int, typer.Option(help="So many of the last releases stay in any case.")] = 2,
    as_json: options.AsJson = False,
) -> None:
    """Remove old releases; never the current one, nor what a rollback returns to."""
    with reported(as_json):
        from firsthand.checks import check_integer

        check_integer("keep", keep, 1)
        found = _opened(store)
        with found.filling(), found.changing():
            gone, freed_bytes = found.collect(keep)
            if gone:
                found.history.add("gc", None, removed=gone, freed_bytes=freed_bytes)
        if as_json:
            print_json({"removed": gone, "freed_bytes": freed_bytes, "kept": found.numbers()})
            return
        kept = ", ".join(map(str, found.numbers())) or "none"
        print(f"removed {len(gone)} releases, {in_bytes(freed_bytes)}; there are: {kept}")


def _opened(folder: Path) -> Any:
    from firsthand.release.store import Store

    store = Store(folder.absolute())
    if not store.releases.is_dir():
        raise InvalidRequest("STORE", f"{folder}: has no releases; firsthand release stage")
    junk = store.junk()
    if junk:
        say(f"warning: no releases, and left alone: {', '.join(junk)}")
    return store


def _switch(
    folder: Path, admin: Path | None, model: str | None, drill_age: float | None = None
) -> Any:
    from firsthand.checks import check_number
    from firsthand.config import read_environment
    from firsthand.release.drill_age import DAY_S, LONGEST_S
    from firsthand.release.sockets import AdminSocket
    from firsthand.release.switching import Switch
    from firsthand.weights.verifying import sums_of

    server = None if admin is None else AdminSocket(admin)
    environment = read_environment()
    counts_s = LONGEST_S
    if drill_age is not None:
        check_number("drill_age", drill_age, 0, MAX_DRILL_DAYS, low_open=True)
        counts_s = drill_age * DAY_S
    sums, trusted = sums_of(environment), environment.trusted_keys
    return Switch(_opened(folder), server, model, sums, trusted, counts_s)


def _switched(line: dict[str, Any], as_json: bool) -> None:
    if as_json:
        print_json(line)
        return
    print(f"{line['release']}  {line['id']}")
    say(_told(line))
    if "server" not in line:
        say("no server was told: the next one that is started on STORE/current serves it")


def _told(line: dict[str, Any]) -> str:
    shown = {"at", "event", "release", "id", "server"}
    return ", ".join(f"{key} {value}" for key, value in line.items() if key not in shown)


def _configuration(path: Path | None) -> dict[str, Any]:
    """Raises InvalidRequest."""
    if path is None:
        return {}
    try:
        found = strict_toml(read_text(path, "config", MAX_CONFIG_BYTES))
    except ValueError as error:
        raise InvalidRequest("config", f"{path}: {error}") from None
    for name in found:
        if name.replace("-", "_") in OUTSIDE:
            message = f"{name} names files outside the model; put them into it first"
            raise InvalidRequest("config", message)
    return found


def _run(name: str, configuration: dict[str, Any]) -> Callable[[Path], Any]:
    """How a server would run a model: settings of a table are read as it reads them."""
    from firsthand.cli.serve import read

    def options_of(path: Path) -> Any:
        from firsthand.server.rules import registry_entry

        table = {"path": str(path), **({"name": name} if name else {}), **configuration}
        settings = read(None, {"model": [table]}).settings
        return registry_entry(settings, settings.model[0]).service

    return options_of


def _contract_hash(name: str | None) -> str | None:
    from firsthand.data.contract import contract_hash, find_contract

    return None if name is None else contract_hash(find_contract(name))
