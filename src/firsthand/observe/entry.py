"""The form of the catalogue: what is said of each metric.

Owns: `Entry` and the three ways to make one, `Label`, `Alias`, the buckets. May not know: any
metric.
Read next: `catalogue.py`, all of them.
"""

from __future__ import annotations

from enum import StrEnum

from firsthand.values import dataclass

# Of waiting and answering: from a small model's gap between two tokens to an hour in a queue.
LATENCY_BUCKETS_S = (
    *(0.001, 0.005, 0.01, 0.02, 0.04, 0.06, 0.08, 0.1, 0.25, 0.5, 0.75, 1.0),
    *(2.5, 5.0, 7.5, 10.0, 20.0, 40.0, 80.0, 160.0, 640.0, 2560.0),
)
STEP_BUCKETS_S = (0.0005, 0.001, 0.002, 0.005, 0.01, 0.02, 0.05, 0.1, 0.2, 0.5, 1.0, 2.0, 5.0)
ANSWER_BUCKETS = (1, 2, 5, 10, 20)
BATCH_BUCKETS = (1, 2, 4, 8, 16, 32, 64, 128, 256)
TOKEN_BUCKETS = (1, 2, 5, 10, 20, 50, 100, 200, 500, 1000, 2000, 5000, 10_000, 50_000)


class Kind(StrEnum):
    COUNTER = "counter"
    GAUGE = "gauge"
    HISTOGRAM = "histogram"


class When(StrEnum):
    """Under which condition a metric is there at all."""

    ALWAYS = "always"
    CHECKED = "where golden tokens are on record"
    GPU = "where there is a GPU, with the extra `gpu`"
    RELEASE = "while a release of a store is served that could be rolled back, or was drilled"
    CANARY = "while a canary has a share"
    CASCADE = "where a cascade is served"
    CLUSTER = "where replicas answer"
    SCORING = "once a text was embedded or scored"


@dataclass(frozen=True, slots=True)
class Label:
    """`values` are all that it can have; none: they are not a list, and `meaning` bounds them."""

    name: str
    meaning: str
    values: tuple[str, ...] = ()


@dataclass(frozen=True, slots=True)
class Alias:
    """`name` takes the samples of ours whose labels are `where`, added up over all other labels
    but the model, a histogram's `le`, and `keep` (ours → theirs)."""

    name: str
    where: tuple[tuple[str, str], ...] = ()
    keep: tuple[tuple[str, str], ...] = ()


@dataclass(frozen=True, slots=True)
class Entry:
    """One metric. `name` is without the `_total` of a counter. `unit` "" is a plain number, or a
    yes (1) or no (0). `from_library`: another's collector makes it, under a name of its own."""

    name: str
    kind: Kind
    unit: str
    meaning: str
    labels: tuple[Label, ...] = ()
    buckets: tuple[float, ...] = ()
    aliases: tuple[Alias, ...] = ()
    when: When = When.ALWAYS
    from_library: bool = False

    @property
    def exposed(self) -> str:
        """The name in a query; of a histogram, without `_bucket`, `_sum` and `_count`."""
        return f"{self.name}_total" if self.kind is Kind.COUNTER else self.name

    @property
    def label_names(self) -> tuple[str, ...]:
        return tuple(label.name for label in self.labels)


@dataclass(frozen=True, slots=True)
class Section:
    """Entries that are looked at together: one part of the page, one row of the dashboard."""

    title: str
    entries: tuple[Entry, ...]


def counted(
    name: str,
    unit: str,
    meaning: str,
    *labels: Label,
    aliases: tuple[Alias, ...] = (),
    when: When = When.ALWAYS,
) -> Entry:
    return Entry(name, Kind.COUNTER, unit, meaning, labels, aliases=aliases, when=when)


def gauged(
    name: str,
    unit: str,
    meaning: str,
    *labels: Label,
    aliases: tuple[Alias, ...] = (),
    when: When = When.ALWAYS,
) -> Entry:
    return Entry(name, Kind.GAUGE, unit, meaning, labels, aliases=aliases, when=when)


def spread(
    name: str,
    unit: str,
    meaning: str,
    buckets: tuple[float, ...],
    *labels: Label,
    aliases: tuple[Alias, ...] = (),
    when: When = When.ALWAYS,
) -> Entry:
    return Entry(name, Kind.HISTOGRAM, unit, meaning, labels, buckets, aliases, when)
