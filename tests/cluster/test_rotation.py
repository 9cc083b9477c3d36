"""Who answers next: the four rules, and how a sick replica leaves and returns. No Ray."""

from __future__ import annotations

from hypothesis import given, settings
from hypothesis import strategies as st

from firsthand.cluster.rotation import (
    MAX_PREFIXES,
    PREFIX_TOKENS,
    Asked,
    Rotation,
    Routing,
    Rules,
    Standing,
    asked_of,
    ordered,
)
from firsthand.request import Request, SamplingParams, StopRules

RULES = Rules(failures=3, away_s=5.0, max_away_s=20.0)


class Clock:
    def __init__(self) -> None:
        self.now_s = 0.0

    def __call__(self) -> float:
        return self.now_s


def rotation(
    *names: str, routing: Routing = Routing.ROUND_ROBIN, clock: Clock | None = None
) -> Rotation:
    made = Rotation(routing, clock or Clock(), RULES)
    for name in names:
        made.linked(name)
    return made


def fail(made: Rotation, name: str) -> None:
    made.sent(name, Asked(10))
    made.ended(name, Asked(10), answered=False, failed=True)


def answer(made: Rotation, name: str, took_s: float = 0.1) -> None:
    made.sent(name, Asked(10))
    made.answered(name, Asked(10), took_s)
    made.ended(name, Asked(10), answered=True)


def names(routing: Routing, *standings: Standing, asked: Asked | None = None) -> list[str]:
    return [one.name for one in ordered(routing, standings, asked or Asked(), 0)]


def test_s_104_round_robin_gives_each_the_same() -> None:
    made = rotation("a", "b", "c")
    firsts = [made.order(Asked(), ["a", "b", "c"])[0] for _ in range(9)]
    assert sorted(firsts) == ["a"] * 3 + ["b"] * 3 + ["c"] * 3
    assert firsts[:3] == firsts[3:6] != [firsts[0]] * 3


def test_s_104_the_least_loaded_has_the_least_work_before_it() -> None:
    busy, prompt, idle = Standing("busy", 4), Standing("prompt", 1, 500), Standing("idle", 1)
    assert names(Routing.LEAST_LOADED, busy, prompt, idle) == ["idle", "busy", "prompt"]


def test_s_104_latency_weighs_who_answers_late_less() -> None:
    """Three times as slow: it gets the fourth."""
    made = rotation("fast", "slow", routing=Routing.LATENCY)
    answer(made, "fast", 0.1)
    answer(made, "slow", 0.3)
    given_to = []
    for _ in range(4):
        name = made.order(Asked(), ["fast", "slow"])[0]
        made.sent(name, Asked(1))
        given_to.append(name)
    assert sorted(given_to) == ["fast"] * 3 + ["slow"]


def test_s_104_a_prefix_goes_where_it_is_known_until_that_costs_more() -> None:
    asked = Asked(256, tuple(range(8)))
    knows, other = Standing("knows", 2, 0, num_known=224), Standing("other")
    assert names(Routing.PREFIX, other, knows, asked=asked) == ["knows", "other"]
    overloaded = Standing("knows", 5, 0, num_known=224)
    assert names(Routing.PREFIX, other, overloaded, asked=asked) == ["other", "knows"]


def test_a_prefix_is_known_of_one_tenant_salt_and_adapter_only() -> None:
    def asked(tenant: str = "", salt: str = "", adapter: str = "") -> Asked:
        rules = StopRules(4)
        prompt = tuple(range(3 * PREFIX_TOKENS))
        request = Request(
            "r", prompt, SamplingParams(), rules, 1, tenant=tenant, cache_salt=salt, adapter=adapter
        )
        return asked_of(request, Routing.PREFIX)

    assert len(asked().prefixes) == 2, "the last token is always computed"
    others = [asked(tenant="t"), asked(salt="s"), asked(adapter="a"), asked()]
    assert len({one.prefixes for one in others}) == 4
    made = rotation("a", "b", routing=Routing.PREFIX)
    made.sent("b", asked())
    made.answered("b", asked(), 0.1)
    made.ended("b", asked(), answered=True)
    assert made.order(asked(), ["a", "b"])[0] == "b"


