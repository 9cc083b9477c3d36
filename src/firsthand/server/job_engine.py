"""Who answers a job: a model in this process's care, or a server at an address.

Owns: the choice, by the job's words.
May not know: what is asked; records.
Read next: `inside.py`; `../data/http_engine.py`.
"""

from __future__ import annotations

from collections.abc import Callable

from firsthand.data.engines import Engine
from firsthand.data.job import EnginePart, Job

HTTP_WIDTH = 32


def engine_of(job: Job, key: str | None, threads: int | None = None) -> Callable[[], Engine] | None:
    """What opens the engine that a job names; None: it names none. `threads`: of a model that is
    loaded here."""
    part = job.file.engine
    if part is None:
        return None
    if part.url is not None:
        return lambda: _over_http(part, key)
    return lambda: _inside(job, part, threads)


def _over_http(part: EnginePart, key: str | None) -> Engine:
    from firsthand.addresses import address_of
    from firsthand.data.http_engine import HttpEngine

    return HttpEngine(address_of(str(part.url), key), part.width or HTTP_WIDTH)


def _inside(job: Job, part: EnginePart, threads: int | None) -> Engine:
    from firsthand.generation.load_options import LoadOptions
    from firsthand.generation.service_values import ServiceOptions
    from firsthand.server.inside import InsideEngine

    name = str(part.model)
    place = job.folder / name
    load = LoadOptions(max_sequences=part.batch, threads=threads)
    options = ServiceOptions(place if place.exists() else name, load, part.name or name)
    return InsideEngine(options, part.width)
