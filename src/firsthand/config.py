"""Every setting that comes from the environment, read once and checked.

Owns: the names of the variables, their defaults, what a bad value is told.
May not know: any other module but `errors`. It is the only place that reads `os.environ`.
Read next: `weights/catalogue.py`, which finds models in the folders named here.

| variable | meaning | default |
|---|---|---|
| `FIRSTHAND_HOME` | Firsthand's own cache | `$XDG_CACHE_HOME/firsthand`, `~/.cache/firsthand` |
| `FIRSTHAND_ISA` | instruction set of the kernels | the best that this CPU has |
| `FIRSTHAND_PACK_CACHE` | 0: neither use nor write packed models | 1 |
| `FIRSTHAND_THREADS` | threads of the kernels | one per core |
| `FIRSTHAND_TRUSTED_KEYS` | a file of public keys: only models signed by one are loaded | none |
| `HF_HUB_CACHE`, `HF_HOME` | the Hugging Face cache, shared with other programs | as there |
| `HF_ENDPOINT` | the hub, or a mirror of it | `https://huggingface.co` |
| `HF_HUB_OFFLINE` | 1: never connect to the hub | 0 |
| `MODELSCOPE_CACHE` | ModelScope's cache, which is read | `~/.cache/modelscope` |
| `AWS_ENDPOINT_URL_S3`, `AWS_ENDPOINT_URL` | object storage that is not Amazon's | none |
| `OTEL_EXPORTER_OTLP_ENDPOINT` | where traces and metrics go | none |
| `OTEL_EXPORTER_OTLP_TRACES_ENDPOINT`, `…_METRICS_ENDPOINT` | each of them elsewhere | |
| `OTEL_SDK_DISABLED`, `OTEL_TRACES_EXPORTER`, `OTEL_METRICS_EXPORTER` | `true`, `none`: not | |
| `HF_TOKEN` | access to private and gated models | none |
| `NO_COLOR` | anything: no colours on a terminal | |
| `LC_ALL`, `LC_MESSAGES`, `LANG` | `zh…`: what `doctor` says is Chinese | English |
"""

from __future__ import annotations

import difflib
import os
import re
from collections.abc import Iterable, Mapping
from dataclasses import field
from pathlib import Path
from urllib.parse import urlsplit

from firsthand.errors import InvalidRequest
from firsthand.values import dataclass

HANDOVER = "FIRSTHAND_HANDOVER"  # set by a server for the one that it starts
MAX_THREADS = 256  # that of the kernels
_DEFAULT_ENDPOINT = "https://huggingface.co"
_TRUSTED_KEYS = "FIRSTHAND_TRUSTED_KEYS"
_OWN_NAMES = (
    *("FIRSTHAND_HOME", "FIRSTHAND_ISA", "FIRSTHAND_PACK_CACHE", "FIRSTHAND_THREADS"),
    _TRUSTED_KEYS,
)
_SWITCH = {"": False, "0": False, "false": False, "no": False, "off": False}
_SWITCH |= {"1": True, "true": True, "yes": True, "on": True}


@dataclass(frozen=True, slots=True)
class Environment:
    """The settings of one process. Paths are absolute; nothing says that they exist."""

    home: Path
    hf_cache: Path
    hf_endpoint: str = _DEFAULT_ENDPOINT  # without a slash at the end
    hf_offline: bool = False
    modelscope_cache: Path | None = None
    s3_endpoint: str | None = None
    hf_token: str | None = field(default=None, repr=False)  # secret: never printed
    isa: str | None = None  # the kernels check the name when they load
    threads: int | None = None
    pack_cache: bool = True
    trusted_keys: Path | None = None
    language: str = "en"  # or zh: what a person is told in
    colour: bool = True  # on a terminal

    @property
    def alert_record(self) -> Path:
        """Where alerts are kept unless another file is named."""
        return self.home / "alerts.jsonl"


def read_environment(environ: Mapping[str, str] | None = None) -> Environment:
    """The settings in `environ` (default: this process's). InvalidRequest names a bad variable."""
    variables = os.environ if environ is None else environ
    _refuse_misspelt(variables)
    user_home = variables.get("HOME") or os.path.expanduser("~")
    xdg = variables.get("XDG_CACHE_HOME", "")
    # The XDG rules say that a relative value is to be ignored.
    cache = Path(xdg) if os.path.isabs(xdg) else Path(user_home) / ".cache"
    hf_home = _folder(variables, "HF_HOME", user_home, cache / "huggingface")
    return Environment(
        home=_folder(variables, "FIRSTHAND_HOME", user_home, cache / "firsthand"),
        hf_cache=_folder(variables, "HF_HUB_CACHE", user_home, hf_home / "hub"),
        hf_endpoint=_endpoint(variables.get("HF_ENDPOINT", "")),
        hf_offline=_switch(variables, "HF_HUB_OFFLINE"),
        modelscope_cache=_folder(
            variables, "MODELSCOPE_CACHE", user_home, Path(user_home) / ".cache" / "modelscope"
        ),
        s3_endpoint=_s3_endpoint(variables),
        hf_token=_token(variables.get("HF_TOKEN", "")),
        isa=variables.get("FIRSTHAND_ISA", "").strip().lower() or None,
        threads=_threads(variables.get("FIRSTHAND_THREADS", "")),
        pack_cache=_switch(variables, "FIRSTHAND_PACK_CACHE", default=True),
        trusted_keys=_folder(variables, _TRUSTED_KEYS, user_home, Path())
        if variables.get(_TRUSTED_KEYS)
        else None,
        language=_language(variables),
        colour=not variables.get("NO_COLOR"),
    )


