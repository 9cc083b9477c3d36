"""The table of promises is true: every test that it names is there, every id of a name is on it.

Owns: that. May not know: what a test proves. Read next: `docs/reliability.md`.
"""

from __future__ import annotations

import re
from pathlib import Path

TESTS = Path(__file__).parent
PAGE = (TESTS.parent / "docs" / "reliability.md").read_text(encoding="utf-8")
FOUND = {
    (path.relative_to(TESTS).as_posix(), name)
    for path in TESTS.rglob("test_*.py")
    for name in re.findall(r"^def (test_\w+)", path.read_text(encoding="utf-8"), re.MULTILINE)
}


def named() -> set[tuple[str, str]]:
    """Each test with the file that was named last before it."""
    file, found = "", set()
    for name in re.findall(r"`((?:\w+/)*test_\w+(?:\.py)?)`", PAGE):
        if name.endswith(".py"):
            file = name.removeprefix("tests/")
        else:
            found.add((file, name))
    return found


def test_every_test_that_the_page_names_is_there() -> None:
    assert len(named()) > 60
    assert not named() - FOUND


def test_every_promise_that_a_test_names_is_on_the_page() -> None:
    """Of overload, losses and operation: O-, G-, OPS- and R-; of models' files and numbers: LOAD-,
    GGUF-, MODEL-, QUANT-, N-4 to N-6 and S-1 to S-10; of data D-, DATA- and MQDB-."""
    pattern = re.compile(
        r"_(?:(?:o|g|ops|r|load|gguf|model|quant)_\d+|n_[4-6]|s_(?:[1-9]|10))(?=_)"
    )
    of_data = re.compile(r"_(?:d|data|mqdb)_\d+(?=_)")
    found = {one for one in FOUND if pattern.search(one[1])}
    found |= {one for one in FOUND if one[0].startswith("data/") and of_data.search(one[1])}
    missing = found - named()
    assert not missing
