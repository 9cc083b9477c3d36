"""The folder of releases: content by its hash, releases by number, which one is current.

Owns: the layout, the pointer, the lock, which release a word means, what may be removed.
May not know: servers, engines.
Read next: `record.py`, `history.py`; `staging.py`, which fills it.
Seen in: `firsthand lab rollback-target`.

    STORE/objects/AB/HASH        contents, read only, each once
    STORE/releases/10/…          a release; its files are links to objects
    STORE/current                a link to the release that is served
    STORE/drills/10.json, .md    the report of its last drill
    STORE/history.jsonl          what happened
    STORE/lock, filling          held by whoever changes what is current, or what is there

A link is replaced by another in one step, so whoever follows it finds one whole release.
"""

from __future__ import annotations

import errno
import os
import shutil
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import Final

from firsthand.errors import CapacityExceeded, CheckpointError, InvalidRequest, ModelNotFound
from firsthand.files import sync
from firsthand.release.history import History
from firsthand.release.record import Release, is_release, read_release
from firsthand.values import dataclass
from firsthand.weights.places import locked

MIN_ID_CHARS: Final = 6
MAX_DIGITS: Final = 9
_CURRENT: Final = "current"


@dataclass(frozen=True, slots=True)
class Store:
    root: Path

    @property
    def history(self) -> History:
        return History(self.root / "history.jsonl")

    @property
    def releases(self) -> Path:
        return self.root / "releases"

    @property
    def drills(self) -> Path:
        return self.root / "drills"

    @contextmanager
    def changing(self) -> Iterator[None]:
        """What is current may change. Raises InvalidRequest at once while another has it."""
        with self._alone("lock"):
            yield

    @contextmanager
    def filling(self) -> Iterator[None]:
        """Contents come or go, which may take long; a rollback does not wait for that. Raises
        InvalidRequest at once while another has it."""
        with self._alone("filling"):
            yield

    @contextmanager
    def _alone(self, name: str) -> Iterator[None]:
        def busy() -> None:
            raise InvalidRequest("store", f"{self.root}: another command is changing it")

        try:
            self.releases.mkdir(parents=True, exist_ok=True)
        except OSError as error:
            raise InvalidRequest("store", f"{self.root}: {error.strerror}") from None
        with locked(self.root / name, busy):
            yield

    def folder(self, number: int) -> Path:
        return self.releases / str(number)

    def numbers(self) -> list[int]:
        """Of the releases that are there, ascending."""
        if not self.releases.is_dir():
            return []
        names = [path.name for path in self.releases.iterdir() if is_release(path)]
        return sorted(int(name) for name in names if _is_number(name))

    def junk(self) -> list[str]:
        """Names beside the releases that are none; hidden ones are ours, and unfinished."""
        if not self.releases.is_dir():
            return []
        names = [path.name for path in self.releases.iterdir()]
        return sorted(name for name in names if not _is_number(name) and name[:1] != ".")

    def read(self, number: int) -> Release:
        """Raises ModelNotFound, CheckpointError."""
        folder = self.folder(number)
        if not is_release(folder):
            there = ", ".join(map(str, self.numbers())) or "none"
            raise ModelNotFound(f"release {number} is not in {self.root}; there are: {there}")
        release = read_release(folder)
        if release.number != number:
            raise CheckpointError(str(folder), f"is release {release.number} under another number")
        return release

    def find(self, word: str) -> Release:
        """By its number, `latest`, `current`, or the beginning of its hash. Raises ModelNotFound,
        CheckpointError."""
        numbers = self.numbers()
        if word == "latest" and numbers:
            return self.read(numbers[-1])
        current = self.current()
        if word == _CURRENT and current is not None:
            return self.read(current)
        if _is_number(word):
            return self.read(int(word))
        if len(word) >= MIN_ID_CHARS:
            found = [one for one in map(self.read, numbers) if one.id.startswith(word)]
            if found:
                return found[-1]
        there = ", ".join(map(str, numbers)) or "none"
        raise ModelNotFound(f"{word[:80]!r} is no release of {self.root}; there are: {there}")

    def current(self) -> int | None:
        try:
            name = os.path.basename(os.readlink(self.root / _CURRENT))
        except OSError:
            return None
        return int(name) if _is_number(name) else None

    def previous(self) -> int | None:
        """What a rollback returns to: the release that was current before this one."""
        current = self.current()
        way = self.history.served(current)
        if way and way[-1] == current:
            way.pop()
        return way[-1] if way else None

    def point(self, number: int) -> None:
        """From now on it is the current one."""
        link = self.root / f".{_CURRENT}.{os.urandom(4).hex()}"
        os.symlink(Path("releases", str(number)), link)
        os.replace(link, self.root / _CURRENT)
        sync(self.root)

    def kept(self, num_last: int) -> set[int]:
        """What a clean-up leaves: the current one, what a rollback returns to, the last ones, and
        whatever was staged after the current one."""
        numbers = self.numbers()
        current, previous = self.current(), self.previous()
        newer = [number for number in numbers if current is None or number > current]
        named = [number for number in (current, previous) if number is not None]
        return {*named, *newer, *numbers[len(numbers) - num_last :]} & set(numbers)

    def collect(self, num_last: int) -> tuple[list[int], int]:
        """Remove the other releases, then contents that none has. The numbers, and bytes freed."""
        kept = self.kept(num_last)
        gone = [number for number in self.numbers() if number not in kept]
        for number in gone:
            self._remove(self.folder(number))
        for left in self.releases.glob(".*"):  # of a stage that was killed
            self._remove(left)
        freed_bytes = 0
        for path in (self.root / "objects").glob("*/*"):
            status = path.stat()
            if status.st_nlink == 1:
                path.unlink()
                freed_bytes += status.st_size
        return gone, freed_bytes

    def _remove(self, folder: Path) -> None:
        """Under another name first, so that no half release is ever seen."""
        hidden = folder.with_name(f".gone.{folder.name}.{os.urandom(4).hex()}")
        os.rename(folder, hidden)
        shutil.rmtree(hidden)

    def place(self, source: Path, sha256: str, target: Path) -> None:
        """A file of a release: a link to its content, which is copied once. Raises OSError."""
        held = self.root / "objects" / sha256[:2] / sha256
        if not held.exists():
            held.parent.mkdir(parents=True, exist_ok=True)
            partial = held.with_name(f".{sha256}.{os.urandom(4).hex()}.partial")
            try:
                shutil.copyfile(source, partial)
                os.chmod(partial, 0o444)
                sync(partial)
                os.replace(partial, held)
            except OSError as error:
                if error.errno != errno.ENOSPC:
                    raise
                message = f"{self.root}: no room on the disk for {source.name}"
                raise CapacityExceeded(message) from None
            finally:
                partial.unlink(missing_ok=True)
        target.parent.mkdir(parents=True, exist_ok=True)
        os.link(held, target)


def _is_number(name: str) -> bool:
    return len(name) <= MAX_DIGITS and name.isascii() and name.isdigit() and name[0] != "0"
