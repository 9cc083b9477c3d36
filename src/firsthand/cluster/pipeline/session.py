"""Ray itself: one that runs somewhere is joined, or one is started for as long as it is needed.

Owns: with which settings one of our own starts, and that nothing of it stays.
May not know: what runs on it.
Read next: `actors.py`.

One of our own listens on ports that were free, shows no dashboard, and keeps its files in a folder
that goes with it.
"""

from __future__ import annotations

import logging
import shutil
import tempfile
from collections.abc import Iterator
from contextlib import contextmanager

import ray

from firsthand.compute.native.cores import available_threads
from firsthand.errors import InvalidRequest

OBJECTS_BYTES = 256 << 20  # of shared memory, for rows that are under way


@contextmanager
def ray_session(address: str | None, num_stages: int) -> Iterator[None]:
    """`address` as Ray has it; None: our own, on this machine. One that this process has joined
    already is used and stays. Raises InvalidRequest where nothing answers there."""
    if ray.is_initialized():
        joined = ray.get_runtime_context().gcs_address
        if address not in (None, joined):
            raise InvalidRequest("address", f"this process has joined the Ray at {joined}")
        yield
        return
    if address is not None:
        try:
            ray.init(address=address, log_to_driver=False, logging_level=logging.ERROR)
        except (ConnectionError, ValueError, RuntimeError) as error:
            raise InvalidRequest("address", f"no Ray answers: {error}") from error
        try:
            yield
        finally:
            ray.shutdown()
        return
    folder = tempfile.mkdtemp(prefix="fh-ray-")  # short: it holds the names of sockets
    try:
        ray.init(
            address="local",
            num_cpus=num_stages,
            num_gpus=0,
            include_dashboard=False,
            object_store_memory=OBJECTS_BYTES,
            log_to_driver=False,
            logging_level=logging.ERROR,
            _temp_dir=folder,
        )
        yield
    finally:
        ray.shutdown()
        shutil.rmtree(folder, ignore_errors=True)


def threads_each(num_stages: int) -> int:
    """Of each of so many stages on this machine, so that they do not take cores from each other."""
    return max(1, available_threads() // num_stages)
