"""The commands that carry records through a model: data run, run-batch.

Owns: their options, which engine answers, how progress and books are shown.
May not know: how a job is done.
Read next: `../data/running.py`; `data_run_on_ray.py`; `data_quarantine.py`, for what is refused.
"""

from __future__ import annotations

import sys
import time
from collections.abc import Callable
from pathlib import Path
from typing import Annotated, Any

import typer

from firsthand.cli import options
from firsthand.cli.data_run_on_ray import MANY, Many, run_on_ray
from firsthand.cli.interrupts import terminable
from firsthand.cli.output import CHECK_FAILED, print_json, print_table, reported, say
from firsthand.cli.remote import ApiKey, first_key
from firsthand.errors import InvalidRequest

TELL_S = 10.0  # between two lines of progress where no terminal is
LIVE_S = 0.5
JobPath = Annotated[Path, typer.Argument(metavar="JOB", help="A job's file of TOML.")]
Resume = Annotated[bool, typer.Option("--resume", help="Go on where an earlier run ended or died.")]
Limit = Annotated[int | None, typer.Option(help="Read so many records now; default: all.")]
Strict = Annotated[
    bool, typer.Option("--strict", help="Exit with 3 where a record is in quarantine.")
]


def run(
    job: JobPath,
    dry_run: Annotated[
        bool, typer.Option("--dry-run", help="Read and check; ask and write nothing.")
    ] = False,
    resume: Resume = False,
    limit: Limit = None,
    api_key: ApiKey = None,
    strict: Strict = False,
    many: Many = MANY,
    as_json: options.AsJson = False,
) -> None:
    """Carry out a job: records of a source through contract, transforms and engine to a sink."""
    with reported(as_json), terminable():
        from firsthand.data.job import read_job
        from firsthand.data.running import How, run_job

        many.check(dry_run=dry_run, limit=limit)
        found = read_job(job)
        if dry_run:
            _try(found, limit, as_json)
            return
        if many.ray:
            outcome = run_on_ray(found, many, resume, first_key(api_key), tell_progress())
        else:
            how = How(resume, _checked(limit), tell_progress())
            outcome = run_job(found, engine_of(found, api_key), how)
        _show(found, outcome, as_json)
        if strict and outcome.books.quarantined:
            raise typer.Exit(CHECK_FAILED)


def run_batch(
    source: Annotated[
        Path, typer.Option("-i", "--input", metavar="FILE", help="Requests, one per line.")
    ],
    sink: Annotated[
        Path, typer.Option("-o", "--output", metavar="FILE", help="Where the responses go.")
    ],
    model: Annotated[
        str | None, typer.Option(help="To be loaded here: a known name, a path, or a hub id.")
    ] = None,
    url: Annotated[
        str | None, typer.Option(metavar="URL", help="Or of a server that answers.")
    ] = None,
    name: Annotated[
        str | None, typer.Option(help="What the lines call the model; default: as --model.")
    ] = None,
    width: Annotated[
        int | None, typer.Option(help="Requests at once; default: what keeps the batch full.")
    ] = None,
    resume: Resume = False,
    limit: Limit = None,
    api_key: ApiKey = None,
    strict: Strict = False,
    as_json: options.AsJson = False,
) -> None:
    """Answer a file of requests in OpenAI's batch format."""
    with reported(as_json), terminable():
        from firsthand.data.batch import BatchForm, batch_job
        from firsthand.data.running import How, run_job

        if (model is None) == (url is None):
            raise InvalidRequest("model", "takes --model, to load it here, or --url of a server")
        given = {"model": model, "url": url, "name": name, "width": width}
        engine = {key: value for key, value in given.items() if value}
        job = batch_job(source.absolute(), sink.absolute(), engine, Path.cwd())
        how = How(resume, _checked(limit), tell_progress())
        form = BatchForm()
        outcome = run_job(job, engine_of(job, api_key), how, lambda facts: form)
        _show(job, outcome, as_json)
        for status, count in sorted(form.refusals.items()):
            say(f"{count} requests were answered by a refusal, {status}: see their lines")
        if strict and outcome.books.quarantined:
            raise typer.Exit(CHECK_FAILED)


def engine_of(job: Any, api_key: str | None) -> Callable[[], Any] | None:
    """What opens the engine that a job names; None: it names none."""
    from firsthand.server import job_engine

    open_engine = job_engine.engine_of(job, first_key(api_key))
    model = None if open_engine is None else job.file.engine.model
    if open_engine is None or model is None:
        return open_engine

    def told() -> Any:
        say(f"loading {model}")
        return open_engine()

    return told


def tell_progress() -> Callable[[Any], None]:
    """Rate, rejects and time left: on a terminal in one line that changes, else now and then."""
    live = sys.stderr.isatty()
    told_s = time.monotonic()

    def tell(progress: Any) -> None:
        nonlocal told_s
        now_s = time.monotonic()
        if now_s - told_s >= (LIVE_S if live else TELL_S):
            told_s = now_s
            say(progress_line(progress), end="\r" if live else "\n")

    return tell


def progress_line(progress: Any) -> str:
    books, share = progress.books, progress.share
    parts = [
        f"{books.read:,} read",
        f"{progress.per_second:,.0f}/s",
        f"{books.quarantined:,} in quarantine",
        f"{books.duplicates:,} duplicates",
    ]
    if share is not None:
        parts.insert(0, f"{share:.0%}")
    if progress.left_s is not None:
        parts.append(f"{progress.left_s:,.0f} s left")
    return ", ".join(parts)


def books_dict(books: Any) -> dict[str, Any]:
    return {
        "read": books.read,
        "accepted": books.accepted,
        "quarantined": books.quarantined,
        "duplicates": books.duplicates,
        "reasons": dict(books.reasons),
    }


def print_books(books: Any) -> None:
    print_table(
        ("read", "out", "quarantined", "duplicates"),
        [tuple(map(str, (books.read, books.accepted, books.quarantined, books.duplicates)))],
    )
    for reason, count in books.reasons.most_common():
        print(f"  {count}  {reason}")


def _checked(limit: int | None) -> int | None:
    from firsthand.checks import check_integer

    if limit is not None:
        check_integer("limit", limit, 0)
    return limit


def _show(job: Any, outcome: Any, as_json: bool) -> None:
    if as_json:
        print_json(
            {
                **books_dict(outcome.books),
                "now": outcome.num_now,
                "ended": outcome.ended,
                "sink": outcome.sink,
                "ledger": str(job.ledger),
                "source": outcome.source,
            }
        )
        return
    print_books(outcome.books)
    for line, key in outcome.doubles:
        say(f"line {line}: {key[:80]!r} was there before; left out as a duplicate")
    if not outcome.ended:
        say("the source has more; --resume goes on")
    if outcome.books.quarantined:
        say(f"firsthand data quarantine ls {job.ledger} shows what was refused")


def _try(job: Any, limit: int | None, as_json: bool) -> None:
    from firsthand.data.books import Books
    from firsthand.data.record import Rejected
    from firsthand.data.running import try_job

    for item in try_job(job, _checked(limit)):
        if isinstance(item, Books):
            if as_json:
                print_json({**books_dict(item), "dry_run": True})
            else:
                print_books(item)
        elif isinstance(item, Rejected):
            say(f"record {item.position.record}: {item.stage}: {item.reason}: {item.detail}")
