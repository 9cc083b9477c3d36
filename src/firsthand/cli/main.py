"""The entry: `firsthand COMMAND`.

Owns: the list of commands, in the order in which help shows them; what wrong usage is told.
May not know: what a command does; each stands in the file of its verb group. Only the standard
library and typer are loaded here, so that `--help` answers at once: a command imports what it
needs when it runs.
Read next: `generate.py` (run, chat); there is one file per group of verbs.
"""

from __future__ import annotations

import sys
import warnings
from collections.abc import Callable, Mapping, Sequence
from typing import Annotated, Any, Protocol, runtime_checkable

import typer
from typer.core import TyperCommand, TyperGroup

from firsthand import __version__
from firsthand.cli import (
    ablate,
    alerts,
    autoscale,
    bench,
    capacity,
    cascade,
    chaos,
    check,
    cluster,
    collect_env,
    data_check,
    data_quarantine,
    data_run,
    data_trace,
    doctor,
    evaluate,
    generate,
    inspect,
    lab,
    loadtest,
    logs,
    manifest,
    models,
    oci,
    pipeline,
    preflight,
    quantize,
    queue,
    recording,
    release,
    remote,
    replay,
    requests,
    selftest,
    serve,
    verify,
)
from firsthand.cli.interrupts import interruptible
from firsthand.cli.options import flat
from firsthand.cli.output import (
    FAILED,
    INTERRUPTED,
    error_message,
    finish,
    open_streams,
    print_json,
    say,
)
from firsthand.config import completes_a_command
from firsthand.values import dataclass


@runtime_checkable
class UsageError(Protocol):
    """What typer raises before a command begins. Its class moves between typer's versions."""

    exit_code: int

    def format_message(self) -> str: ...
    def show(self) -> None: ...


class Command(TyperCommand):
    """A usage line of `MODEL [PROMPT]`; typer has braces around what must be given."""

    def collect_usage_pieces(self, ctx: Any) -> list[str]:
        return [piece.strip("{}") for piece in super().collect_usage_pieces(ctx)]


@dataclass(frozen=True, slots=True)
class Group:
    """Commands under one name. `has_default`: the first is meant where none is named."""

    about: str
    entries: Mapping[str, Entry]
    has_default: bool = False


Entry = Callable[..., None] | Group


# In the order of the help page.
ENTRIES: Mapping[str, Entry] = {
    "run": generate.run,
    "chat": generate.chat,
    "pull": models.pull,
    "list": models.list_models,
    "show": models.show,
    "rm": models.remove,
    "pack": models.pack,
    "inspect": inspect.inspect,
    "tokenize": generate.tokenize,
    "trace-step": inspect.trace_step,
    "quantize": quantize.quantize,
    "eval": evaluate.evaluate,
    "cascade": Group(
        "A small model first, and a large one where the small one is not sure.",
        {"calibrate": cascade.calibrate, "choose": cascade.choose},
    ),
    "check": check.check,
    "preflight": preflight.preflight,
    "profile": bench.profile,
    "verify": verify.verify,
    "selftest": selftest.selftest,
    "lab": lab.lab,
    "convert": models.convert,
    "merge": models.merge,
    "oci": Group(
        "A model as an OCI image layout, which tools of registries copy.",
        {"export": oci.export_model, "import": oci.import_model},
    ),
    "run-batch": data_run.run_batch,
    "plan": Group(
        "Show what memory a model would get; `load`: how to load it; `capacity`: how many of it; "
        "`autoscale`: how many when.",
        {
            "memory": inspect.plan,
            "load": inspect.plan_load,
            "capacity": capacity.capacity,
            "autoscale": autoscale.autoscale,
        },
        has_default=True,
    ),
    "bench": Group(
        "Measure a model on this machine, or a server.",
        {
            "latency": bench.latency,
            "throughput": bench.throughput,
            "startup": bench.startup,
            "load": bench.load,
            "serve": loadtest.serve,
            "knee": loadtest.knee,
            "ablate": ablate.ablate,
            "compare": bench.compare,
        },
    ),
    "serve": serve.serve,
    "cluster": Group(
        "Serve models by replicas on Ray, on this machine or many.",
        {
            "run": pipeline.run,
            "serve": cluster.serve,
            "status": cluster.status,
            "scale": cluster.scale,
            "stop": cluster.stop,
        },
    ),
    "config": Group("The settings of `serve`.", {"show": serve.show, "check": serve.check}),
    "ps": remote.ps,
    "top": remote.top,
    "queue": queue.queue,
    "record": recording.record,
    "requests": Group(
        "The last requests of a server, as its flight recorder has them.",
        {"ls": requests.ls, "show": requests.show, "cancel": requests.cancel},
    ),
    "replay": replay.replay,
    "logs": Group("The log of a server.", {"errors": logs.errors}),
    "alerts": Group(
        "The alerts of a server.",
        {
            "export": alerts.export,
            "test": alerts.test,
            "receive": alerts.receive,
            "answer": alerts.answer,
            "review": alerts.review,
        },
    ),
    "doctor": doctor.doctor,
    "collect-env": collect_env.collect_env,
    "chaos": chaos.chaos,
    "data": Group(
        "Records on their way to a model, and their answers.",
        {
            "check": data_check.check,
            "run": data_run.run,
            "trace": data_trace.trace,
            "lineage": data_trace.lineage,
            "quarantine": Group(
                "What a run has refused.",
                {
                    "ls": data_quarantine.ls,
                    "show": data_quarantine.show,
                    "fix": data_quarantine.fix,
                    "replay": data_quarantine.replay,
                },
            ),
        },
    ),
    "manifest": Group(
        "What a model is: its files by their hashes, and what it was made of.",
        {
            "write": manifest.write,
            "sign": manifest.sign,
            "verify": manifest.verify,
            "export": manifest.export,
            "data": manifest.data,
        },
    ),
    "release": Group(
        "What is served when, and the way back.",
        {
            "stage": release.stage,
            "promote": release.promote,
            "canary": release.canary,
            "rollback": release.rollback,
            "history": release.history,
            "drill": release.drill,
            "gc": release.gc,
        },
    ),
}


