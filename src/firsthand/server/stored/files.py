"""Files that callers keep here: each whole or not there, its owner's alone, within bounds.

Owns: the folder of contents and the table of what they are; quota, expiry, what a crash leaves.
May not know: HTTP, how a body is read; what a file is for.
Read next: `batches.py`, which makes some; `../routes/files.py`.

    FOLDER/files/file-…      contents, under their ids
    FOLDER/incoming/…        uploads; each is locked by the process that writes it
    FOLDER/work/…            what batches work on (`batches.py`)

An upload gets its name in the transaction that gives it its row, after its bytes and its folder
were synced. What has a name and no row was left by a crash between, and is removed.
"""

from __future__ import annotations

import fcntl
import hashlib
import os
import secrets
import sqlite3
import time
from collections.abc import Callable, Iterator, Sequence
from contextlib import suppress
from pathlib import Path
from typing import Any, BinaryIO

from firsthand.errors import InvalidRequest
from firsthand.files import sync
from firsthand.server.guard.refusal import Refused
from firsthand.server.stored.catalogue import Catalogue, disk_refused
from firsthand.values import dataclass

MAX_FILES = 10_000
LOOK_AGAIN_BYTES = 8 << 20  # of an upload, before what all of them take is counted again
_COLUMNS = "id, owner, name, purpose, num_bytes, sha256, created_at, expires_at"


@dataclass(frozen=True, slots=True)
class Bounds:
    """Of all files together, of one, and how long one stays that does not say it; 0: for good."""

    max_bytes: int = 4 << 30
    max_file_bytes: int = 200 << 20
    keep_s: int = 30 * 86400


@dataclass(frozen=True, slots=True)
class StoredFile:
    """A row. Times are seconds since the epoch."""

    id: str
    owner: str
    name: str
    purpose: str
    num_bytes: int
    sha256: str
    created_at: int
    expires_at: int | None

    def to_dict(self) -> dict[str, Any]:
        """In OpenAI's words."""
        return {
            "id": self.id,
            "object": "file",
            "bytes": self.num_bytes,
            "created_at": self.created_at,
            "expires_at": self.expires_at,
            "filename": self.name,
            "purpose": self.purpose,
            "status": "processed",
            "status_details": None,
        }


@dataclass(frozen=True, slots=True)
class Page:
    """What part of a list is wanted: behind the one with the id `after`."""

    limit: int
    after: str | None = None
    newest_first: bool = True


@dataclass(frozen=True, slots=True)
class Files:
    """Its folder is made by `make_folders`. Its methods wait for the disk."""

    folder: Path
    catalogue: Catalogue
    bounds: Bounds
    clock: Callable[[], float] = time.time

    def begin(self) -> Upload:
        """Raises Refused."""
        self.room_bytes()
        try:
            return Upload(self, self.folder / "incoming" / secrets.token_hex(16))
        except OSError as error:
            raise disk_refused(error) from error

    def find(self, owner: str, file_id: str) -> StoredFile:
        """Raises Refused, 404, also where it is somebody else's."""
        with self.catalogue.reading() as connection:
            return self.found(connection, owner, file_id)

    def found(
        self, connection: sqlite3.Connection, owner: str, file_id: str, field: str = "file_id"
    ) -> StoredFile:
        where = "id = ? AND owner = ? AND coalesce(expires_at > ?, 1)"
        row = connection.execute(
            f"SELECT {_COLUMNS} FROM files WHERE {where}", (file_id, owner, int(self.clock()))
        ).fetchone()
        if row is None:
            raise Refused(404, "no such file is here", "not_found", field)
        return StoredFile(*row)

    def open(self, owner: str, file_id: str) -> tuple[StoredFile, BinaryIO]:
        """Raises Refused."""
        found = self.find(owner, file_id)
        try:
            return found, self.path(file_id).open("rb")
        except OSError:  # deleted since
            raise Refused(404, "no such file is here", "not_found", "file_id") from None

    def list(self, owner: str, page: Page, purpose: str | None) -> tuple[list[StoredFile], bool]:
        """A page, and whether there are more. Raises Refused."""
        with self.catalogue.reading() as connection:
            where, values = "owner = ? AND coalesce(expires_at > ?, 1)", [owner, int(self.clock())]
            if purpose is not None:
                where, values = f"{where} AND purpose = ?", [*values, purpose]
            rows = page_of(connection, f"SELECT {_COLUMNS} FROM files", where, values, page)
        return [StoredFile(*row) for row in rows[: page.limit]], len(rows) > page.limit

    def delete(self, owner: str, file_id: str) -> None:
        """Raises Refused."""
        with self.catalogue.writing() as connection:
            self.found(connection, owner, file_id)
            connection.execute("DELETE FROM files WHERE id = ?", (file_id,))
        self._unlink(file_id)

    def add(
        self,
        connection: sqlite3.Connection,
        content: Path,
        owner: str,
        name: str,
        purpose: str,
        keep_s: int | None,
    ) -> StoredFile:
        """A file that is written and synced gets its id, in a transaction of the caller's."""
        now = int(self.clock())
        keep_s = self.bounds.keep_s if keep_s is None else keep_s
        with content.open("rb") as stream:
            num_bytes = os.fstat(stream.fileno()).st_size
            sha256 = hashlib.file_digest(stream, "sha256").hexdigest()
        file_id = f"file-{secrets.token_hex(12)}"
        expires_at = now + keep_s if keep_s else None
        row = StoredFile(file_id, owner, name, purpose, num_bytes, sha256, now, expires_at)
        try:
            content.rename(self.path(file_id))
            sync(self.folder / "files")
        except OSError as error:
            raise disk_refused(error) from error
        values = [getattr(row, column) for column in _COLUMNS.split(", ")]
        marks = ", ".join("?" * len(values))
        connection.execute(f"INSERT INTO files ({_COLUMNS}) VALUES ({marks})", values)
        return row

    def path(self, file_id: str) -> Path:
        return self.folder / "files" / file_id

    def room_bytes(self) -> int:
        """That more files may have. Raises Refused where there is no room."""
        with self.catalogue.reading() as connection:
            row = connection.execute("SELECT count(*), total(num_bytes) FROM files").fetchone()
        left = self.bounds.max_bytes - int(row[1]) - sum(self._taken())
        if row[0] >= MAX_FILES:
            message = f"this server keeps {MAX_FILES} files and no more; delete some"
            raise Refused(413, message, "storage_full", "file")
        if left <= 0:
            raise self.full()
        return left

    def check_size(self, num_bytes: int) -> None:
        """Raises Refused, 413."""
        if num_bytes > self.bounds.max_file_bytes:
            message = f"a file has at most {self.bounds.max_file_bytes} bytes"
            raise Refused(413, message, "file_too_large", "file")

    def full(self) -> Refused:
        message = f"all files together have {self.bounds.max_bytes} bytes; delete some"
        return Refused(413, message, "storage_full", "file")

    def _taken(self) -> Iterator[int]:
        """By uploads and by the work of batches, whose inputs are the files themselves."""
        for part in ("incoming", "work"):
            for entry in os.scandir(self.folder / part):
                with suppress(OSError):
                    status = entry.stat()
                    if status.st_nlink == 1:
                        yield status.st_size

    def sweep(self) -> None:
        """What has expired, and what a crash left behind, is removed."""
        now = int(self.clock())
        with self.catalogue.writing() as connection:
            connection.execute("DELETE FROM files WHERE expires_at <= ?", (now,))
            known = {row[0] for row in connection.execute("SELECT id FROM files")}
            lost = set(os.listdir(self.folder / "files")) - known
        for file_id in lost:
            self._unlink(file_id)
        for entry in os.scandir(self.folder / "incoming"):
            _remove_unlocked(Path(entry.path))

    def _unlink(self, file_id: str) -> None:
        with suppress(OSError):
            self.path(file_id).unlink()


