"""The commands of a server: serve, and config show and check.

Owns: how the settings become flags, what is said when a server begins.
May not know: what a setting does, how a server is built.
Read next: `../server/settings.py`, the list of settings; `../server/starting.py`.
"""

from __future__ import annotations

from collections.abc import Callable, Iterator, Mapping, Sequence
from contextlib import contextmanager
from inspect import Parameter, Signature
from typing import Annotated, Any

import typer

from firsthand.cli.output import print_json, print_table, reported, say
from firsthand.errors import CapacityExceeded

Config = Annotated[
    str | None,
    typer.Option(
        "--config",
        metavar="FILE",
        help="A TOML file of settings, or s3://bucket/file; flags go before it.",
    ),
]
ConfigModels = Annotated[
    list[str] | None,
    typer.Argument(
        help="A known name, a folder, a .gguf file, or a hub id; or several.", metavar="[MODEL]..."
    ),
]


def serve(config: str | None, given: Mapping[str, Any]) -> None:
    """Serve models over HTTP, in the form of OpenAI's API."""
    with reported(), typed():
        from firsthand.server.logs import configure_logging
        from firsthand.server.starting import run, run_server

        configured = read(config, given)
        settings = configured.settings
        configure_logging(settings.log_level, settings.log_format, folder=settings.log_folder)
        if settings.record_golden:
            from firsthand.server.recording import record

            run(record(settings, say))
            return
        code = run(run_server(configured, lambda: read(config, given), say))
        if code:
            raise typer.Exit(code)


@contextmanager
def typed() -> Iterator[None]:
    """Let what a load says of its options name them as this command does."""
    try:
        yield
    except CapacityExceeded as error:
        text = str(error)
        for option, flag in _FLAGS.items():
            text = text.replace(f"{option}=", f"{flag} ").replace(option, flag)
        raise CapacityExceeded(text) from error


_FLAGS = {
    "max_context": "--max-model-len",
    "max_sequences": "--max-num-seqs",
    "memory_limit": "--memory-limit",
}


def show(config: str | None, given: Mapping[str, Any], as_json: bool) -> None:
    """Print every setting, its value, and where that came from."""
    with reported(as_json):
        rows = list(read(config, given).rows())
        if as_json:
            found = [{"name": n, "value": value, "origin": origin} for n, value, origin in rows]
            print_json({"settings": found})
        else:
            print_table(
                ("SETTING", "VALUE", "FROM"), [(n.replace("_", "-"), v, o) for n, v, o in rows]
            )


def check(config: str | None, given: Mapping[str, Any], as_json: bool) -> None:
    """Check the settings, the keys and the address, and begin nothing."""
    with reported(as_json):
        from firsthand.server.contract import contract_of
        from firsthand.server.listening import check_exposure, tls_context
        from firsthand.server.rules import keys_of, registry_entries

        settings = read(config, given).settings
        keys = keys_of(settings)
        check_exposure(settings, keys)
        tls_context(settings)
        contract_of(settings.contract)
        models = [one.called for one in settings.model]
        if models:
            registry_entries(settings)
        if as_json:
            print_json({"ok": True, "num_keys": len(keys.callers), "models": models})
        else:
            print(f"ok; {len(keys.callers)} keys; models: {', '.join(models) or 'none'}")


def read(config: str | None, given: Mapping[str, Any]) -> Any:
    """The settings of all sources. Raises InvalidRequest."""
    from firsthand.config import service_variables
    from firsthand.server.setting_sources import read_settings

    variables = service_variables()
    if config is None and variables.get("FIRSTHAND_CONFIG"):
        config = variables["FIRSTHAND_CONFIG"]
    return read_settings(given, variables, config)


def with_settings(
    command: Callable[..., None], *, as_json: bool = False, more: Sequence[Parameter] = ()
) -> Callable[..., None]:
    """The command as typer needs it: each setting as a flag, none of which has a default, so that
    what was given can be told from what was not; and `more` of its own."""
    from firsthand.server.settings import SETTINGS

    parameters = [_parameter("config", Config), *more]
    for setting in SETTINGS:
        if setting.name == "model":
            parameters.insert(0, _parameter("model", ConfigModels))
        else:
            parameters.append(_parameter(setting.name, _flag(setting)))
    if as_json:
        hint = Annotated[bool, typer.Option("--json", help="Print exactly one line of JSON.")]
        parameters.append(
            Parameter("as_json", Parameter.KEYWORD_ONLY, default=False, annotation=hint)
        )

    def call(**values: Any) -> None:
        config = values.pop("config")
        own = {one.name: values.pop(one.name) for one in more}
        if as_json:
            own["as_json"] = values.pop("as_json")
        given = {name: value for name, value in values.items() if value not in (None, [])}
        command(config, given, **own)

    call.__doc__ = command.__doc__
    vars(call)["__signature__"] = Signature(parameters)
    return call


def _parameter(name: str, hint: Any) -> Parameter:
    return Parameter(name, Parameter.KEYWORD_ONLY, default=None, annotation=hint)


def _flag(setting: Any) -> Any:
    """A switch has two forms; every other value is read as text, as a variable's is."""
    about, default = setting.about, setting.about.kind.show(setting.default)
    text = about.help
    if "default:" not in text:
        text = f"{text.removesuffix('.')}; default: {default or 'none'}."
    if isinstance(setting.default, bool):
        forms = f"{setting.flag}/--no-{setting.flag.removeprefix('--')}"
        return Annotated[bool | None, typer.Option(forms, help=text)]
    return Annotated[str | None, typer.Option(setting.flag, help=text, metavar=_metavar(setting))]


def _metavar(setting: Any) -> str:
    return type(setting.about.kind).__name__.upper()
