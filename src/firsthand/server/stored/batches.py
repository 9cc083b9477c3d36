"""Batches: what was asked for, how far it has come, and whose it is.

Owns: a batch's states and which may follow which; the table; the folder of what is worked on; its
two output files, which are there with its end or not at all.
May not know: HTTP, how a request is answered.
Read next: `runner.py`, which carries them out.

    validating → in_progress → finalizing → completed
         ↓            ↓ cancelling → cancelled
       failed     failed, expired

A batch works on `work/ID.in.jsonl`, a link to its input, which may be deleted meanwhile, and
writes `work/ID.out.jsonl` with its ledger. The ledger stays as long as the batch is known.
"""

from __future__ import annotations

import json
import os
import secrets
import sqlite3
from collections.abc import Callable, Mapping, Sequence
from contextlib import suppress
from dataclasses import asdict, field, replace
from pathlib import Path
from typing import Any

from firsthand.server.guard.refusal import Refused
from firsthand.server.stored.catalogue import disk_refused
from firsthand.server.stored.files import Files, Page, page_of
from firsthand.values import dataclass

WINDOW_S = 24 * 3600
MAX_OPEN = 100  # of one owner
MAX_BATCHES = 10_000
KEPT_S = 30 * 86400  # after its end
PURPOSE, OUTPUT_PURPOSE = "batch", "batch_output"
VALIDATING, IN_PROGRESS, FINALIZING = "validating", "in_progress", "finalizing"
COMPLETED, FAILED, EXPIRED = "completed", "failed", "expired"
CANCELLING, CANCELLED = "cancelling", "cancelled"
OPEN = (VALIDATING, IN_PROGRESS, FINALIZING, CANCELLING)


@dataclass(frozen=True, slots=True)
class Batch:
    """`times`: when it came into each state, in seconds since the epoch. `errors`: why it failed,
    each with its line. `output_keep_s` None: as all files."""

    id: str
    owner: str
    endpoint: str
    input_file_id: str
    created_at: int
    expires_at: int
    status: str = VALIDATING
    metadata: Mapping[str, str] | None = None
    output_keep_s: int | None = None
    total: int = 0
    completed: int = 0
    failed: int = 0
    times: Mapping[str, int] = field(default_factory=dict)
    errors: Sequence[Mapping[str, Any]] = ()
    output_file_id: str | None = None
    error_file_id: str | None = None

    def to_dict(self) -> dict[str, Any]:
        """In OpenAI's words."""
        states = (IN_PROGRESS, FINALIZING, COMPLETED, FAILED, EXPIRED, CANCELLING, CANCELLED)
        counts = {"total": self.total, "completed": self.completed, "failed": self.failed}
        return {
            "id": self.id,
            "object": "batch",
            "endpoint": self.endpoint,
            "errors": {"object": "list", "data": list(self.errors)} if self.errors else None,
            "input_file_id": self.input_file_id,
            "completion_window": "24h",
            "status": self.status,
            "output_file_id": self.output_file_id,
            "error_file_id": self.error_file_id,
            "created_at": self.created_at,
            "expires_at": self.expires_at,
            **{f"{state}_at": self.times.get(state) for state in states},
            "request_counts": counts,
            "metadata": self.metadata,
        }


