"""The commands about single requests: requests ls, show and cancel.

Owns: what is printed of a record, the file of a trace.
May not know: HTTP, how a record is kept.
Read next: `../observe/record_views.py`, whose values these are; `client.py`.

A server that does not answer, or knows a request no more, may have left the record of its failure
in a file on this machine: that is looked at then.
"""

from __future__ import annotations

from collections.abc import Mapping
from pathlib import Path
from typing import Annotated, Any

import typer

from firsthand.cli.options import AsJson
from firsthand.cli.output import print_json, print_table, reported, say
from firsthand.cli.remote import DEFAULT_URL, ApiKey, Url, first_key
from firsthand.errors import EngineUnavailable, InvalidRequest, ModelNotFound
from firsthand.files import check_writable

MAX_STEPS_SHOWN = 20
_ID = r"[A-Za-z0-9_-]{1,160}"


def ls(
    failed: Annotated[bool, typer.Option("--failed", help="Only those that failed.")] = False,
    limit: Annotated[int, typer.Option(min=1, max=1000, help="So many at most.")] = 20,
    url: Url = DEFAULT_URL,
    api_key: ApiKey = None,
    as_json: AsJson = False,
) -> None:
    """List the last requests, and where the time of each went."""
    with reported(as_json):
        query = f"limit={limit}" + ("&failed" if failed else "")
        found = _ask(url, api_key, f"/firsthand/requests?{query}")
        requests = found.get("requests")
        if as_json:
            print_json({"requests": requests})
            return
        heads = ("ID", "ARRIVED", "STATE", "STATUS", "PROMPT", "CACHED", "OUTPUT", "MS", "SLOWEST")
        print_table(heads, [_row(one) for one in requests or ()])


def show(
    request_id: Annotated[str, typer.Argument(metavar="ID", help="Of a request, or of its reply.")],
    trace: Annotated[
        Path | None,
        typer.Option(metavar="FILE", help="Write a trace for ui.perfetto.dev."),
    ] = None,
    url: Url = DEFAULT_URL,
    api_key: ApiKey = None,
    as_json: AsJson = False,
) -> None:
    """Show what happened to a request: its stages, its steps, and why it waited."""
    with reported(as_json):
        found = read_record(request_id, url, api_key)
        if trace is not None:
            import json

            from firsthand.observe.record_trace import trace as trace_of

            check_writable("trace", trace)
            trace.write_text(json.dumps(trace_of(found)), encoding="utf-8")
            say(f"wrote {trace}")
        if as_json:
            print_json(found)
        elif trace is None:
            _print(found)


def cancel(
    request_id: Annotated[str, typer.Argument(metavar="ID", help="Of a request, or of its reply.")],
    url: Url = DEFAULT_URL,
    api_key: ApiKey = None,
    as_json: AsJson = False,
) -> None:
    """End a request of a running server; its client is told so."""
    with reported(as_json):
        from firsthand.cli.client import client_of

        path = f"/firsthand/requests/{_checked(request_id)}/cancel"
        found = client_of(url, first_key(api_key)).own(path, "POST")
        if as_json:
            print_json(found)
        else:
            say("ended" if found.get("cancelled") else "it had ended by itself")


def read_record(request_id: str, url: str, api_key: str | None) -> dict[str, Any]:
    """From the server, or from the files on this machine. Raises FirsthandError."""
    try:
        return _ask(url, api_key, f"/firsthand/requests/{_checked(request_id)}")
    except (EngineUnavailable, ModelNotFound):
        from firsthand.config import read_environment
        from firsthand.observe.kept_failures import FAILURES, find

        kept = find(read_environment().home / FAILURES, request_id)
        if kept is None:
            raise
        say("as it was kept on this machine when the request failed")
        return kept


def _checked(request_id: str) -> str:
    import re

    if not re.fullmatch(_ID, request_id, re.ASCII):
        raise InvalidRequest("ID", "is made of letters, digits, - and _")
    return request_id


def _ask(url: str, api_key: str | None, path: str) -> dict[str, Any]:
    from firsthand.cli.client import client_of

    return client_of(url, first_key(api_key)).own(path)


def _row(one: Mapping[str, Any]) -> tuple[str, ...]:
    slowest = max(one["stages"], key=lambda stage: stage["ms"])
    return (
        one["id"],
        one["arrived"],
        one["state"],
        str(one["status"] or "-"),
        *(str(one[f"{name}_tokens"]) for name in ("prompt", "cached")),
        "-" if one["status"] is None else str(one["output_tokens"]),  # counted at its end
        f"{one['total_ms']:.1f}",
        f"{slowest['name']} {slowest['ms']:.1f}",
    )


def _print(found: Mapping[str, Any]) -> None:
    print(f"{found['id']}: {found['state']}, {found['total_ms']:.1f} ms in all")
    about = ("arrived", "model", "endpoint", "status", "error_code", "cause", "trace_id")
    for name in (*about, "prompt_tokens", "cached_tokens", "output_tokens", "sent_bytes"):
        if found.get(name) is not None:
            print(f"  {name.replace('_', ' ')}: {found[name]}")
    total_ms = found["total_ms"] or 1.0
    print_table(
        ("STAGE", "FROM MS", "MS", "SHARE"),
        [
            (
                one["name"],
                f"{one['start_ms']:.1f}",
                f"{one['ms']:.1f}",
                f"{one['ms'] / total_ms:.1%}",
            )
            for one in found["stages"]
        ],
    )
    spent = ", ".join(f"{name} {ms:.1f}" for name, ms in found["step_ms"].items())
    print(f"in {found['num_steps']} steps, ms: {spent}; batch of {found['batch_max']} at most")
    for part in found["parts"]:
        _print_part(part)
    shown = found["steps"][-MAX_STEPS_SHOWN:]
    if shown:
        heads = ("STEP", "AT MS", "MS", "FORWARD", "SAMPLE", "TOKENS", "BATCH", "OF ITS TOKENS")
        print_table(heads, [_step(step) for step in shown])
    if len(shown) < found["num_steps"]:
        print(f"… the last {len(shown)} of {found['num_steps']} steps; --json has more")


def _print_part(part: Mapping[str, Any]) -> None:
    queue = part["queue"]
    age = "still waits" if queue["age_ms"] is None else f"waited {queue['age_ms']:.1f} ms"
    print(
        f"prompt of {part['prompt_tokens']} tokens, {part['n']} times: {age} as {queue['class']}, "
        f"{queue['ahead']} before it"
    )
    for one in part["admissions"]:
        word = "came back" if one["resumed"] else "admitted"
        print(
            f"  {one['at_ms']:.1f} ms: {word} with {one['blocks']} blocks, "
            f"{one['reused_tokens']} tokens reused"
        )
    for one in part["preemptions"]:
        print(
            f"  {one['at_ms']:.1f} ms: preempted, gave up {one['blocks']} blocks and "
            f"{one['lost_tokens']} computed tokens"
        )
    if part["first_token_ms"] is not None:
        print(f"  {part['first_token_ms']:.1f} ms: first token")
    for one in part["choices"]:
        print(f"  ended: {one['finish_reason']}, {one['output_tokens']} tokens")


def _step(step: Mapping[str, Any]) -> tuple[str, ...]:
    return (
        str(step["number"]),
        *(f"{step[name]:.1f}" for name in ("start_ms", "ms", "forward_ms", "sample_ms")),
        *(str(step[name]) for name in ("tokens", "batch", "batch_tokens")),
    )
