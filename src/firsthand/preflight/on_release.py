"""The items about a release of a store: that it is whole, who stands for it, and the way back.

Owns: these questions. May not know: how a drill is carried out, engines.
Read next: `on_disk.py`; `../release/`.
"""

from __future__ import annotations

from collections.abc import Iterator
from datetime import UTC, datetime
from pathlib import Path

from firsthand.config import read_environment
from firsthand.near_names import near_names
from firsthand.preflight.items import Item, LeftOut, Wrong
from firsthand.release.drill_age import LONGEST_S
from firsthand.release.drill_report import last_drill, why_old
from firsthand.release.engines import python_of, store_of
from firsthand.release.record import Release, read_release, verify_release
from firsthand.release.store import Store
from firsthand.values import dataclass
from firsthand.version import VERSION
from firsthand.weights.catalogue import resolve
from firsthand.weights.manifest import read_manifest
from firsthand.weights.sums import Sums
from firsthand.weights.verifying import check_signed


def signed(model: str) -> Item:
    """Of any model."""

    def ask() -> str:
        trusted = read_environment().trusted_keys
        if trusted is None:
            raise LeftOut("FIRSTHAND_TRUSTED_KEYS names no keys")
        path = resolve(model, read_environment()).path
        check_signed(path, read_manifest(path), trusted)
        return f"by a key of {trusted}"

    todo = "do not deploy what nobody stands for: firsthand manifest sign MODEL --key FILE"
    return Item("manifest is signed by a trusted key", todo, ask)


@dataclass(frozen=True, slots=True)
class OnRelease:
    """`folder` is that of the release. A drill counts for `drill_counts_s`."""

    folder: Path
    drill_counts_s: float = LONGEST_S

    def items(self) -> Iterator[Item]:
        drill = "firsthand release drill STORE, and read its report"
        yield Item("release is whole", "stage it anew", self._whole)
        yield Item(
            "engine of the release is there",
            "stage a release with that engine's own command",
            self._engine,
        )
        yield Item("last drill of the release passed", drill, self._drilled)
        yield Item(
            "the way back is whole", "stage what was served before, and promote it", self._back
        )
        yield Item("names are not taken for each other", "give one another name", self._names)

    @property
    def _store(self) -> Store:
        return Store(store_of(self.folder))

    @property
    def _release(self) -> Release:
        return read_release(self.folder)

    def _whole(self) -> str:
        manifest = verify_release(self.folder, self._release, Sums(None))
        return f"release {self._release.number}, {len(manifest.files)} files"

    def _engine(self) -> str:
        version = self._release.engine_version
        if version == VERSION:
            return f"{version}, this one"
        return f"{version}: {python_of(self._store.root, version)}"

    def _drilled(self) -> str:
        release = self._release
        found = last_drill(self._store, release)
        if found is None:
            if len(self._store.history.served(self._store.current())) < 2:
                raise LeftOut("there is no earlier release to return to")
            raise Wrong("it has had none")
        if found.get("passed") is not True:
            raise Wrong(f"it failed at {found.get('at')}")
        old = why_old(found, self.drill_counts_s, datetime.now(UTC))
        if old is not None:
            raise Wrong(old)
        return f"at {found.get('at')}, back to {found.get('back_to')}"

    def _back(self) -> str:
        store, previous = self._store, self._store.previous()
        if store.current() != self._release.number:
            previous = store.current()
        if previous is None:
            raise LeftOut("there is no earlier release to return to")
        manifest = verify_release(store.folder(previous), store.read(previous), Sums(None))
        return f"release {previous}, {len(manifest.files)} files"

    def _names(self) -> str:
        store = self._store
        names = {store.read(number).name for number in store.numbers()}
        for one, other in near_names(names):
            raise Wrong(f"{one} and {other} are one character apart")
        return ", ".join(sorted(names))
