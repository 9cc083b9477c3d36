"""A file checked against a contract from its first byte to its last, and the books of it.

Owns: how a run that writes nothing is made of a source and the stages; its report.
May not know: engines, sinks, terminals.
Read next: `stages.py`; `pipeline.py`, which also answers and writes.
"""

from __future__ import annotations

from collections.abc import Iterator
from contextlib import closing
from pathlib import Path

from firsthand.data.books import Books, Item
from firsthand.data.contract import Checker, Contract, contract_hash
from firsthand.data.seen import Seen
from firsthand.data.source import SourceFacts
from firsthand.data.sources.files import Reading, open_file
from firsthand.data.stages import checked, unique
from firsthand.values import dataclass


@dataclass(frozen=True, slots=True)
class Report:
    """The outcome of a check."""

    books: Books
    source: SourceFacts
    contract: str
    contract_hash: str


def check_file(path: Path, contract: type[Contract], reading: Reading) -> Iterator[Item | Report]:
    """Every record of a file with what became of it, and at the end the report."""
    with closing(Seen()) as seen, closing(open_file(path, reading, contract)) as source:
        books, facts = Books(), source.facts
        items = checked(source, Checker(contract))
        yield from books.count(unique(items, seen))
        yield Report(books, facts, contract.called(), contract_hash(contract))
