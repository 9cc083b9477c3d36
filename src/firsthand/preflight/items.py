"""The form of a checklist: an item, its outcome, and the report that build machines read.

Owns: how an item is asked, timed and told; the JUnit form.
May not know: any item.
Read next: `on_disk.py`.
"""

from __future__ import annotations

import time
from collections.abc import Callable, Iterable, Iterator, Sequence
from dataclasses import asdict
from typing import Any
from xml.etree import ElementTree

from firsthand.errors import FirsthandError
from firsthand.values import dataclass


class Wrong(Exception):
    """It does not hold; the text says what was seen."""


class LeftOut(Exception):
    """It cannot be asked here; the text says why."""


@dataclass(frozen=True, slots=True)
class Item:
    """`ask` gives what was seen. `todo`: what to do next where it does not hold."""

    name: str
    todo: str
    ask: Callable[[], str]


@dataclass(frozen=True, slots=True)
class Outcome:
    """`passed` None: it could not be asked."""

    name: str
    passed: bool | None
    seen: str
    todo: str
    ms: float

    def to_dict(self) -> dict[str, Any]:
        return asdict(self)


def run(items: Iterable[Item]) -> Iterator[Outcome]:
    """Each in turn; one that raises does not hold, and says how."""
    for item in items:
        began_s = time.perf_counter()
        passed: bool | None = True
        try:
            seen = item.ask()
        except LeftOut as reason:
            passed, seen = None, str(reason)
        except (Wrong, FirsthandError, OSError) as fault:
            passed, seen = False, str(fault) or type(fault).__name__
        ms = (time.perf_counter() - began_s) * 1e3
        yield Outcome(item.name, passed, seen, "" if passed else item.todo, ms)


def junit(outcomes: Sequence[Outcome]) -> str:
    """As build machines read it."""
    failed = [one for one in outcomes if one.passed is False]
    left_out = [one for one in outcomes if one.passed is None]
    counts = {"tests": len(outcomes), "failures": len(failed), "skipped": len(left_out)}
    counted = {name: str(count) for name, count in counts.items()}
    suite = ElementTree.Element("testsuite", {"name": "firsthand preflight", **counted})
    for one in outcomes:
        case = ElementTree.SubElement(
            suite, "testcase", classname="preflight", name=one.name, time=f"{one.ms / 1e3:.3f}"
        )
        if one.passed is not True:
            kind = "skipped" if one.passed is None else "failure"
            ElementTree.SubElement(case, kind, message=_clean(f"{one.seen}. {one.todo}"))
    return ElementTree.tostring(suite, encoding="unicode", xml_declaration=True)


def _clean(text: str) -> str:
    """What XML cannot hold is left out."""
    return "".join(one for one in text if one.isprintable())
