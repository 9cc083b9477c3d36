"""Batches carried out, one after the other, in a thread: the same run as `firsthand run-batch`.

Owns: the thread, whose turn it is, how a batch begins, is stopped and ends.
May not know: HTTP, how the server answers (`asking.py`), the form of a line (`data/batch.py`).
Read next: `batches.py`; `../../data/running.py`, the run.

Everything is durable before it is told, so a server that is killed goes on where it was when it
comes back: what was answered is there once. Of several servers over one folder, one runs batches;
when it ends, the next one does.
"""

from __future__ import annotations

import fcntl
import json
import logging
import os
import threading
from collections.abc import Callable, Iterator, Mapping, Sequence
from contextlib import ExitStack, closing, contextmanager, suppress
from dataclasses import replace
from pathlib import Path
from typing import Any

from firsthand.data.batch import (
    BatchForm,
    batch_job,
    checked_batch,
    error_line,
    is_answer,
    left_of,
)
from firsthand.data.engines import Engine
from firsthand.data.job import Job
from firsthand.data.ledger import Ledger, has_begun, read_ledger
from firsthand.data.record import START
from firsthand.data.run_parts import Progress
from firsthand.data.running import How, run_job
from firsthand.errors import CapacityExceeded, EngineUnavailable, FirsthandError
from firsthand.server.guard.refusal import Refused
from firsthand.server.logs import tell
from firsthand.server.stored.batches import (
    CANCELLED,
    CANCELLING,
    COMPLETED,
    EXPIRED,
    FAILED,
    FINALIZING,
    IN_PROGRESS,
    VALIDATING,
    WINDOW_S,
    Batch,
    Batches,
    input_name,
    output_name,
)

_LOG = logging.getLogger(__name__)
MAX_REQUESTS = 50_000  # of one batch
MAX_ERRORS = 100  # that are told of a file
STEP_S = 0.5  # between two steps of a run, at each of which it can be stopped
LOOK_S = 1.0
WAIT_S = 5.0  # when the disk or the engines take nothing
SWEEP_LOOKS = 600
EXPIRED_TEXT = "the request was not answered before the batch expired"
OpenEngine = Callable[[Batch], Engine]


class Stopped(FirsthandError):
    """The run ends here; `status` None: the server does."""

    def __init__(self, status: str | None, errors: Sequence[Mapping[str, Any]] = ()) -> None:
        super().__init__("stopped")
        self.status = status
        self.errors = errors


