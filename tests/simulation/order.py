"""Whose turn it is: the rules of `scheduling/policy.py`, held against what happened.

Owns: who waits, as the observer counts it; the invariants I6 and I7.
May not know: credits, queues, blocks: the scheduler's state. It sees who came and who did not.
Read next: `world.py`.
"""

from __future__ import annotations

from collections import Counter
from collections.abc import Set
from dataclasses import dataclass, field

from firsthand.request import MAX_SEED, Request
from tests.simulation.model import Alone, Violation
from tests.simulation.workload import Setup


@dataclass(slots=True, eq=False)
class Life:
    """One sequence as the observer sees it. `position` is that of its next token."""

    sequence_id: int
    index: int
    request: Request = field(repr=False)
    alone: Alone = field(repr=False)
    arrival_s: float
    max_stored: int
    class_index: int = 0
    seed: int = field(init=False, repr=False)
    position: int = field(init=False)
    computed: int = 0
    lost: int = 0  # tokens that were computed before an eviction
    num_blocks: int = 0
    num_preemptions: int = 0
    num_looks: int = 0
    step_tokens: int = 0
    admitted: int = 0
    first_step: int = 0
    queued: bool = False
    released: bool = False  # it followed the first of its request, and waits for itself now
    expired: bool = False
    ended: bool = False
    fault: str | None = None
    bad_at: int = -1
    bad: str = ""
    looks_back: bool = field(init=False, repr=False)
    followers: list[Life] = field(default_factory=list, repr=False)

    def __post_init__(self) -> None:
        self.seed = (self.request.seed + self.index) & MAX_SEED
        self.looks_back = self.request.sampling.needs_history
        self.position = len(self.request.prompt_token_ids)

    @property
    def started(self) -> bool:
        return self.released or self.num_preemptions > 0


