"""The command that says what is likely wrong with a server: doctor.

Owns: its options, and how findings are shown.
May not know: how a cause is recognised.
Read next: `../observe/diagnosis.py`; docs/handbook, to whose entries it points.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import Annotated, Any

import typer

from firsthand.cli import options
from firsthand.cli.alerts import Limits
from firsthand.cli.output import print_json, reported, say
from firsthand.cli.remote import DEFAULT_URL, ApiKey, first_key

WINDOW_S, PROMETHEUS_WINDOW_S = 10.0, 300.0


def doctor(
    entry: Annotated[
        str | None,
        typer.Argument(
            metavar="[ENTRY]",
            help="FH-001 …, or latency, memory, errors, garbled, hanging; default: everything.",
        ),
    ] = None,
    url: Annotated[
        str | None,
        typer.Option(metavar="URL", help=f"Of the server; default: {DEFAULT_URL}."),
    ] = None,
    api_key: ApiKey = None,
    prometheus: Annotated[
        str | None,
        typer.Option(metavar="URL", help="Take the numbers from there; default: the server."),
    ] = None,
    window: Annotated[
        float | None,
        typer.Option(
            min=0.1, help="Seconds to look at; default: 10, of a Prometheus the last 300."
        ),
    ] = None,
    log: Annotated[
        Path | None,
        typer.Option(metavar="FILE", help="The server's log in JSON lines; default: none."),
    ] = None,
    config: Limits = None,
    as_json: options.AsJson = False,
) -> None:
    """Rank what is likely wrong with a running server, with the evidence."""
    with reported(as_json):
        import time

        from firsthand.config import read_environment
        from firsthand.observe.alert_settings import read_alert_settings
        from firsthand.observe.diagnosis import diagnose
        from firsthand.observe.gathering import Gathering
        from firsthand.observe.kept_failures import FAILURES
        from firsthand.observe.request_log import read_log

        environment = read_environment()
        gathering = Gathering(
            read_alert_settings(config),
            window or (WINDOW_S if prometheus is None else PROMETHEUS_WINDOW_S),
            time.time,
            time.sleep,
            None if log is None else read_log(log),
            environment.home / FAILURES,
        )
        at = (url or DEFAULT_URL).rstrip("/")
        key = first_key(api_key)
        if prometheus is None:
            evidence = gathering.of_server(at, key)
        else:
            evidence = gathering.of_prometheus(prometheus, None if url is None else at, key)
        language = environment.language
        found = diagnose(evidence, entry, language)
        findings = [_asking(at, one.to_dict()) for one in found]
        if as_json:
            about = {"source": evidence.source, "answers": evidence.answers.value}
            print_json({**about, "window_s": evidence.window_s, "findings": findings})
        else:
            say(f"{evidence.source}, the last {evidence.window_s:.0f} s")
            _print(findings, WORDS[language])


def _asking(url: str, finding: dict[str, Any]) -> dict[str, Any]:
    """What to run next asks the server that was asked here."""
    return {**finding, "command": finding["command"].replace(DEFAULT_URL, url)}


def _print(findings: Sequence[Mapping[str, Any]], words: Mapping[str, str]) -> None:
    for one in findings:
        seen = f"{one['weight']:.0%}" if one["weight"] else words["unseen"]
        print(f"{one['entry'] or words['none']}  {one['title']}  ({seen})")
        for fact in one["evidence"]:
            print(f"    {fact}")
        if one["weight"]:
            print(f"  {words['do']}: {one['remedy']}")
            print(f"  {words['next']}: {one['command']}")
    if not any(one["weight"] for one in findings):
        print(words["well"])


WORDS = {
    "en": {
        "unseen": "not seen",
        "none": "no entry",
        "do": "what to do",
        "next": "next",
        "well": "nothing that is known is wrong",
    },
    "zh": {
        "unseen": "未见",
        "none": "无条目",
        "do": "怎么办",
        "next": "下一步",
        "well": "未发现已知问题",
    },
}
