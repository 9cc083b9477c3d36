"""Files and batches of one server, as its routes and its lifecycle know them.

Owns: how the parts are put together from the settings, and in whose name a batch asks.
May not know: routes, how a batch is carried out.
Read next: `files.py`, `batches.py`, `runner.py`.
"""

from __future__ import annotations

import asyncio
import threading
from functools import partial
from typing import Protocol

from firsthand.errors import InvalidRequest
from firsthand.server.guard.call import Caller
from firsthand.server.guard.keys import KeyRing
from firsthand.server.guard.middleware import Guard
from firsthand.server.guard.refusal import Refused
from firsthand.server.settings import Settings
from firsthand.server.stored.batches import Batch, Batches
from firsthand.server.stored.catalogue import open_catalogue
from firsthand.server.stored.files import Bounds, Files, make_folders


class Carrier(Protocol):
    """A `Runner`."""

    def stop(self) -> None: ...
    def close(self) -> None: ...


class Stored:
    """`opened` None: this server keeps nothing."""

    def __init__(self, opened: Files | None = None) -> None:
        self._files = opened
        self._runner: Carrier | None = None
        self.wanted = threading.Event()  # a batch is to begin, or to be cancelled

    @property
    def files(self) -> Files:
        """Raises Refused, 404."""
        if self._files is None:
            message = "this server keeps no files and no batches; --files-folder turns that on"
            raise Refused(404, message, "not_found")
        return self._files

    @property
    def batches(self) -> Batches:
        """Raises Refused, 404."""
        return Batches(self.files)

    def start(self, guard: Guard) -> None:
        """Batches are carried out from now on, through this guard, on the running loop."""
        if self._files is None:
            return
        # What jobs are made of; a server without files starts without it.
        from firsthand.server.stored.asking import OwnEngine, num_beside
        from firsthand.server.stored.runner import Runner

        loop = asyncio.get_running_loop()

        def open_engine(batch: Batch) -> OwnEngine:
            def owner() -> Caller:
                return owner_of(guard.rules.access.keys, batch.owner)

            return OwnEngine(guard, loop, owner, partial(num_beside, guard.gate))

        runner = Runner(self.batches, open_engine, self.wanted)
        runner.start()
        self._runner = runner

    def stop(self) -> None:
        """No batch goes on; what was finished is kept. Does not wait."""
        if self._runner is not None:
            self._runner.stop()

    def close(self) -> None:
        if self._runner is not None:
            self._runner.close()


def owner_of(keys: KeyRing, key_id: str) -> Caller:
    """Raises InvalidRequest: the key is no more."""
    if not keys and not key_id:
        return Caller()
    for caller in keys.callers.values():
        if caller.key_id == key_id:
            return caller
    raise InvalidRequest("api_key", "the key that asked for this batch is no key any more")


def stored_of(settings: Settings) -> Stored:
    """Raises InvalidRequest: the folder cannot be used."""
    folder = settings.files_folder
    if folder is None:
        return Stored()
    make_folders(folder)
    bounds = Bounds(settings.files_size, settings.max_file_size, round(settings.files_expiry))
    return Stored(Files(folder.absolute(), open_catalogue(folder / "catalogue.db"), bounds))
