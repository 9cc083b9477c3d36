"""The entry: `firsthand COMMAND`.

Owns: the list of commands, in the order in which help shows them.
May not know: what a command does; each stands in the file of its verb group. Only the standard
library and typer are loaded here, so that `--help` answers at once: a command imports what it
needs when it runs.
Read next: `generate.py` (run, chat), `models.py`, `inspect.py`, `check.py`.
"""

from __future__ import annotations

from collections.abc import Callable
from typing import Annotated

import typer

from firsthand import __version__
from firsthand.cli import check, generate, inspect, models
from firsthand.cli.output import speak_utf8


def main() -> None:
    speak_utf8()
    build_app()()


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
        "inspect": inspect.inspect,
        "tokenize": generate.tokenize,
        "trace-step": inspect.trace_step,
        "selftest": check.selftest,
        "convert": models.convert,
    }
    for name, command in commands.items():
        app.command(name)(command)
    return app


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
