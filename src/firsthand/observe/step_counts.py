"""What each step counts for: sums and distributions that cost a step some microseconds.

Owns: which fact of a step counts for which metric, per model.
May not know: names' forms and buckets (`catalogue.py`), who asks.
Read next: `metrics.py`; `../engine/facts.py`.

A small model takes thousands of steps a second, so nothing is looked up or locked here: one thread
counts, and the library's form of it is made when somebody asks.
"""

from __future__ import annotations

from bisect import bisect_left
from collections.abc import Callable, Iterable, Iterator

from prometheus_client import Metric

from firsthand.engine.facts import StepFacts
from firsthand.observe.catalogue import CATALOGUE
from firsthand.observe.instruments import read, read_histogram
from firsthand.observe.labels import CLASSES, STEP_PHASES

FADES = 0.998  # what a step counts for after the next one: some 500 steps are "lately"


class Distribution:
    """Values by the buckets of a metric: the number in each (the last has all that are above), and
    their sum."""

    def __init__(self, name: str) -> None:
        self.bounds = CATALOGUE[name].buckets
        self.counts = [0] * (len(self.bounds) + 1)
        self.sum = 0.0

    def add(self, value: float) -> None:
        self.counts[bisect_left(self.bounds, value)] += 1
        self.sum += value


class StepCounts:
    """Of one model."""

    def __init__(self) -> None:
        self.phases = [Distribution("firsthand_step_seconds") for _ in STEP_PHASES]
        self.batch = Distribution("firsthand_batch_size")
        self.iteration = Distribution("firsthand_iteration_tokens")
        self.microbatch = Distribution("firsthand_microbatch_size")
        self.microbatch_wait = Distribution("firsthand_microbatch_wait_seconds")
        self.tokens = dict.fromkeys(("prompt", "computed", "generation", "recomputed"), 0)
        self.by_class = [0] * len(CLASSES)
        self.lately = [0.0] * len(CLASSES)
        self.preempted = self.errors = self.attempts = self.failed = 0
        self.speculations = self.accepted = self.rejected = 0

    def shares(self) -> list[float]:
        """Of the classes, lately."""
        whole = sum(self.lately)
        return [one / whole if whole else 0.0 for one in self.lately]

    def count(self, facts: StepFacts) -> None:
        forward, sample = facts.forward_ms, facts.sample_ms
        spent_ms = (facts.plan_ms, facts.run_ms, forward, sample, facts.commit_ms)
        for phase, one_ms in zip(self.phases, spent_ms, strict=True):
            phase.add(one_ms * 1e-3)
        num_tokens, planned, tokens = facts.num_tokens, facts.planned, self.tokens
        self.batch.add(facts.num_sequences)
        self.iteration.add(num_tokens)
        tokens["computed"] += num_tokens
        tokens["generation"] += facts.num_drawn
        tokens["recomputed"] += planned.num_recomputed
        for index, served in enumerate(planned.served_by_class):
            self.by_class[index] += served
            self.lately[index] = self.lately[index] * FADES + served
        for batch in facts.batches:
            self.microbatch.add(batch.size)
            self.microbatch_wait.add(batch.wait_s)
        for guess in facts.guesses:
            self.speculations += 1
            self.accepted += guess.num_accepted
            self.rejected += guess.num_guesses - guess.num_accepted
        self.preempted += planned.num_preempted
        if facts.error is not None:
            self.errors += 1
            self.attempts += facts.num_attempts
            self.failed += facts.num_failed


class StepMetrics:
    """A collector over the counts of all models; a model that comes back counts on."""

    def __init__(self) -> None:
        self._models: dict[str, StepCounts] = {}

    def of(self, model: str) -> StepCounts:
        return self._models.setdefault(model, StepCounts())

    def collect(self) -> Iterator[Metric]:
        models = self._models.items()
        yield read_histogram(
            "firsthand_step_seconds",
            [
                ((model, phase), one.counts, one.sum)
                for model, found in models
                for phase, one in zip(STEP_PHASES, found.phases, strict=True)
            ],
        )
        for name, pick in _DISTRIBUTIONS:
            parts = [(model, pick(found)) for model, found in models]
            yield read_histogram(name, [((m,), one.counts, one.sum) for m, one in parts])
        for name, rows in _VALUES:
            found = [((m, *labels), n) for m, one in models for labels, n in rows(one)]
            yield read(name, found)


_DISTRIBUTIONS: tuple[tuple[str, Callable[[StepCounts], Distribution]], ...] = (
    ("firsthand_batch_size", lambda one: one.batch),
    ("firsthand_iteration_tokens", lambda one: one.iteration),
    ("firsthand_microbatch_size", lambda one: one.microbatch),
    ("firsthand_microbatch_wait_seconds", lambda one: one.microbatch_wait),
)
_Rows = Iterable[tuple[tuple[str, ...], float]]
_VALUES: tuple[tuple[str, Callable[[StepCounts], _Rows]], ...] = (
    ("firsthand_tokens", lambda one: [((kind,), n) for kind, n in one.tokens.items()]),
    (
        "firsthand_class_tokens",
        lambda one: [((name,), n) for name, n in zip(CLASSES, one.by_class, strict=True)],
    ),
    (
        "firsthand_class_share_ratio",
        lambda one: [((name,), n) for name, n in zip(CLASSES, one.shares(), strict=True)],
    ),
    ("firsthand_speculations", lambda one: [((), one.speculations)]),
    (
        "firsthand_speculated_tokens",
        lambda one: [(("accepted",), one.accepted), (("rejected",), one.rejected)],
    ),
    ("firsthand_preemptions", lambda one: [(("memory",), one.preempted)]),
    ("firsthand_step_errors", lambda one: [((), one.errors)]),
    ("firsthand_step_attempts", lambda one: [((), one.attempts)]),
    ("firsthand_step_failed_sequences", lambda one: [((), one.failed)]),
)
