"""What all labs have in common: names, words in both languages, code that exists, pages and links.

Owns: these, and how a place in the code is found. May not know: what a lab does.
Read next: `test_labs.py`.
"""

from __future__ import annotations

import ast
import re
from itertools import chain
from pathlib import Path

import pytest

from firsthand.errors import InvalidRequest
from firsthand.labs.lab import Lab
from firsthand.labs.registry import find_lab, labs

ROOT = Path(__file__).resolve().parents[2]
SOURCE = ROOT / "src"
PAGES = {"en": ROOT / "docs" / "labs.md", "zh": ROOT / "docs" / "labs.zh-CN.md"}
CHINESE = re.compile(r"[\u4e00-\u9fff]")


def exists(place: str) -> bool:
    """A module, or a name that stands in one: a class, a function, a method, a constant."""
    parts = place.split(".")
    for end in range(len(parts), 0, -1):
        path = SOURCE.joinpath(*parts[:end])
        file = path / "__init__.py" if path.is_dir() else path.with_suffix(".py")
        if file.is_file():
            body: list[ast.stmt] = ast.parse(file.read_text(encoding="utf-8")).body
            for name in parts[end:]:
                found = [one for one in body if name in names_of(one)]
                if not found:
                    return False
                body = getattr(found[0], "body", [])
            return True
    return False


def names_of(node: ast.stmt) -> set[str]:
    if isinstance(node, ast.FunctionDef | ast.AsyncFunctionDef | ast.ClassDef):
        return {node.name}
    targets = node.targets if isinstance(node, ast.Assign) else [getattr(node, "target", None)]
    return {one.id for one in targets if isinstance(one, ast.Name)}


def test_places_are_found_and_missed() -> None:
    assert exists("firsthand.labs.lab.Evidence.holds")
    assert exists("firsthand.labs.registry")
    assert exists("firsthand.labs.words.OURS")
    assert not exists("firsthand.labs.lab.Evidence.nothing")
    assert not exists("firsthand.nothing")


@pytest.mark.parametrize("lab", labs().values(), ids=labs())
def test_a_lab_is_whole(lab: Lab) -> None:
    assert re.fullmatch(r"[a-z]+(-[a-z]+)*", lab.name)
    for words in (lab.title, lab.question, lab.cause, lab.cure):
        assert words.en and not CHINESE.search(words.en)
        assert CHINESE.search(words.zh)
    assert lab.sources and all(re.fullmatch(r"[AB] §\d(\.\d)?", one) for one in lab.sources)
    assert lab.places and [one for one in lab.places if not exists(one)] == []
    assert 0 < lab.seconds < 60


def test_no_name_is_taken_twice() -> None:
    from firsthand.labs import registry

    names = [lab.name for lab in chain.from_iterable(one.LABS for one in registry._FAMILIES)]
    assert len(names) == len(set(names)) == len(labs())


def test_an_unknown_lab_is_refused_with_the_names_that_there_are() -> None:
    with pytest.raises(InvalidRequest, match="softmax-scale"):
        find_lab("nothing")


@pytest.mark.parametrize("language", PAGES)
def test_the_page_has_a_row_for_each_lab_and_none_besides(language: str) -> None:
    text = PAGES[language].read_text(encoding="utf-8")
    rows = re.findall(r"^\| `([\w-]+)` \| ([^|]+) \| ([^|]+) \|", text, re.MULTILINE)
    assert [(name, title, source) for name, title, source in rows] == [
        (one.name, one.title.of(language), ", ".join(one.sources)) for one in labs().values()
    ]


SEEN = re.compile(r"`firsthand lab ([\w-]+)`")


def test_every_lab_is_linked_from_the_code_that_it_teaches() -> None:
    texts = {
        path: path.read_text("utf-8")
        for path in (SOURCE / "firsthand").rglob("*.py")
        if path.parent.name != "labs"
    }
    seen = {
        name
        for text in texts.values()
        if SEEN.search(text)
        for name in SEEN.findall(ast.get_docstring(ast.parse(text)) or "")
    }
    assert seen == labs().keys()


def test_the_handbook_links_only_labs_that_there_are() -> None:
    pages = (ROOT / "docs" / "handbook").glob("FH-*.md")
    found = {name for page in pages for name in SEEN.findall(page.read_text("utf-8"))}
    assert found
    assert found <= labs().keys()