@dataclass(frozen=True, slots=True)
class Batches:
    """Its methods wait for the disk."""

    files: Files

    @property
    def work(self) -> Path:
        return self.files.folder / "work"

    def create(
        self,
        owner: str,
        endpoint: str,
        input_file_id: str,
        metadata: Mapping[str, str] | None,
        output_keep_s: int | None,
    ) -> Batch:
        """Raises Refused."""
        now, batch_id = int(self.files.clock()), f"batch_{secrets.token_hex(12)}"
        with self.files.catalogue.writing() as connection:
            found = self.files.found(connection, owner, input_file_id, "input_file_id")
            if found.purpose != PURPOSE:
                message = f"input_file_id: its purpose is {found.purpose}, not {PURPOSE}"
                raise Refused(400, message, "invalid_value", "input_file_id")
            self._check_room(connection, owner)
            batch = Batch(
                batch_id,
                owner,
                endpoint,
                input_file_id,
                now,
                now + WINDOW_S,
                metadata=metadata,
                output_keep_s=output_keep_s,
            )
            try:
                os.link(self.files.path(input_file_id), self.work / input_name(batch_id))
            except OSError as error:
                raise disk_refused(error) from error
            connection.execute(
                "INSERT INTO batches (id, owner, open, value) VALUES (?, ?, 1, ?)",
                (batch_id, owner, _written(batch)),
            )
        return batch

    def find(self, owner: str, batch_id: str) -> Batch:
        """Raises Refused, 404, also where it is somebody else's."""
        with self.files.catalogue.reading() as connection:
            found = _read(connection, batch_id)
        if found is None or found.owner != owner:
            raise Refused(404, "no such batch is here", "not_found", "batch_id")
        return found

    def list(self, owner: str, page: Page) -> tuple[list[Batch], bool]:
        """A page, and whether there are more. Raises Refused."""
        with self.files.catalogue.reading() as connection:
            rows = page_of(connection, "SELECT value FROM batches", "owner = ?", [owner], page)
        return [_batch(row[0]) for row in rows[: page.limit]], len(rows) > page.limit

    def cancel(self, owner: str, batch_id: str) -> Batch:
        """Raises Refused."""
        self.find(owner, batch_id)

        def cancelled(batch: Batch) -> Batch:
            if batch.status not in (VALIDATING, IN_PROGRESS, CANCELLING):
                message = f"this batch is {batch.status}, and cannot be cancelled any more"
                raise Refused(400, message, "invalid_value", "batch_id")
            return self.into(batch, CANCELLING)

        return self.change(batch_id, cancelled)

    def next(self) -> Batch | None:
        """The one that has waited longest of those that have not ended."""
        with self.files.catalogue.reading() as connection:
            row = connection.execute(
                "SELECT value FROM batches WHERE open ORDER BY number LIMIT 1"
            ).fetchone()
        return None if row is None else _batch(row[0])

    def into(self, batch: Batch, status: str, **values: Any) -> Batch:
        """In another state since now; once only."""
        times = {status: int(self.files.clock()), **batch.times}
        return replace(batch, status=status, times=times, **values)

    def change(self, batch_id: str, change: Callable[[Batch], Batch]) -> Batch:
        """Of what it is now, in one transaction."""
        with self.files.catalogue.writing() as connection:
            found = _read(connection, batch_id)
            if found is None:
                raise Refused(404, "no such batch is here", "not_found", "batch_id")
            return _put(connection, change(found))

    def now(self, batch_id: str) -> Batch | None:
        with self.files.catalogue.reading() as connection:
            return _read(connection, batch_id)

    def finish(
        self, batch: Batch, status: str, output: Path | None, others: Path | None, **values: Any
    ) -> Batch:
        """The end, with the files, which are written and synced, under names of their own."""
        with self.files.catalogue.writing() as connection:
            for kind, path in (("output", output), ("error", others)):
                if path is not None:
                    name = f"{batch.id}_{kind}.jsonl"
                    keep_s, owner = batch.output_keep_s, batch.owner
                    given = (name, OUTPUT_PURPOSE, keep_s)
                    values[f"{kind}_file_id"] = self.files.add(connection, path, owner, *given).id
            done = _put(connection, self.into(batch, status, **values))
        for name in (input_name(batch.id), output_name(batch.id)):
            with suppress(OSError):
                (self.work / name).unlink()
        return done

    def sweep(self) -> None:
        """Batches that ended long ago, and what they or a crash left in the folder."""
        with self.files.catalogue.writing() as connection:
            rows = connection.execute("SELECT number, value FROM batches").fetchall()
            kept, now = set(), self.files.clock()
            for number, value in rows:
                batch = _batch(value)
                last_s = max([batch.created_at, *batch.times.values()])
                if batch.status in OPEN or now - last_s < KEPT_S:
                    kept.add(batch.id)
                else:
                    connection.execute("DELETE FROM batches WHERE number = ?", (number,))
            left = [one for one in os.listdir(self.work) if one.partition(".")[0] not in kept]
        for name in left:
            with suppress(OSError):
                (self.work / name).unlink()

    def _check_room(self, connection: sqlite3.Connection, owner: str) -> None:
        num = connection.execute(
            "SELECT count(*), total(open AND owner = ?) FROM batches", (owner,)
        ).fetchone()
        if num[1] >= MAX_OPEN:
            message = f"{MAX_OPEN} batches have not ended yet; more are not taken"
            raise Refused(429, message, "batch_limit_exceeded", retry_after_s=60.0)
        if num[0] >= MAX_BATCHES:
            raise Refused(503, f"{MAX_BATCHES} batches are kept, and no more", "storage_full")


def input_name(batch_id: str) -> str:
    return f"{batch_id}.in.jsonl"


def output_name(batch_id: str) -> str:
    return f"{batch_id}.out.jsonl"


def _written(batch: Batch) -> str:
    return json.dumps(asdict(batch), ensure_ascii=False)


def _batch(value: str) -> Batch:
    return Batch(**json.loads(value))


def _read(connection: sqlite3.Connection, batch_id: str) -> Batch | None:
    row = connection.execute("SELECT value FROM batches WHERE id = ?", (batch_id,)).fetchone()
    return None if row is None else _batch(row[0])


def _put(connection: sqlite3.Connection, batch: Batch) -> Batch:
    connection.execute(
        "UPDATE batches SET open = ?, value = ? WHERE id = ?",
        (batch.status in OPEN, _written(batch), batch.id),
    )
    return batch
