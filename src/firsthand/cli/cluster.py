"""The commands of a cluster: serve, status, scale, stop.

Owns: the flags of a place for replicas, and what is said of it.
May not know: how Ray is started, how a request finds a replica.
Read next: `../cluster/serving.py`, `../cluster/owned.py`, `../cluster/deployment.py`;
docs/cluster.md.
"""

from __future__ import annotations

import os
from collections.abc import Iterator, Mapping
from contextlib import contextmanager
from dataclasses import replace
from importlib.util import find_spec
from inspect import Parameter
from pathlib import Path
from typing import Annotated, Any

import typer

from firsthand.checks import check_choice, check_integer, check_number
from firsthand.cli.interrupts import terminable
from firsthand.cli.options import AsJson
from firsthand.cli.output import print_json, print_table, reported, say
from firsthand.cli.serve import read, typed
from firsthand.cluster.autoscaling.limits import Limits, read_limits, usual_limits
from firsthand.cluster.rotation import Routing
from firsthand.config import read_environment
from firsthand.errors import InvalidRequest

MAX_REPLICAS = 1024
DRAIN_SPARE_S = 10.0

Address = Annotated[
    str | None,
    typer.Option(
        "--address",
        metavar="HOST:PORT",
        help="Of a Ray that is there; default: this machine's own.",
    ),
]


def _own(name: str, hint: Any, default: Any = None) -> Parameter:
    return Parameter(name, Parameter.KEYWORD_ONLY, default=default, annotation=hint)


OWN = (
    _own("address", Address),
    _own(
        "local",
        Annotated[bool, typer.Option("--local", help="Start a Ray on this machine alone.")],
        default=False,
    ),
    _own(
        "replicas",
        Annotated[
            int | None,
            typer.Option("--replicas", metavar="N", help="How many engines, always; default: 1."),
        ],
    ),
    _own(
        "min_replicas",
        Annotated[
            int | None,
            typer.Option("--min-replicas", metavar="N", help="So many at least, more by the load."),
        ],
    ),
    _own(
        "max_replicas",
        Annotated[int | None, typer.Option("--max-replicas", metavar="N", help="So many at most.")],
    ),
    _own(
        "scaling",
        Annotated[
            Path | None,
            typer.Option("--scaling", metavar="FILE", help="When there are more or fewer, TOML."),
        ],
    ),
    _own(
        "replica_cpus",
        Annotated[
            float | None,
            typer.Option(
                "--replica-cpus",
                metavar="N",
                help="Cores of each; default: with --local an equal part of them, else 1.",
            ),
        ],
    ),
    _own(
        "routing",
        Annotated[
            str,
            typer.Option(
                "--routing",
                metavar="RULE",
                help="Who answers next: least-loaded, round-robin, latency or prefix.",
            ),
        ],
        default=Routing.LEAST_LOADED.value,
    ),
)


def serve(
    config: str | None,
    given: Mapping[str, Any],
    *,
    address: str | None,
    local: bool,
    replicas: int | None,
    min_replicas: int | None,
    max_replicas: int | None,
    scaling: Path | None,
    replica_cpus: float | None,
    routing: str,
) -> None:
    """Serve models over HTTP as `serve` does, by replicas on Ray."""
    with reported(), typed():
        if local == (address is not None):
            raise InvalidRequest("address", "give it, or --local: one of both")
        check_choice("routing", routing, tuple(Routing))
        configured = read(config, given)
        settings = configured.settings
        limits = scaled_by(scaling, min_replicas, max_replicas, settings.max_num_seqs)
        if limits is not None and replicas is not None:
            raise InvalidRequest("replicas", "is a number that stays; a load changes the others")
        most = limits.max_replicas if limits is not None else 1 if replicas is None else replicas
        check_integer("replicas", most, 1, MAX_REPLICAS)
        cores = os.cpu_count() or 1
        cpus = (cores / most if local else 1.0) if replica_cpus is None else replica_cpus
        check_number("replica_cpus", cpus, 0.0, 4096.0, low_open=True)
        room = max(most, int(cores / cpus + 1e-6))
        with session(
            address, local=(cpus, settings.drain_limit_s, room) if local else None
        ) as begun:
            from firsthand.cluster.closed import VARIABLES
            from firsthand.cluster.deployment import Place
            from firsthand.cluster.scaling import autoscaling_config
            from firsthand.cluster.serving import serve as serve_there
            from firsthand.cluster.serving import shared
            from firsthand.server.logs import configure_logging

            configure_logging(settings.log_level, settings.log_format, folder=settings.log_folder)
            scaled = None if limits is None else autoscaling_config(limits)
            # Processes of a Ray that this one starts have its environment anyway.
            variables = VARIABLES if begun.folder is None else None
            place = Place(most, cpus, settings.drain_limit_s + DRAIN_SPARE_S, scaled, variables)
            num_threads = max(1, int(cpus))

            def placed(found: Any) -> Any:
                return shared(found, most if begun.folder else 1, num_threads)

            code = serve_there(
                placed(configured),
                lambda: placed(read(config, given)),
                say,
                place,
                Routing(routing),
            )
        if code:
            raise typer.Exit(code)


