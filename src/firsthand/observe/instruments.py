"""An entry of the catalogue becomes a metric: nothing else makes one.

Owns: how kinds, names and labels reach the library that exposes them.
May not know: what is counted.
Read next: `catalogue.py`.

A name that the catalogue does not have, or has as another kind, is a KeyError: a fault of ours,
which shows when a server is built.
"""

from __future__ import annotations

from collections.abc import Iterable, Sequence
from itertools import accumulate

from prometheus_client import CollectorRegistry, Counter, Gauge, Histogram, Metric
from prometheus_client.core import CounterMetricFamily, GaugeMetricFamily, HistogramMetricFamily

from firsthand.observe.catalogue import CATALOGUE
from firsthand.observe.entry import Entry, Kind


def counter(name: str, registry: CollectorRegistry) -> Counter:
    entry = _find(name, Kind.COUNTER)
    return Counter(name, entry.meaning, entry.label_names, registry=registry)


def gauge(name: str, registry: CollectorRegistry) -> Gauge:
    entry = _find(name, Kind.GAUGE)
    return Gauge(name, entry.meaning, entry.label_names, registry=registry)


def histogram(name: str, registry: CollectorRegistry) -> Histogram:
    entry = _find(name, Kind.HISTOGRAM)
    return Histogram(
        name, entry.meaning, entry.label_names, registry=registry, buckets=entry.buckets
    )


def read(name: str, samples: Iterable[tuple[Sequence[str], float]]) -> Metric:
    """A counter or gauge that is kept elsewhere, as of now: (values of its labels, value)."""
    entry = CATALOGUE[name]
    family: CounterMetricFamily | GaugeMetricFamily
    if entry.kind is Kind.COUNTER:
        family = CounterMetricFamily(name, entry.meaning, labels=entry.label_names)
    else:
        entry = _find(name, Kind.GAUGE)
        family = GaugeMetricFamily(name, entry.meaning, labels=entry.label_names)
    for values, value in samples:
        family.add_metric(list(values), float(value))
    return family


def read_histogram(
    name: str, samples: Iterable[tuple[Sequence[str], Sequence[int], float]]
) -> Metric:
    """The same of a histogram: (values of its labels, how many in each bucket, their sum)."""
    entry = _find(name, Kind.HISTOGRAM)
    family = HistogramMetricFamily(name, entry.meaning, labels=entry.label_names)
    bounds = (*(repr(float(bound)) for bound in entry.buckets), "+Inf")
    for values, counts, total in samples:
        buckets = list(zip(bounds, map(float, accumulate(counts)), strict=True))
        family.add_metric(list(values), buckets, total)
    return family


def read_one(name: str, value: float) -> Metric:
    """The same of a metric without labels."""
    return read(name, (((), value),))


def _find(name: str, kind: Kind) -> Entry:
    entry = CATALOGUE[name]
    if entry.kind is not kind:
        raise KeyError(f"{name} is a {entry.kind}, no {kind}")
    return entry
