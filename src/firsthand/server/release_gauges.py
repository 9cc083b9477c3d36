"""What a scrape is told of the stores whose releases are served.

Owns: which stores those are. May not know: what a drill is.
Read next: `../release/drill_age.py`.
"""

from __future__ import annotations

from collections.abc import Iterator
from datetime import UTC, datetime

from prometheus_client import Metric

from firsthand.generation.registry import Registry
from firsthand.observe.instruments import read
from firsthand.release.drill_age import drill_age_s
from firsthand.release.engines import store_of
from firsthand.release.record import release_folder
from firsthand.release.store import Store
from firsthand.values import dataclass


@dataclass(frozen=True, slots=True, eq=False)
class ReleaseGauges:
    """Asked at each scrape."""

    models: Registry

    def age_s(self) -> float | None:
        """Of the store whose last drill is the oldest; None: no release of a store is served."""
        folders = [release_folder(one.entry.service.model) for one in self.models.members]
        stores = {store_of(folder) for folder in folders if folder is not None}
        ages = [drill_age_s(Store(store), datetime.now(UTC)) for store in stores]
        return max((age for age in ages if age is not None), default=None)

    def collect(self) -> Iterator[Metric]:
        age_s = self.age_s()
        samples: list[tuple[tuple[str, ...], float]] = [] if age_s is None else [((), age_s)]
        yield read("firsthand_release_drill_age_seconds", samples)