def test_what_is_remembered_of_prefixes_is_bounded() -> None:
    made = rotation("a", routing=Routing.PREFIX)
    for first in range(0, 3 * MAX_PREFIXES, 100):
        made.sent("a", Asked(1, tuple(range(first, first + 100))))
    assert len(made._replicas["a"].prefixes) == MAX_PREFIXES


def test_s_105_three_failures_in_a_row_and_it_leaves() -> None:
    clock = Clock()
    made = rotation("a", "b", clock=clock)
    fail(made, "a")
    fail(made, "a")
    answer(made, "a")
    fail(made, "a")
    fail(made, "a")
    assert made.is_in("a"), "not in a row"
    fail(made, "a")
    assert not made.is_in("a")
    assert {made.order(Asked(), ["a", "b"])[0] for _ in range(5)} == {"b"}


def test_s_105_it_returns_by_one_request_whose_outcome_decides() -> None:
    clock = Clock()
    made = rotation("a", "b", clock=clock)
    for _ in range(3):
        fail(made, "a")
    clock.now_s = 4.9
    assert made.order(Asked(), ["a", "b"]) == ["b"]
    clock.now_s = 5.0
    assert made.order(Asked(), ["a", "b"])[0] == "a"
    made.sent("a", Asked(1))
    assert made.order(Asked(), ["a", "b"]) == ["b"], "one at a time"
    made.ended("a", Asked(1), answered=False, failed=True)
    clock.now_s = 14.9
    assert made.order(Asked(), ["a", "b"]) == ["b"], "twice as long"
    clock.now_s = 15.0
    answer(made, "a")
    assert made.is_in("a")
    for _ in range(3):
        fail(made, "a")
    clock.now_s = 20.1
    assert made.order(Asked(), ["a", "b"])[0] == "a", (
        "well meanwhile: no longer than the first time"
    )


def test_who_leaves_says_nothing_of_the_replica() -> None:
    made = rotation("a")
    for _ in range(5):
        made.sent("a", Asked(1))
        made.ended("a", Asked(1), answered=False)
    assert made.is_in("a")


def test_a_lost_link_is_away_and_half_open_once_it_is_back() -> None:
    clock = Clock()
    made = rotation("a", "b", clock=clock)
    made.sent("a", Asked(1))
    made.lost("a")
    assert made.order(Asked(), ["a", "b"]) == ["b"] and made.num_reached == 1
    made.ended("a", Asked(1), answered=False)
    made.linked("a")
    assert not made.is_in("a")
    clock.now_s = 5.0
    assert made.order(Asked(), ["a", "b"])[0] == "a"


def test_where_all_are_sick_they_are_asked_all_the_same() -> None:
    made = rotation("a", "b")
    for name in "ab":
        for _ in range(3):
            fail(made, name)
    assert sorted(made.order(Asked(), ["a", "b"])) == ["a", "b"]
    assert made.order(Asked(), ["c"]) == [], "but nobody that cannot be reached"


@settings(deadline=None, max_examples=60)
@given(st.lists(st.tuples(st.integers(0, 2), st.sampled_from("fagl+")), max_size=60))
def test_whatever_comes_somebody_who_can_be_reached_is_asked(steps: list[tuple[int, str]]) -> None:
    clock = Clock()
    made = rotation("0", "1", "2", clock=clock)
    linked = {"0", "1", "2"}
    for at, what in steps:
        name = str(at)
        clock.now_s += 1.0
        match what:
            case "f":
                fail(made, name)
            case "a" if name in linked:
                answer(made, name)
            case "l":
                made.lost(name)
                linked.discard(name)
            case "+":
                made.linked(name)
                linked.add(name)
        order = made.order(Asked(), ["0", "1", "2"])
        assert set(order) <= linked and len(set(order)) == len(order)
        assert bool(order) == bool(linked)
