"""The catalogue keeps its own rules: names, units, labels, buckets.

Owns: these rules. May not know: what is counted. Read next: `test_emitted.py`.
"""

from __future__ import annotations

import re

import pytest

from firsthand.observe.catalogue import CATALOGUE, SECTIONS
from firsthand.observe.entry import Entry, Kind
from firsthand.observe.labels import CLASSES
from firsthand.request import Priority

UNITS = {"seconds": "_seconds", "bytes": "_bytes", "ratio": "_ratio"}


def test_each_name_stands_there_once() -> None:
    names = [entry.name for section in SECTIONS for entry in section.entries]
    names += [alias.name for entry in CATALOGUE.values() for alias in entry.aliases]
    assert len(names) == len(set(names))


@pytest.mark.parametrize("entry", CATALOGUE.values(), ids=CATALOGUE)
def test_an_entry_keeps_the_rules(entry: Entry) -> None:
    prefix = "process_" if entry.from_library else "firsthand_"
    assert re.fullmatch(prefix + r"[a-z]+(_[a-z]+)*", entry.name)
    assert not entry.name.endswith("_total")
    for unit, end in UNITS.items():
        assert entry.name.removesuffix("_max").endswith(end) == (entry.unit == unit), unit
    assert entry.meaning.strip() == entry.meaning
    assert (entry.kind is Kind.HISTOGRAM) == bool(entry.buckets)
    assert list(entry.buckets) == sorted(set(entry.buckets))
    assert all(label.meaning for label in entry.labels)
    for alias in entry.aliases:
        assert "model" in entry.label_names
        assert {name for name, _ in (*alias.where, *alias.keep)} <= set(entry.label_names)


def test_classes_are_those_of_requests() -> None:
    assert tuple(priority.name.lower() for priority in Priority) == CLASSES