class Runner:
    """`open_engine` gives what answers a batch's requests, or raises FirsthandError. `wanted` is
    set when there is a batch to begin, or one to cancel."""

    def __init__(self, batches: Batches, open_engine: OpenEngine, wanted: threading.Event) -> None:
        self._batches = batches
        self._open_engine = open_engine
        self._wanted = wanted
        self._ending = threading.Event()
        self._thread = threading.Thread(target=self._work, name="batches", daemon=True)

    def start(self) -> None:
        self._thread.start()

    def stop(self) -> None:
        """At the next step; what was finished is kept. Does not wait."""
        self._ending.set()
        self._wanted.set()

    def close(self) -> None:
        self.stop()
        if self._thread.ident is not None:
            self._thread.join()

    def _work(self) -> None:
        with ExitStack() as opened:
            lock = os.open(self._batches.files.folder / "lock", os.O_RDWR | os.O_CREAT, 0o600)
            opened.callback(os.close, lock)
            while not self._ending.is_set():
                with suppress(BlockingIOError):
                    fcntl.flock(lock, fcntl.LOCK_EX | fcntl.LOCK_NB)
                    self._take_turns()
                self._ending.wait(LOOK_S)

    def _take_turns(self) -> None:
        looks = 0
        while not self._ending.is_set():
            self._wanted.clear()
            wait_s = LOOK_S
            try:
                if looks % SWEEP_LOOKS == 0:
                    self.sweep()
                looks += 1
                if self.turn():
                    continue
            except Exception as fault:
                text = f"batches wait: {fault.__cause__ or fault}"
                tell("batches_wait", text, logging.WARNING)
                wait_s = WAIT_S
            self._wanted.wait(wait_s)

    def sweep(self) -> None:
        """What has expired, and what a crash left. Raises Refused."""
        self._batches.files.sweep()
        self._batches.sweep()

    def turn(self) -> bool:
        """The batch whose turn it is, carried out; False: there is none. Raises what is no fault
        of the batch."""
        batch = self._batches.next()
        if batch is None:
            return False
        try:
            self._carry_out(batch)
        except Exception as fault:
            if will_pass(fault):
                raise
            _LOG.exception("batch %s failed", batch.id)
            errors = [_error("internal_error", "the server failed to carry out this batch")]
            self._batches.finish(batch, FAILED, None, None, errors=errors)
        return True

    def _carry_out(self, batch: Batch) -> None:
        """One batch, to its end or the server's. Raises what is no fault of the batch."""
        job = job_of_batch(self._batches.work, batch.id)
        try:
            self._check(batch)
            if batch.status == VALIDATING:
                batch = self._validated(job, batch)
                self._check(batch)
            if batch.status != FINALIZING:
                self._run(job, batch)
            self._finish(job, batch.id, COMPLETED)
        except Stopped as stopped:
            if stopped.status is not None:
                self._finish(job, batch.id, stopped.status, stopped.errors)
        except FirsthandError as fault:
            if will_pass(fault):
                raise
            why = str(fault).replace(f"{self._batches.work}/", "")
            self._finish(job, batch.id, FAILED, [_error("failed", why)])

    def _validated(self, job: Job, batch: Batch) -> Batch:
        """In progress. Raises Stopped: its file is wrong, so it has failed as a whole."""
        wrong: list[dict[str, Any]] = []
        total = 0
        for found in checked_batch(job, batch.endpoint):
            if self._ending.is_set():
                raise Stopped(None)
            if isinstance(found, int):
                total = found
                continue
            wrong.append(_error(found.code, found.detail, found.line, found.field))
            if len(wrong) >= MAX_ERRORS:
                break
        if not wrong and not 0 < total <= MAX_REQUESTS:
            why = f"a batch has 1 to {MAX_REQUESTS} requests, this one {total}"
            wrong.append(_error("num_requests", why))
        if wrong:
            raise Stopped(FAILED, wrong)
        batches = self._batches
        return batches.change(
            batch.id,
            lambda now: batches.into(
                now, IN_PROGRESS if now.status == VALIDATING else now.status, total=total
            ),
        )

    def _run(self, job: Job, batch: Batch) -> None:
        """Until all is answered. Raises Stopped, FirsthandError."""
        form, batches = BatchForm(), self._batches
        before = sum(not is_answer(line) for line in lines_of(job))

        def told(progress: Progress) -> None:
            books, refused = progress.books, before + form.refusals.total()
            completed, failed = max(0, books.accepted - refused), refused + books.quarantined
            now = batches.now(batch.id)
            if now is not None and (now.completed, now.failed) != (completed, failed):
                now = batches.change(
                    batch.id, lambda one: replace(one, completed=completed, failed=failed)
                )
            self._check(now)

        how = How(resume=True, tell=told, one_model=False)
        run_job(job, lambda: self._open_engine(batch), how, lambda facts: form)

    def _check(self, now: Batch | None) -> None:
        """Raises Stopped: nobody wants more of it, or nobody can have it."""
        if self._ending.is_set() or now is None:
            raise Stopped(None)
        if now.status == CANCELLING:
            raise Stopped(CANCELLED)
        if now.status == FINALIZING:
            return
        if self._batches.files.clock() >= now.expires_at:
            raise Stopped(EXPIRED)
        try:
            self._batches.files.room_bytes()
        except Refused as refused:
            if refused.status == 413:
                raise Stopped(FAILED, [_error("storage_full", refused.message)]) from None
            raise

    def _finish(
        self, job: Job, batch_id: str, status: str, errors: Sequence[Mapping[str, Any]] = ()
    ) -> None:
        """Answers into one file, everything else into another, and the batch has ended."""
        batches = self._batches

        def begun(now: Batch) -> Batch:
            return batches.into(now, FINALIZING) if status == COMPLETED else now

        batch = batches.change(batch_id, begun)
        with (
            closing(Part(batches.work / f"{batch_id}.answered")) as answered,
            closing(Part(batches.work / f"{batch_id}.failed")) as failed,
        ):
            for line in lines_of(job):
                (answered if is_answer(line) else failed).add(line)
            for line in _unanswered(job, expired=status == EXPIRED):
                failed.add(line)
            counts: dict[str, Any] = {"completed": answered.num, "failed": failed.num}
            output, others = answered.keep(), failed.keep()
            batches.finish(batch, status, output, others, errors=list(errors), **counts)
        why = f", {errors[0]['code']}" if errors else ""
        text = f"{batch_id} {status}: {answered.num} of {batch.total} answered, {failed.num} not"
        tell("batch_ended", text + why, batch=batch_id, status=status, **counts)


