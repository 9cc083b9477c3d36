"""The same numbers under vLLM's names, so that dashboards and autoscalers made for it work.

Owns: how a metric gets the labels `model_name` and `engine`, and vLLM's words for an end.
May not know: which has an alias (`catalogue.py`), how anything is measured. The aliases are made
when somebody looks; nothing is counted twice.
Read next: `metrics.py`.
"""

from __future__ import annotations

from collections.abc import Iterator

from prometheus_client import CollectorRegistry, Metric
from prometheus_client.samples import Sample

from firsthand.observe.catalogue import CATALOGUE
from firsthand.observe.entry import Alias

ENGINE = "0"
_PLAIN = frozenset(("le",))
_REASONS = {"length": "length", "context": "length", "error": "error"}
_REASONS |= {"cancelled": "abort", "deadline": "abort"}


class VllmAliases:
    """A collector over the others of the same registry."""

    def __init__(self, registry: CollectorRegistry) -> None:
        self._registry = registry
        self._is_looking = False

    def describe(self) -> list[Metric]:
        return []

    def collect(self) -> Iterator[Metric]:
        if self._is_looking:  # our own turn, in the look at the others
            return
        self._is_looking = True
        try:
            found = list(self._registry.collect())
        finally:
            self._is_looking = False
        for metric in found:
            entry = CATALOGUE.get(metric.name)
            for alias in entry.aliases if entry else ():
                yield _renamed(metric, alias)


def _renamed(metric: Metric, alias: Alias) -> Metric:
    made = Metric(alias.name, f"As {metric.name}", metric.type)
    sums: dict[tuple[str, tuple[tuple[str, str], ...]], float] = {}
    for sample in metric.samples:
        if sample.name.endswith("_created") or not _is_meant(sample, alias):
            continue
        labels = {"model_name": sample.labels["model"], "engine": ENGINE}
        labels |= {name: sample.labels[name] for name in _PLAIN & sample.labels.keys()}
        for ours, theirs in alias.keep:
            own = sample.labels[ours]
            labels[theirs] = _REASONS.get(own, "stop") if ours == "finish_reason" else own
        key = (alias.name + sample.name[len(metric.name) :], tuple(labels.items()))
        sums[key] = sums.get(key, 0.0) + sample.value
    for (name, labels_of), value in sums.items():
        made.add_sample(name, dict(labels_of), value)
    return made


def _is_meant(sample: Sample, alias: Alias) -> bool:
    return all(sample.labels.get(name) == value for name, value in alias.where)