def main() -> None:
    open_streams()
    try:
        with interruptible():
            code = run_command(sys.argv[1:])
    except KeyboardInterrupt:  # before the command, after it, or a second one
        code = INTERRUPTED
    sys.exit(finish(code))


def run_command(arguments: Sequence[str]) -> int:
    """The exit code of a command line. With --json its wrong usage is one line of JSON too.

    Whoever meets a Ctrl-C, typer before a command begins or the command itself, ends with the same
    code; the one line about it is said here.
    """
    warnings.showwarning = lambda message, *_: say(f"warning: {message}")
    try:
        nothing = None if completes_a_command() else ""
        app = build_app(arguments[0] if arguments else nothing)
        code = int(app(list(arguments), standalone_mode=False) or 0)
    except SystemExit:  # typer's way out when the reader of a help page has closed its pipe
        return 0
    except (KeyboardInterrupt, typer.Abort):
        code = INTERRUPTED
    except OSError as error:  # a help page that cannot be written
        say(f"error: {error_message(error)}")
        return FAILED
    except Exception as error:
        if not isinstance(error, UsageError):
            raise
        error.show()
        if "--json" in arguments:
            print_json({"error": {"type": "UsageError", "message": error.format_message()}})
        return error.exit_code
    if code == INTERRUPTED:
        say("error: interrupted")
    return code


def build_app(first: str | None = None) -> typer.Typer:
    """The command line as one value, so that tests can call it without a process. `first` is the
    word that it begins with: whatever else is only named needs no options, which take a while to
    make. None: all of it."""
    app = typer.Typer(
        name="firsthand",
        help="Run large language models, and see how.",
        no_args_is_help=True,
        rich_markup_mode=None,
        pretty_exceptions_enable=False,
        context_settings={"help_option_names": ["-h", "--help"]},
    )
    app.callback()(_options)
    for name, entry in ENTRIES.items():
        make = _made if first in (None, name) else _named
        if isinstance(entry, Group):
            app.add_typer(_group(entry, make), name=name)
        else:
            app.command(name, cls=Command)(make(entry))
    return app


def _group(group: Group, make: Callable[[Any], Callable[..., None]]) -> typer.Typer:
    made = typer.Typer(
        help=group.about, no_args_is_help=True, cls=WithDefault if group.has_default else TyperGroup
    )
    for name, entry in group.entries.items():
        if isinstance(entry, Group):
            made.add_typer(_group(entry, make), name=name)
        else:
            made.command(name, cls=Command)(make(entry))
    return made


def _made(command: Callable[..., None]) -> Callable[..., None]:
    """As typer needs it; the server's settings are options of these four."""
    if command is serve.serve:
        return serve.with_settings(command)
    if command is cluster.serve:
        return serve.with_settings(command, more=cluster.OWN)
    if command in (serve.show, serve.check):
        return serve.with_settings(command, as_json=True)
    return flat(command)


def _named(command: Callable[..., None]) -> Callable[..., None]:
    """A command for a list of commands."""

    def call() -> None:
        raise AssertionError("it is only named")

    call.__doc__ = command.__doc__
    return call


class WithDefault(TyperGroup):
    """A group whose first command is meant where none is named: `plan MODEL`."""

    def parse_args(self, ctx: Any, args: list[str]) -> list[str]:
        if args and args[0] not in (*self.commands, *ctx.help_option_names):
            args = [next(iter(self.commands)), *args]
        return super().parse_args(ctx, args)


def _show_version(wanted: bool) -> None:
    if wanted:
        print(f"firsthand {__version__}")
        raise typer.Exit


def _options(
    version: Annotated[
        bool,
        typer.Option("--version", callback=_show_version, is_eager=True, help="Print the version."),
    ] = False,
) -> None:
    """Run large language models, and see how."""


if __name__ == "__main__":
    main()