def scaled_by(
    file: Path | None, least: int | None, most: int | None, num_sequences: int | None
) -> Limits | None:
    """When there are more replicas or fewer, each of which runs so many at once; None: nothing of
    it was asked for. Raises InvalidRequest."""
    given = {"min_replicas": least, "max_replicas": most}
    changes = {name: value for name, value in given.items() if value is not None}
    if file is None and not changes:
        return None
    usual = usual_limits(num_sequences)
    return replace(Limits(**usual) if file is None else read_limits(file, usual), **changes)


@contextmanager
def session(
    address: str | None,
    *,
    local: tuple[float, float, int] | None = None,
    num_own: int | None = None,
) -> Iterator[Any]:
    """Ray, joined: at that address or, without one, this machine's. `local`: that is started, for
    replicas of so many cores, with a drain of so many seconds, and room for so many. `num_own`: one
    is started for this process alone. Raises InvalidRequest, EngineUnavailable."""
    from firsthand.cluster.session import begin_local, begin_own, join, own_address

    if find_spec("ray") is None:
        message = "a cluster needs the extra: pip install 'firsthand[ray]'"
        raise InvalidRequest("cluster", message)
    home = read_environment().home
    with terminable():
        if local is not None:
            begun = begin_local(home, *local)
        elif address is None and num_own is not None:
            begun = begin_own(home, num_own, quiet=True)
        else:
            begun = join(address or own_address(home), home, quiet=num_own is not None)
    try:
        yield begun
    finally:
        begun.end()


def status(address: Address = None, as_json: AsJson = False) -> None:
    """Show the models of a cluster, and how many replicas of each run."""
    with reported(as_json), session(address):
        from firsthand.cluster.deployment import standing

        rows = standing()
        if as_json:
            print_json({"models": rows})
        else:
            columns = ("app", "state", "wanted", "running", "starting", "ending")
            print_table(
                tuple(name.upper() for name in columns),
                [tuple(str(row[name]) for name in columns) for row in rows],
            )


def scale(
    replicas: Annotated[int, typer.Argument(metavar="N", help="So many replicas.")],
    model: Annotated[
        str | None,
        typer.Option("--model", metavar="NAME", help="Of several; default: the only one."),
    ] = None,
    address: Address = None,
    as_json: AsJson = False,
) -> None:
    """Change how many replicas there are. One that is to go finishes what it has first."""
    with reported(as_json):
        check_integer("replicas", replicas, 1, MAX_REPLICAS)
        note = own() if address is None else None
        if note is not None and replicas > note.room:
            message = f"{replicas}: this machine has room for {note.room}, by --replica-cpus"
            raise InvalidRequest("replicas", message)
        with session(address):
            from firsthand.cluster.deployment import scale as scale_there

            app, room = scale_there(model, replicas)
        if as_json:
            print_json({"app": app, "replicas": replicas, "room": note.room if note else room})
        else:
            say(f"{app}: {replicas} replicas are wanted")
            if replicas > room:
                say(f"there is room for {room}: the others wait for machines")


def stop(address: Address = None, as_json: AsJson = False) -> None:
    """End all replicas of a cluster, and one of this machine whole. They finish what they have
    first."""
    with reported(as_json):
        note = own() if address is None else None
        if note is not None:
            from firsthand.cluster.owned import end

            end(read_environment().home, note, say)
            ended = [note.address]
        else:
            with session(address):
                from firsthand.cluster.deployment import remove_all

                ended = remove_all(say)
        if as_json:
            print_json({"ended": ended})
        else:
            say(f"ended: {', '.join(ended) or 'nothing was there'}")


def own() -> Any:
    """The note of this machine's cluster, if there is one."""
    from firsthand.cluster.owned import standing

    return standing(read_environment().home)