def will_pass(fault: Exception) -> bool:
    """Whether it is the disk's or the engines', not the batch's."""
    if isinstance(fault, FileNotFoundError):
        return False
    return isinstance(fault, Refused | OSError | CapacityExceeded | EngineUnavailable)


class Part:
    """Lines on their way into a file of their own, which is there when there is one."""

    def __init__(self, path: Path) -> None:
        self.num = 0
        self._path = path
        self._stream = path.open("wb")

    def add(self, line: bytes) -> None:
        self.num += 1
        self._stream.write(line + b"\n")

    def keep(self) -> Path | None:
        """Durable but for its name; None: there is no line."""
        self._stream.flush()
        os.fsync(self._stream.fileno())
        return self._path if self.num else None

    def close(self) -> None:
        self._stream.close()
        self._path.unlink(missing_ok=True)


def job_of_batch(work: Path, batch_id: str) -> Job:
    """Names are the batch's own, so that equal files of two batches have records of other names."""
    engine = {"url": "inside", "patience_s": float(WINDOW_S)}
    names = (Path(input_name(batch_id)), Path(output_name(batch_id)))
    return batch_job(*names, engine, work, checkpoint_s=STEP_S)


def lines_of(job: Job) -> Iterator[bytes]:
    """Of what was written, as far as it counts."""
    with _ledger(job) as ledger:
        size = 0 if ledger is None else ledger.fact("sink") or 0
    if size:
        with (job.folder / str(job.file.sink.path)).open("rb") as stream:
            while stream.tell() < size:
                yield stream.readline().rstrip(b"\n")


def _unanswered(job: Job, *, expired: bool) -> Iterator[bytes]:
    """A line for each request that three tries did not answer, and for each that was not begun."""
    with _ledger(job) as ledger:
        if ledger is not None:
            path = job.folder / str(job.file.source.path)
            for held in ledger.all_held():
                with path.open("rb") as stream:
                    stream.seek(held.position.offset)
                    custom_id = json.loads(stream.read(held.position.num_bytes))["custom_id"]
                yield error_line(held.id.hex(), custom_id, held.reason, held.detail)
        if expired:
            for identity, custom_id in left_of(job, START if ledger is None else ledger.position):
                yield error_line(identity.hex(), custom_id, "batch_expired", EXPIRED_TEXT)


@contextmanager
def _ledger(job: Job) -> Iterator[Ledger | None]:
    """None: no run has begun."""
    if not has_begun(job.ledger):
        yield None
        return
    with closing(read_ledger(job.ledger)) as ledger:
        yield ledger


def _error(
    code: str, message: str, line: int | None = None, param: str | None = None
) -> dict[str, Any]:
    return {"code": str(code), "message": message, "line": line, "param": param}
