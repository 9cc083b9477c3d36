"""`data run --ray`: a job in parts, on the workers of a Ray.

Owns: its options, and how much of a machine each worker has.
May not know: how a source is cut, or what a worker does.
Read next: `../cluster/offline/running.py`.
"""

from __future__ import annotations

from pathlib import Path
from typing import Annotated, Any

import typer

from firsthand.checks import check_integer
from firsthand.cli.cluster import session
from firsthand.errors import InvalidRequest
from firsthand.values import dataclass

NUM_WORKERS = 2
LIMITS = {"workers": 4096, "cpus": 1024, "parts": 1_000_000}


@dataclass(frozen=True, slots=True)
class Many:
    """The group of options. None: what its help says."""

    ray: Annotated[
        bool,
        typer.Option("--ray", help="In parts, by workers on this machine or on a cluster of Ray."),
    ] = False
    workers: Annotated[
        int | None,
        typer.Option(help=f"With --ray: each has an engine of its own; default: {NUM_WORKERS}."),
    ] = None
    cpus: Annotated[
        int | None,
        typer.Option(
            help="With --ray: cores of a worker; default: 1, or where it loads a model, its share "
            "of this machine's."
        ),
    ] = None
    parts: Annotated[
        int | None,
        typer.Option(help="With --ray: of the source; default: 4 for each worker, of 64 MiB most."),
    ] = None
    scratch: Annotated[
        Path | None,
        typer.Option(help="With --ray: where unfinished parts are; default: beside the output."),
    ] = None
    address: Annotated[
        str | None,
        typer.Option(help="With --ray: of a cluster; default: a Ray of its own, on this machine."),
    ] = None

    def check(self, *, dry_run: bool, limit: int | None) -> None:
        """Raises InvalidRequest."""
        if self.ray and (dry_run or limit is not None):
            raise InvalidRequest("ray", "goes with neither --dry-run nor --limit")
        for name in ("workers", "cpus", "parts", "scratch", "address"):
            value = getattr(self, name)
            if value is not None and not self.ray:
                raise InvalidRequest(name, "goes with --ray")
            if value is not None and name in LIMITS:
                check_integer(name, value, 1, LIMITS[name])


MANY = Many()


def run_on_ray(job: Any, many: Many, resume: bool, key: str | None, tell: Any) -> Any:
    """The outcome. Raises InvalidRequest, and what a run raises."""
    from firsthand.cluster.offline.running import HowOffline, run_in_parts

    num = many.workers or NUM_WORKERS
    cpus = many.cpus or _cpus(job, num, many.address)
    scratch = None if many.scratch is None else many.scratch.absolute()
    how = HowOffline(num, many.parts, scratch, resume, tell)
    with session(many.address, num_own=num * cpus):
        from firsthand.cluster.offline.pool import Workers, ray_pool

        return run_in_parts(job, how, ray_pool(Workers(num, cpus, key)))


def _cpus(job: Any, num: int, address: str | None) -> int:
    from firsthand.compute.native.cores import available_threads

    engine = job.file.engine
    if engine is None or engine.model is None:
        return 1
    if address is not None:
        raise InvalidRequest("cpus", "says how many cores the model of a worker has on its node")
    return max(1, available_threads() // num)
