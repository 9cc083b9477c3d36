"""The same numbers under vLLM's names, so that dashboards and autoscalers made for it work.

Owns: which of our metrics stands for which of vLLM's, with the labels `model_name` and `engine`.
May not know: how anything is measured. The aliases are made when somebody looks; nothing is
counted twice.
Read next: `metrics.py`.
"""

from __future__ import annotations

from collections.abc import Iterator

from prometheus_client import CollectorRegistry, Metric
from prometheus_client.samples import Sample

from firsthand.values import dataclass

ENGINE = "0"
OWN = "firsthand_"
_PLAIN = frozenset(("le",))
_REASONS = {"length": "length", "context": "length", "error": "error"}
_REASONS |= {"cancelled": "abort", "deadline": "abort"}


@dataclass(frozen=True, slots=True)
class Alias:
    """`name` takes the samples of ours whose labels are `where`, added up over all other labels
    but the model, a histogram's `le`, and `keep` (ours → theirs, a reason of an end)."""

    name: str
    where: tuple[tuple[str, str], ...] = ()
    keep: tuple[tuple[str, str], ...] = ()


ALIASES: dict[str, tuple[Alias, ...]] = {
    "firsthand_requests_running": (Alias("vllm:num_requests_running"),),
    "firsthand_requests_waiting": (Alias("vllm:num_requests_waiting"),),
    "firsthand_kv_blocks_used_ratio": (Alias("vllm:kv_cache_usage_perc"),),
    "firsthand_preemptions": (Alias("vllm:num_preemptions"),),
    "firsthand_tokens": (
        Alias("vllm:prompt_tokens", (("phase", "prompt"),)),
        Alias("vllm:generation_tokens", (("phase", "generation"),)),
    ),
    "firsthand_prefix_cache_tokens": (
        Alias("vllm:prefix_cache_queries"),
        Alias("vllm:prefix_cache_hits", (("result", "hit"),)),
    ),
    "firsthand_answers": (
        Alias("vllm:request_success", keep=(("finish_reason", "finished_reason"),)),
    ),
    "firsthand_ttft_seconds": (Alias("vllm:time_to_first_token_seconds"),),
    "firsthand_inter_token_seconds": (Alias("vllm:inter_token_latency_seconds"),),
    "firsthand_request_phase_seconds": (
        Alias("vllm:e2e_request_latency_seconds", (("phase", "total"),)),
        Alias("vllm:request_queue_time_seconds", (("phase", "queue"),)),
        Alias("vllm:request_prefill_time_seconds", (("phase", "prefill"),)),
        Alias("vllm:request_decode_time_seconds", (("phase", "decode"),)),
    ),
    "firsthand_request_prompt_tokens": (Alias("vllm:request_prompt_tokens"),),
    "firsthand_request_generation_tokens": (Alias("vllm:request_generation_tokens"),),
}


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
            for alias in ALIASES.get(metric.name, ()):
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
            labels[theirs] = _REASONS.get(sample.labels[ours], "stop")
        key = (alias.name + sample.name[len(metric.name) :], tuple(labels.items()))
        sums[key] = sums.get(key, 0.0) + sample.value
    for (name, labels_of), value in sums.items():
        made.add_sample(name, dict(labels_of), value)
    return made


def _is_meant(sample: Sample, alias: Alias) -> bool:
    return all(sample.labels.get(name) == value for name, value in alias.where)
