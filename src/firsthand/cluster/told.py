"""What the links to several replicas say of their engines, together and each.

Owns: which of it is a sum, which the most, and what counts where nothing was heard.
May not know: requests, how a link is kept.
Read next: `counting.py` (sums of larger values); `fleet.py`, which is asked for all of it.
"""

from __future__ import annotations

from collections.abc import Callable, Iterator, Mapping

from firsthand.cluster.counting import whole_facts, whole_picture
from firsthand.cluster.link import Link
from firsthand.cluster.wire import Beat
from firsthand.generation.frames import EngineFacts
from firsthand.generation.service_values import Replica
from firsthand.scheduling.picture import Picture
from firsthand.values import dataclass


@dataclass(frozen=True, slots=True, eq=False)
class Told:
    """Of the links that there are when somebody asks."""

    links: Mapping[str, Link]
    clock: Callable[[], float]

    @property
    def facts(self) -> EngineFacts | None:
        return whole_facts([beat.facts for beat in self._beats() if beat.facts is not None])

    def picture(self, name: Callable[[str], str]) -> Picture | None:
        seen = [(link.picture, link.num_blocks) for link in self.links.values()]
        return whole_picture([(one, num) for one, num in seen if one is not None], name)

    @property
    def all_leave(self) -> bool:
        """Or there are none."""
        return all(link.is_leaving for link in self.links.values())

    @property
    def silent_s(self) -> float | None:
        """Of the one that was heard last."""
        heard_s = [link.heard_s for link in self.links.values() if link.beat is not None]
        return self.clock() - max(heard_s) if heard_s else None

    @property
    def stalls_s(self) -> float:
        return max((beat.stalled_s for beat in self._beats()), default=0.0)

    @property
    def num_restarts(self) -> int:
        return sum(beat.num_restarts for beat in self._beats())

    @property
    def memory_short(self) -> bool:
        """Of all: while one has room, it is asked."""
        short = [beat.memory_short for beat in self._beats()]
        return bool(short) and all(short)

    @property
    def peak_rss_bytes(self) -> int:
        return sum(beat.peak_rss_bytes for beat in self._beats())

    def _beats(self) -> Iterator[Beat]:
        return (link.beat for link in self.links.values() if link.beat is not None)


def replica_of(link: Link, in_rotation: bool, num_open: int) -> Replica:
    """As it is told. What runs and waits is of its last step, and of nothing where nothing is
    open."""
    beat, facts = link.beat, link.facts if num_open else None
    return Replica(
        slot=link.slot,
        name=link.name,
        in_rotation=in_rotation and not link.is_leaving,
        num_open=num_open,
        num_waiting=facts.num_waiting if facts else 0,
        num_running=facts.num_running if facts else 0,
        num_used_blocks=facts.num_used_blocks if facts else 0,
        num_restarts=beat.num_restarts if beat else 0,
        cpu_s=beat.cpu_s if beat else 0.0,
    )
