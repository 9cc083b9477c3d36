"""The requests in progress: which of their sequences are open, who follows whom, whose time is up.

Owns: the table of requests by id, their deadlines, and the order within one request.
May not know: blocks, budgets, who runs or waits.
Read next: `scheduler.py`, the only caller.

The sequences of a request with n > 1 have one prompt. The first computes it; the others follow:
they wait until it has, and then share its blocks. If the first ends before, they go on alone.
"""

from __future__ import annotations

from firsthand.checks import shown
from firsthand.errors import InvalidRequest
from firsthand.request import Request
from firsthand.scheduling.limits import Limits, max_stored_tokens
from firsthand.scheduling.policy import CLASSES
from firsthand.scheduling.sequence import Group, Sequence


class Requests:
    """By request id."""

    def __init__(self, limits: Limits) -> None:
        self._limits = limits
        self._groups: dict[str, Group] = {}
        self._following = [0] * len(CLASSES)
        self._next_id = 0
        self._next_deadline_s: float | None = None  # nobody's is earlier; it may be nobody's

    def __len__(self) -> int:
        return len(self._groups)

    @property
    def num_following(self) -> tuple[int, ...]:
        """Sequences that wait for the first one of their request, by class."""
        return tuple(self._following)

    def add(self, request: Request, arrival_s: float, *, together: bool) -> list[Sequence]:
        """The sequences of a new request that may be queued now; `together`: only the first.

        Raises InvalidRequest if the id is in progress.
        """
        if request.request_id in self._groups:
            raise InvalidRequest(
                "request_id", f"{shown(request.request_id)} is already in progress"
            )
        group = Group(request)
        self._groups[request.request_id] = group
        stored = max_stored_tokens(request, self._limits)
        for index, begun in request.beginnings.items():
            known = [*request.prompt_token_ids, *begun]
            group.open.append(Sequence(self._next_id, group, index, arrival_s, known, stored))
            self._next_id += 1
        if request.deadline_s is not None:
            nearest = self._next_deadline_s
            later = nearest is not None and nearest <= request.deadline_s
            self._next_deadline_s = nearest if later else request.deadline_s
        if not together or len(group.open) == 1:
            return list(group.open)
        group.open[0].leads = True
        group.followers = group.open[1:]
        self._following[group.open[0].class_index] += len(group.followers)
        return group.open[:1]

    def open_of(self, request_id: str) -> list[Sequence]:
        """The sequences of a request that have not ended, in the order of their index."""
        group = self._groups.get(request_id)
        return [] if group is None else list(group.open)

    def release_followers(self, leader: Sequence) -> list[Sequence]:
        """Those that need wait for `leader` no more. They count as started: their request has."""
        group = leader.group
        leader.leads = False
        released, group.followers = group.followers, []
        self._following[leader.class_index] -= len(released)
        for sequence in released:
            sequence.started = True
        return released

    def end(self, sequence: Sequence) -> None:
        """A sequence has ended. Its followers, if it leads, must have been released."""
        group = sequence.group
        group.open.remove(sequence)
        if sequence in group.followers:
            group.followers.remove(sequence)
            self._following[sequence.class_index] -= 1
        if not group.open:
            del self._groups[group.request.request_id]

    def expired(self, now_s: float) -> list[Sequence]:
        """The open sequences of all requests whose deadline is not later than now."""
        if self._next_deadline_s is None or now_s < self._next_deadline_s:
            return []
        late: list[Sequence] = []
        self._next_deadline_s = None
        for group in self._groups.values():
            deadline_s = group.request.deadline_s
            if deadline_s is None:
                continue
            if deadline_s <= now_s:
                late += group.open
            elif self._next_deadline_s is None or deadline_s < self._next_deadline_s:
                self._next_deadline_s = deadline_s
        return late

    def check(self, known_ids: set[int]) -> None:
        """Raise AssertionError unless `known_ids`, of those that run or wait, are all there are."""
        following = {one.sequence_id for group in self._groups.values() for one in group.followers}
        opened = {one.sequence_id for group in self._groups.values() for one in group.open}
        assert len(following) == sum(self._following), "followers are miscounted"
        assert not following & known_ids, "a follower is queued already"
        assert opened == following | known_ids, "a sequence is lost, or was not ended"
        for group in self._groups.values():
            assert group.open, "a request without sequences"
            led = any(sequence.leads for sequence in group.open)
            assert led or not group.followers, "followers without a leader"