def service_variables(environ: Mapping[str, str] | None = None) -> dict[str, str]:
    """The variables that begin with our name, for the settings of a server."""
    variables = os.environ if environ is None else environ
    return {name: value for name, value in variables.items() if name.startswith("FIRSTHAND_")}


def otlp_endpoint(signal: str, environ: Mapping[str, str] | None = None) -> str | None:
    """Where OpenTelemetry's own variables say that `traces` or `metrics` go; None: nowhere. Its
    library reads the rest of them."""
    variables = os.environ if environ is None else environ
    off = variables.get("OTEL_SDK_DISABLED", "").strip().lower() == "true"
    if off or variables.get(f"OTEL_{signal.upper()}_EXPORTER", "").strip() == "none":
        return None
    own = variables.get(f"OTEL_EXPORTER_OTLP_{signal.upper()}_ENDPOINT", "").strip()
    base = variables.get("OTEL_EXPORTER_OTLP_ENDPOINT", "").strip().rstrip("/")
    return own or (f"{base}/v1/{signal}" if base else None)


def handover_descriptor(environ: Mapping[str, str] | None = None) -> int | None:
    """The open socket by which another server hands its place to this one; None: none does."""
    value = (os.environ if environ is None else environ).get(HANDOVER, "")
    return int(value) if value.isascii() and value.isdecimal() else None


def completes_a_command(environ: Mapping[str, str] | None = None) -> bool:
    """Whether a shell asks, by typer's variable, what may stand next on its line."""
    return "_FIRSTHAND_COMPLETE" in (os.environ if environ is None else environ)


def set_for_libraries(values: Mapping[str, str], given: Iterable[str] = ()) -> None:
    """Variables that a library reads when it is loaded, for this process and those that it starts;
    those in `given` only where the operator has said nothing."""
    for name, value in values.items():
        if name not in given or not os.environ.get(name):
            os.environ[name] = value


def child_environment(changes: Mapping[str, str]) -> dict[str, str]:
    """This process's variables with `changes`, for a program that we start."""
    return {**os.environ, **changes}


def _refuse_misspelt(variables: Mapping[str, str]) -> None:
    """A name that is nearly one of ours is a slip. Any other `FIRSTHAND_*` is not ours to judge:
    orchestrators inject variables named after a service (`FIRSTHAND_PORT`, …)."""
    # Without the prefix, which would make every name look near to every other.
    words = {known.removeprefix("FIRSTHAND_"): known for known in _OWN_NAMES}
    for name in sorted(variables):
        if not name.startswith("FIRSTHAND_") or name in _OWN_NAMES:
            continue
        near = difflib.get_close_matches(name.removeprefix("FIRSTHAND_"), words, n=1, cutoff=0.75)
        if near:
            raise InvalidRequest(name, f"no such setting; did you mean {words[near[0]]}?")


def _folder(variables: Mapping[str, str], name: str, user_home: str, default: Path) -> Path:
    value = variables.get(name, "")
    if "\0" in value:
        raise InvalidRequest(name, "a path has no NUL character")
    if value == "~" or value.startswith("~/"):
        value = user_home + value[1:]
    return Path(os.path.abspath(value or default))


def _switch(variables: Mapping[str, str], name: str, *, default: bool = False) -> bool:
    value = variables.get(name, "").strip().lower()
    if not value:
        return default
    if value not in _SWITCH:
        raise InvalidRequest(name, f"is {value[:40]!r}; it takes 1 or 0")
    return _SWITCH[value]


def _threads(value: str) -> int | None:
    if not value.strip():
        return None
    number = int(value) if re.fullmatch(r"[0-9]{1,3}", value.strip(), re.ASCII) else 0
    if not 1 <= number <= MAX_THREADS:
        raise InvalidRequest(
            "FIRSTHAND_THREADS", f"is {value[:40]!r}; it takes a whole number, 1 to {MAX_THREADS}"
        )
    return number


def _language(variables: Mapping[str, str]) -> str:
    """By the first of the variables that says something, as other programs take them."""
    names = ("LC_ALL", "LC_MESSAGES", "LANG")
    locale = next((variables[name] for name in names if variables.get(name)), "")
    return "zh" if locale.lower().startswith("zh") else "en"


def _s3_endpoint(variables: Mapping[str, str]) -> str | None:
    for name in ("AWS_ENDPOINT_URL_S3", "AWS_ENDPOINT_URL"):
        if variables.get(name, "").strip():
            return _endpoint(variables[name], name)
    return None


def _endpoint(value: str, name: str = "HF_ENDPOINT") -> str:
    """Only what a request can be built from: scheme, host, port and path; no user, no query."""
    url = value.strip().rstrip("/") or _DEFAULT_ENDPOINT
    try:
        parts = urlsplit(url)
        usable = parts.scheme in ("http", "https") and parts.hostname and parts.port != 0
    except ValueError:  # a port that is no number, a broken IPv6 address
        usable = False
    if not usable or re.search(r"[^!-~]|[@?#]", url):
        raise InvalidRequest(name, "it takes an http:// or https:// address")
    return url


def _token(value: str) -> str | None:
    token = value.strip()
    # Anything else could smuggle a second header into the request.
    if re.search(r"[^!-~]", token):
        raise InvalidRequest("HF_TOKEN", "it holds a character that no token has")
    return token or None
