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
    alerts,
    bench,
    chaos,
    check,
    data,
    doctor,
    evaluate,
    generate,
    inspect,
    jobs,
    logs,
    manifest,
    models,
    preflight,
    quantize,
    quarantine,
    release,
    remote,
    replay,
    requests,
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
        code = int(build_app()(list(arguments), standalone_mode=False) or 0)
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


def build_app() -> typer.Typer:
    """The command line as one value, so that tests can call it without a process."""
    app = typer.Typer(
        name="firsthand",
        help="Run large language models, and see how.",
        no_args_is_help=True,
        rich_markup_mode=None,
        pretty_exceptions_enable=False,
        context_settings={"help_option_names": ["-h", "--help"]},
    )
    app.callback()(_options)
    commands: dict[str, Callable[..., None]] = {
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
        "check": preflight.check,
        "preflight": preflight.preflight,
        "profile": bench.profile,
        "verify": verify.verify,
        "selftest": check.selftest,
        "convert": models.convert,
        "merge": models.merge,
        "run-batch": jobs.run_batch,
    }
    for name, command in commands.items():
        app.command(name, cls=Command)(flat(command))
    app.add_typer(_plan(), name="plan")
    app.add_typer(_bench(), name="bench")
    app.command("ps", cls=Command)(flat(remote.ps))
    app.command("replay", cls=Command)(flat(replay.replay))
    app.command("top", cls=Command)(flat(remote.top))
    app.command("serve", cls=Command)(serve.with_settings(serve.serve))
    app.command("doctor", cls=Command)(flat(doctor.doctor))
    app.command("chaos", cls=Command)(flat(chaos.chaos))
    app.add_typer(_config(), name="config")
    app.add_typer(_data(), name="data")
    app.add_typer(_manifest(), name="manifest")
    app.add_typer(_release(), name="release")
    app.add_typer(_alerts(), name="alerts")
    app.add_typer(_requests(), name="requests")
    logs_commands = {"errors": flat(logs.errors)}
    app.add_typer(_group("The log of a server.", logs_commands), name="logs")
    return app


class WithDefault(TyperGroup):
    """A group whose first command is meant where none is named: `plan MODEL`."""

    def parse_args(self, ctx: Any, args: list[str]) -> list[str]:
        if args and args[0] not in (*self.commands, *ctx.help_option_names):
            args = [next(iter(self.commands)), *args]
        return super().parse_args(ctx, args)


def _plan() -> typer.Typer:
    """`firsthand plan MODEL`, and what else can be planned."""
    group = typer.Typer(
        help="Show what memory a model would get; `plan load MODEL`: how to load it.",
        no_args_is_help=True,
        cls=WithDefault,
    )
    group.command("memory", cls=Command)(flat(inspect.plan))
    group.command("load", cls=Command)(flat(inspect.plan_load))
    return group


def _bench() -> typer.Typer:
    commands = {
        "latency": flat(bench.latency),
        "throughput": flat(bench.throughput),
        "startup": flat(bench.startup),
        "load": flat(bench.load),
        "ablate": flat(bench.ablate),
        "compare": flat(bench.compare),
    }
    return _group("Measure a model on this machine.", commands)


def _config() -> typer.Typer:
    commands = {
        "show": serve.with_settings(serve.show, as_json=True),
        "check": serve.with_settings(serve.check, as_json=True),
    }
    return _group("The settings of `serve`.", commands)


def _data() -> typer.Typer:
    commands = {
        "check": flat(data.check),
        "run": flat(jobs.run),
        "trace": flat(quarantine.trace),
        "lineage": flat(quarantine.lineage),
    }
    group = _group("Records on their way to a model, and their answers.", commands)
    held = {
        "ls": flat(quarantine.ls),
        "show": flat(quarantine.show),
        "fix": flat(quarantine.fix),
        "replay": flat(quarantine.replay),
    }
    group.add_typer(_group("What a run has refused.", held), name="quarantine")
    return group


def _manifest() -> typer.Typer:
    commands = {
        "write": flat(manifest.write),
        "verify": flat(manifest.verify),
        "data": flat(manifest.data),
    }
    return _group("What a model is: its files by their hashes, and what it was made of.", commands)


def _release() -> typer.Typer:
    commands = {
        "stage": flat(release.stage),
        "promote": flat(release.promote),
        "rollback": flat(release.rollback),
        "history": flat(release.history),
        "drill": flat(release.drill),
        "gc": flat(release.gc),
    }
    return _group("What is served when, and the way back.", commands)


def _alerts() -> typer.Typer:
    commands = {
        "export": flat(alerts.export),
        "test": flat(alerts.test),
        "receive": flat(alerts.receive),
        "answer": flat(alerts.answer),
        "review": flat(alerts.review),
    }
    return _group("The alerts of a server.", commands)


def _requests() -> typer.Typer:
    commands = {"ls": flat(requests.ls), "show": flat(requests.show)}
    return _group("The last requests of a server, as its flight recorder has them.", commands)


def _group(text: str, commands: Mapping[str, Callable[..., None]]) -> typer.Typer:
    """Commands under one name; their options are flat already."""
    group = typer.Typer(help=text, no_args_is_help=True)
    for name, command in commands.items():
        group.command(name, cls=Command)(command)
    return group


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