class Upload:
    """A file that comes in: it is not there before it is kept. Close it, whatever became of it."""

    def __init__(self, files: Files, path: Path) -> None:
        self._files = files
        self._path = path
        descriptor = os.open(path, os.O_RDWR | os.O_CREAT | os.O_EXCL | os.O_CLOEXEC, 0o600)
        fcntl.flock(descriptor, fcntl.LOCK_EX | fcntl.LOCK_NB)
        self._descriptor = descriptor
        self._room = self._num_bytes = self._looked = 0

    def write(self, content: bytes) -> None:
        """Raises Refused, 413, before more than the bounds is on the disk; 503."""
        after = self._num_bytes + len(content)
        if not self._room or after - self._looked > LOOK_AGAIN_BYTES:
            self._room, self._looked = self._num_bytes + self._files.room_bytes(), after
        self._files.check_size(after)
        if after > self._room:
            raise self._files.full()
        self._num_bytes = after
        try:
            view = memoryview(content)
            while view:
                view = view[os.write(self._descriptor, view) :]
        except OSError as error:
            raise disk_refused(error) from error

    def keep(self, owner: str, name: str, purpose: str, keep_s: int | None) -> StoredFile:
        """Durable when it returns. Raises Refused."""
        if not self._num_bytes:
            raise Refused(400, "file: is empty", "invalid_value", "file")
        try:
            os.fsync(self._descriptor)
        except OSError as error:
            raise disk_refused(error) from error
        with self._files.catalogue.writing() as connection:
            return self._files.add(connection, self._path, owner, name, purpose, keep_s)

    def close(self) -> None:
        with suppress(OSError):
            self._path.unlink()
        os.close(self._descriptor)


def page_of(
    connection: sqlite3.Connection, select: str, where: str, values: Sequence[Any], page: Page
) -> list[Any]:
    """A page of rows, and one more where there are more. Raises Refused: `after` is not there."""
    table = select.rpartition(" ")[2]
    given = list(values)
    if page.after is not None:
        row = connection.execute(
            f"SELECT number FROM {table} WHERE id = ? AND owner = ?", (page.after, values[0])
        ).fetchone()
        if row is None:
            raise Refused(400, "after: no such id is here", "invalid_value", "after")
        where += f" AND number {'<' if page.newest_first else '>'} ?"
        given.append(row[0])
    order = "DESC" if page.newest_first else "ASC"
    query = f"{select} WHERE {where} ORDER BY number {order} LIMIT ?"
    return connection.execute(query, [*given, page.limit + 1]).fetchall()


def _remove_unlocked(path: Path) -> None:
    """An upload whose process is gone."""
    with suppress(OSError):
        descriptor = os.open(path, os.O_RDWR | os.O_CLOEXEC)
        try:
            fcntl.flock(descriptor, fcntl.LOCK_EX | fcntl.LOCK_NB)
            path.unlink()
        finally:
            os.close(descriptor)


def make_folders(folder: Path) -> None:
    """Raises InvalidRequest."""
    try:
        for part in ("files", "incoming", "work"):
            (folder / part).mkdir(mode=0o700, parents=True, exist_ok=True)
        sync(folder)
    except OSError as error:
        raise InvalidRequest("files_folder", f"{folder}: {error.strerror}") from error
