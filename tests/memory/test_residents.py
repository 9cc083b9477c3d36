"""Who leaves for whom.

Owns: proof of `memory/residents.py`. Read next: `tests/generation/test_registry.py`.
"""

from __future__ import annotations

from dataclasses import replace

from hypothesis import given, settings
from hypothesis import strategies as st

from firsthand.memory.residents import Resident, make_room

STAY_S = 10.0


def resident(name: str, need: int, used_s: float = 0.0, **more: object) -> Resident:
    return replace(Resident(name, need, 0.0, used_s, False), **more)  # type: ignore[arg-type]


def test_there_is_room_without_anybody_leaving() -> None:
    assert make_room([resident("a", 4)], 6, 10, 100, STAY_S) == ()
    assert make_room([resident("a", 4)], 1 << 60, None, 100, STAY_S) == ()


def test_the_least_recently_used_leaves() -> None:
    found = [resident("new", 4, 9), resident("old", 4, 3), resident("middle", 4, 5)]
    assert make_room(found, 4, 12, 100, STAY_S) == ("old",)
    assert make_room(found, 8, 12, 100, STAY_S) == ("old", "middle")


def test_one_that_would_leave_in_vain_stays() -> None:
    found = [resident("small", 1, 1), resident("large", 8, 2)]
    assert make_room(found, 8, 10, 100, STAY_S) == ("large",)


def test_one_in_use_or_pinned_never_leaves() -> None:
    used = [resident("a", 6, in_use=True), resident("b", 2)]
    assert make_room(used, 6, 10, 100, STAY_S) is None
    assert make_room([resident("a", 6, pinned=True)], 6, 10, 100, STAY_S) is None


def test_one_that_has_just_come_stays_for_a_while() -> None:
    found = [resident("a", 6, since_s=95.0), resident("b", 2, since_s=99.0)]
    assert make_room(found, 8, 10, 100, STAY_S) is None
    assert make_room(found, 10, 10, 100, STAY_S) is None
    assert make_room(found, 8, 10, 105, STAY_S) == ("a",)


residents = st.lists(
    st.builds(
        Resident,
        st.uuids().map(str),
        st.integers(0, 8),
        st.integers(0, 20).map(float),
        st.integers(0, 20).map(float),
        st.booleans(),
        st.booleans(),
    ),
    max_size=6,
)


@settings(deadline=None, max_examples=300)
@given(residents, st.integers(1, 12), st.integers(0, 24), st.integers(0, 25))
def test_who_leaves_is_enough_not_too_much_and_never_in_use(
    found: list[Resident], need: int, limit: int, now: int
) -> None:
    by_name = {one.name: one for one in found}
    names = make_room(found, need, limit, float(now), STAY_S)
    free = [one for one in found if not one.in_use and not one.pinned]
    stayed = [one for one in free if now >= one.since_s + STAY_S]

    def fits(leaving: list[Resident]) -> bool:
        kept = [one.need_bytes for one in found if one not in leaving]
        return sum(kept) + need <= limit

    if names is None:
        assert not fits(stayed)
        return
    leaving = [by_name[name] for name in names]
    assert all(one in stayed for one in leaving)
    assert fits(leaving)
    assert not any(fits([two for two in leaving if two is not one]) for one in leaving)
    if leaving:  # those used before the last of them would not have been enough
        before = [one for one in stayed if one.used_s < max(x.used_s for x in leaving)]
        assert not fits(before)
