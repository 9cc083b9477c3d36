"""A value is what the standard library's dataclass would be, but for the time that it takes."""

from __future__ import annotations

import copy
import inspect
import pickle
from collections.abc import Callable
from dataclasses import FrozenInstanceError, asdict, astuple, field, fields, is_dataclass, replace
from dataclasses import dataclass as standard
from functools import partial
from typing import Any, Generic, TypeVar

import pytest

from firsthand.values import dataclass as ours

T = TypeVar("T")
OPTIONS = [
    {"frozen": frozen, "slots": slots, "eq": eq}
    for frozen in (False, True)
    for slots in (False, True)
    for eq in (False, True)
]


def plain(decorate: Callable[[type], type]) -> type:
    @decorate
    class Value:
        a: int
        b: str = "b"
        c: list[int] = field(default_factory=list)
        d: float = field(default=0.5, repr=False, compare=False)

    return Value


def derived(decorate: Callable[[type], type]) -> type:
    @decorate
    class Value(Generic[T]):
        """Has a base, a method, a property of the class, and fields that nobody gives."""

        limit = 7
        a: int
        twice: int = field(init=False)
        seen: dict[str, int] = field(init=False, default_factory=dict)
        word: str = field(init=False, default="w")

        def __post_init__(self) -> None:
            object.__setattr__(self, "twice", 2 * self.a)

        def __repr__(self) -> str:
            return f"<{self.a}>"

    return Value


def single(decorate: Callable[[type], type]) -> type:
    @decorate
    class Value:
        a: float

    return Value


def empty(decorate: Callable[[type], type]) -> type:
    @decorate
    class Value:
        pass

    return Value


def outcome(act: Callable[[], Any]) -> str:
    """In words. The standard library's own words differ between releases, and for a frozen class
    with slots also the class of the error."""
    try:
        return repr(act())
    except (TypeError, AttributeError):
        return "refused"


def tried(act: Callable[[Any], Any], kind: type, arguments: tuple[Any, ...]) -> Any:
    return act(kind(*arguments))


SAMPLES: dict[Callable[..., type], list[tuple[Any, ...]]] = {
    plain: [(1,), (1, "x"), (1, "x", [2]), (1, "x", [2], 3.0), (1, "x", [2], 4.0), ()],
    derived: [(1,), (2,), (1, 2)],
    single: [(1.0,), (float("nan"),), (2.0,)],
    empty: [(), ()],
}


ACTS: list[Callable[[Any], Any]] = [
    repr,
    asdict,
    astuple,
    lambda made: made == made,
    lambda made: made == copy.deepcopy(made),
    lambda made: made == astuple(made),
    lambda made: hash(made) == hash(copy.copy(made)),
    lambda made: replace(made, a=9),
    lambda made: copy.copy(made),
    lambda made: (made.__setattr__("a", 5), made),
    lambda made: delattr(made, "a"),
    lambda made: (made.__setattr__("new", 5), made.new),
]


@pytest.mark.parametrize("options", OPTIONS, ids=str)
@pytest.mark.parametrize("shape", SAMPLES, ids=lambda shape: shape.__name__)
def test_it_is_as_the_standard_library_has_it(
    shape: Callable[..., type], options: dict[str, bool]
) -> None:
    mine, theirs = shape(ours(**options)), shape(standard(**options))
    assert is_dataclass(mine)
    assert mine.__qualname__ == theirs.__qualname__ and mine.__module__ == theirs.__module__
    assert getattr(mine, "__slots__", None) == getattr(theirs, "__slots__", None)
    assert mine.__match_args__ == theirs.__match_args__  # type: ignore[attr-defined]
    assert [one.name for one in fields(mine)] == [one.name for one in fields(theirs)]
    assert list(inspect.signature(mine).parameters) == list(inspect.signature(theirs).parameters)
    for arguments in SAMPLES[shape]:
        for act in ACTS:
            did = [outcome(partial(tried, act, kind, arguments)) for kind in (mine, theirs)]
            assert did[0] == did[1], inspect.getsource(act)


@ours(frozen=True, slots=True)
class Point:
    x: int
    y: tuple[int, ...] = ()


def test_values_are_equal_hashed_and_frozen() -> None:
    assert Point(1, (2,)) == Point(1, (2,)) != Point(1)
    assert len({Point(1), Point(1, ()), Point(2)}) == 2
    like: Any = (1, ())
    assert Point(1) != like
    with pytest.raises(FrozenInstanceError, match="cannot assign to field 'x'"):
        Point(1).x = 2  # type: ignore[misc]
    with pytest.raises(FrozenInstanceError, match="cannot delete field 'x'"):
        del Point(1).x


def test_values_are_pickled_matched_and_described() -> None:
    assert pickle.loads(pickle.dumps(Point(1, (2, 3)))) == Point(1, (2, 3))
    match Point(4, (5,)):
        case Point(x, (y,)):
            assert (x, y) == (4, 5)
        case _:
            raise AssertionError
    assert Point.__doc__ == "Point"
    assert str(inspect.signature(Point)).startswith("(x: 'int', y: 'tuple[int, ...]' = ()")


def test_one_that_holds_itself_can_be_shown() -> None:
    @ours()
    class Node:
        inside: list[Any]

    node = Node([])
    node.inside.append(node)
    assert repr(node).endswith("Node(inside=[...])")