class Order:
    """`queue` and `unqueue` as it happens; `admitted` and `waits` once per plan."""

    def __init__(self, setup: Setup, seen: Counter[str]) -> None:
        self._setup = setup
        self._is_fair = not setup.kind.startswith("static")
        self._ageing_s = setup.policy.ageing_s
        self._seen = seen
        self.fresh: list[dict[int, Life]] = [{}, {}, {}]
        self.started: list[dict[int, Life]] = [{}, {}, {}]
        self.num_admitted = 0
        self._num_plans = 0
        self._owed = [0.0, 0.0, 0.0]
        self._finds = setup.kind == "shared"  # then it cannot be told what a sequence needs
        self._num_queued = 0
        self._first: Life | None = None
        self._starts_by = 0
        self._batch_from = 0  # nobody who came later belongs to the batch that runs
        self._class_tokens = [0, 0, 0]
        self._num_by_tenant: Counter[tuple[int, str]] = Counter()
        self._tenant_tokens: Counter[tuple[int, str]] = Counter()

    @property
    def num_queued(self) -> int:
        return self._num_queued

    def queue(self, life: Life) -> None:
        where = self.started if life.started else self.fresh
        where[life.class_index][life.sequence_id] = life
        life.queued = True
        self._num_queued += 1
        self._num_by_tenant[life.class_index, life.request.tenant] += 1
        self.num_admitted += 1  # one row of numbers, for those that come and those that go in
        life.first_step = self.num_admitted

    def unqueue(self, life: Life) -> None:
        where = self.started if life.started else self.fresh
        del where[life.class_index][life.sequence_id]
        life.queued = False
        self._num_queued -= 1
        self._num_by_tenant[life.class_index, life.request.tenant] -= 1

    def admitted(
        self, come: list[Life], gone: list[Life], running: dict[int, Life], now_s: float
    ) -> None:
        """Of one plan: who began to run, who had to leave; `running` are all that run now."""
        if gone:
            self._youngest_gone(gone, come, running)
        if not come:
            return
        if not self._is_fair:
            self._joins_no_batch(come, running)
            return
        # One that gave up its place in this very plan is next in line from the next one on.
        overdue = self._first_overdue(now_s, {life.sequence_id for life in gone})
        self._first = None  # whoever came was due before the first in line: the count begins again
        for life in come:
            if overdue is not None and not (
                self._is_overdue(life, now_s) and life.sequence_id < overdue.sequence_id
            ):
                raise Violation("I6", f"{life} is admitted past {overdue}, which is overdue")
            if not life.started:
                self._passes_nobody(life, come, now_s)

    def waits(
        self,
        served: list[int],
        hungry: list[bool],
        num_free: int,
        running: dict[int, Life],
        now_s: float,
        *,
        is_evicting: bool,
    ) -> None:
        """After a plan: `served` tokens by class are in it, sequences of the `hungry` classes have
        a gap left, `num_free` blocks are free. Those that still wait must have a reason."""
        self._num_plans += 1
        if self._is_fair:
            self._owe(served, hungry)
        if not self._num_queued:
            self._first = None
            return
        if self._setup.saturated and all(self.fresh):
            self._measure(running)
        if not self._is_fair:
            return
        if is_evicting:  # what was computed is lost: the count begins again
            self._first = None
            return
        first = self._first_overdue(now_s)
        if first is None or first is not self._first:
            self._first = first
            left = [life.max_stored - life.computed for life in running.values()]
            self._starts_by = self._num_plans + max(left, default=0) + 1
            self._seen["overdue"] += first is not None
        elif self._num_plans > self._starts_by:
            raise Violation("I6", f"{first} is first in line and overdue, and does not start")
        budget = self._setup.max_step_tokens
        if sum(served) < budget and len(running) < self._setup.max_sequences:
            self._fits_nobody(num_free, running)

    def shares_achieved(self) -> None:
        """At the end, of a saturated workload: classes and tenants had what they are due."""
        total, shares = sum(self._class_tokens), self._setup.policy.shares
        if total < 30 * self._setup.max_step_tokens:
            return
        self._seen["shares measured"] += 1
        for tokens, share in zip(self._class_tokens, shares, strict=True):
            due = total * share / sum(shares)
            if tokens < 0.8 * due - 2 * self._setup.max_step_tokens:
                raise Violation("I7", f"a share of {share} in {shares} had {tokens} of {total}")
        spread = 2 * self._setup.max_sequences * self._setup.context
        for index in range(3):
            first, second = (self._tenant_tokens[index, tenant] for tenant in ("t0", "t1"))
            if abs(first - second) > spread:
                raise Violation("I7", f"in class {index} tenants had {first} and {second}")

    # ---- rules ---------------------------------------------------------------------------------

    def _is_overdue(self, life: Life, now_s: float) -> bool:
        waited_s = now_s - life.arrival_s
        return waited_s >= (life.class_index + 1) * self._ageing_s

    def _first_overdue(self, now_s: float, but: Set[int] = frozenset()) -> Life | None:
        """The earliest arrival of all that are overdue. In a class nobody waited longer."""
        first: Life | None = None
        for fresh, started in zip(self.fresh, self.started, strict=True):
            keys = [min(started)] if started else []
            if but:
                keys = sorted(started.keys() - but)[:1]
            if fresh:
                keys.append(next(iter(fresh)))
            for key in keys:
                life = fresh.get(key) or started[key]
                if self._is_overdue(life, now_s) and (first is None or key < first.sequence_id):
                    first = life
        return first

    def _youngest_gone(self, gone: list[Life], come: list[Life], running: dict[int, Life]) -> None:
        """The lowest class gives up first, in it the youngest. A single one that makes room for a
        class that is owed may be of any class that lives on lent tokens."""
        most = self._setup.policy.max_preemptions
        stay = [one for one in running.values() if one not in come and one.num_preemptions < most]
        for life in gone:
            for other in stay:
                younger = other.class_index == life.class_index and other.admitted > life.admitted
                if younger or (other.class_index > life.class_index and len(gone) > 1):
                    raise Violation("I7", f"{life} was evicted, {other} was not")

    def _joins_no_batch(self, come: list[Life], running: dict[int, Life]) -> None:
        """Of a static batch: all of it waited when the batch before had ended."""
        if len(come) == len(running):
            self._batch_from = min(life.admitted for life in come)
        for life in come:
            if life.first_step > self._batch_from:
                raise Violation("I7", f"{life} joins a batch that it was too late for")

    def _passes_nobody(self, life: Life, come: list[Life], now_s: float) -> None:
        """A new one goes neither before an evicted one of its class, nor, when its class waits
        like others, before one of a higher class that needs no more memory than it does."""
        for other in self.started[life.class_index].values():
            if other.num_preemptions and not self._is_overdue(life, now_s):
                raise Violation("I7", f"{life} goes before {other}, which was evicted")
        index = life.class_index
        if self._owed[index] > 0 or now_s - life.arrival_s >= self._ageing_s or self._finds:
            return
        for higher in self.fresh[:index]:
            for other in higher.values():
                if other.max_stored <= life.max_stored and other.position <= life.position:
                    raise Violation("I7", f"{life} goes before {other}, of a higher class")

    def _fits_nobody(self, num_free: int, running: dict[int, Life]) -> None:
        """Places, budget and memory for everybody's whole length, and yet somebody waits."""
        size = self._setup.block_size
        factor = 1.2 if self._setup.kind == "regions" else 1.0
        waiting = [one for by in (self.fresh, self.started) for each in by for one in each.values()]
        need = max(-(-life.max_stored // size) for life in waiting)
        if self._setup.kind != "regions":
            need += sum(-(-one.max_stored // size) - one.num_blocks for one in running.values())
        if need * factor + 1 <= num_free:
            raise Violation("I7", f"{len(waiting)} wait, though all would fit")

    def _owe(self, served: list[int], hungry: list[bool]) -> None:
        """What each class should have had by its share, less what it had; bounded, and nothing is
        owed to who wants nothing."""
        shares, bound, total = self._setup.policy.shares, self._setup.max_step_tokens, sum(served)
        wants = [
            bool(fresh or started) or hungry[index]
            for index, (fresh, started) in enumerate(zip(self.fresh, self.started, strict=True))
        ]
        whole = sum(shares[index] for index in range(3) if wants[index] or served[index])
        for index in range(3):
            owed = 0.0
            if wants[index]:
                owed = self._owed[index] + total * shares[index] / whole - served[index]
            self._owed[index] = min(max(owed, -float(bound)), float(bound))

    def _measure(self, running: dict[int, Life]) -> None:
        """Tokens of a step, while each class has somebody waiting."""
        for life in running.values():
            tokens = life.step_tokens
            self._class_tokens[life.class_index] += tokens
            waiting = (self._num_by_tenant[life.class_index, tenant] for tenant in ("t0", "t1"))
            if all(waiting):
                self._tenant_tokens[life.class_index, life.request.tenant] += tokens
