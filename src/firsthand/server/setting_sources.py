"""Where a setting's value comes from: a flag, a variable, the file, or its default.

Owns: the order of the sources, the reading of the TOML file, what a name that is nearly one of ours
is told.
May not know: what a setting does, how flags are parsed (`cli/serve.py` shows typer the list).
Read next: `settings.py`, the list.

A flag goes before a variable, a variable before the file, the file before what the chosen profile
says, that before the default.
"""

from __future__ import annotations

import re
from collections.abc import Iterator, Mapping
from pathlib import Path
from typing import Any

from firsthand.checks import meant, nearest, shown
from firsthand.config import read_environment
from firsthand.errors import InvalidRequest
from firsthand.files import strict_toml
from firsthand.server.configured import Configured
from firsthand.server.profiles import PROFILES
from firsthand.server.setting_rows import PREFIX, Setting
from firsthand.server.settings import SETTINGS, Settings
from firsthand.weights.object_names import parse_object_id

MAX_FILE_BYTES = 1 << 20
_NOT_OURS = re.compile(r"(tcp|udp|sctp)://")  # what an orchestrator puts into NAME_PORT


def read_settings(
    flags: Mapping[str, Any], variables: Mapping[str, str], file: Path | str | None
) -> Configured:
    """Each setting from its first source. `flags` hold what was given only, under the setting's
    name; `variables` are those of the process.

    Raises InvalidRequest, which names the flag, variable or key, and the limit.
    """
    refuse_misspelt(variables)
    content = {} if file is None else read_file(file)
    values: dict[str, Any] = {}
    origins: dict[str, str] = {}
    for setting in SETTINGS:
        for given, where, origin in _sources(setting, flags, variables, content, file):
            values[setting.name] = setting.about.kind.read(where, given)
            origins[setting.name] = origin
            break
    profile = values.get("profile")
    for name, value in PROFILES[profile].items() if profile else ():
        if name not in values:
            values[name], origins[name] = value, f"profile {profile}"
    return Configured(Settings(**values), origins)


def _sources(
    setting: Setting,
    flags: Mapping[str, Any],
    variables: Mapping[str, str],
    content: Mapping[str, Any],
    file: Path | str | None,
) -> Iterator[tuple[Any, str, str]]:
    """Each value that is given, how an error calls it, and its origin; the one that wins first."""
    if setting.name in flags:
        yield flags[setting.name], setting.flag, f"flag {setting.flag}"
    variable = variables.get(setting.variable, "").strip()
    if variable and not _NOT_OURS.match(variable):
        yield variable, setting.variable, f"environment {setting.variable}"
    if setting.name in content:
        yield content[setting.name], f"{file}: {setting.name}", f"file {file}"


def read_file(file: Path | str) -> dict[str, Any]:
    """A TOML file's keys, as settings are called. Raises InvalidRequest, DownloadFailed."""
    raw = _raw(str(file))
    if len(raw) > MAX_FILE_BYTES:
        raise InvalidRequest("--config", f"{file} is longer than {MAX_FILE_BYTES} bytes")
    try:
        content = strict_toml(raw.decode("utf-8"))
    except ValueError as error:
        raise InvalidRequest("--config", f"{file} is no TOML: {error}") from None
    known = [setting.name for setting in SETTINGS]
    found: dict[str, Any] = {}
    for key, value in content.items():
        name = key.replace("-", "_")
        if name not in known:
            raise InvalidRequest(f"{file}: {shown(key)}", f"no such setting{meant(name, known)}")
        if name in found:
            raise InvalidRequest(f"{file}: {shown(key)}", "is given twice")
        found[name] = value
    return found


def _raw(file: str) -> bytes:
    """The file's bytes, or one more than it may have."""
    object_id = parse_object_id(file, "--config")
    if object_id is not None:
        from firsthand.weights.objects import read_object

        return read_object(object_id, read_environment(), MAX_FILE_BYTES)
    try:
        with Path(file).open("rb") as stream:
            return stream.read(MAX_FILE_BYTES + 1)
    except OSError as error:
        raise InvalidRequest("--config", f"{file}: {error.strerror}") from None


def refuse_misspelt(variables: Mapping[str, str]) -> None:
    """A variable that is nearly one of ours is a slip. Others are not ours to judge: orchestrators
    inject some that begin in the same way."""
    words = {setting.name.upper(): setting.variable for setting in SETTINGS}
    for name in sorted(variables):
        word = name.removeprefix(PREFIX)
        if word != name and word not in words and name not in _ELSEWHERE:
            near = nearest(word, words)
            if near is not None:
                raise InvalidRequest(name, f"no such setting; did you mean {words[near]}?")


# Read by `config.py`, for every command.
_ELSEWHERE = frozenset(PREFIX + name for name in ("HOME", "ISA", "PACK_CACHE", "CONFIG"))
