"""The book is true: both languages say the same, what it names exists, its figures were measured.

Owns: how a chapter is taken apart. May not know: what it teaches. Read next: `docs/book/index.md`.
"""

from __future__ import annotations

import ast
import importlib.util
import os
import re
import shlex
import subprocess
import sys
from pathlib import Path
from typing import Any

import pytest
from typer.main import get_command

from bench.book import BOOK, measured, written
from firsthand.cli.main import build_app

ROOT = Path(__file__).resolve().parents[1]
SOURCE = ROOT / "src" / "firsthand"
FENCE = re.compile(r"^(<!-- runs -->\n)?```(\w*)\n(.*?)^```$", re.MULTILINE | re.DOTALL)
ENGLISH = sorted(path for path in BOOK.glob("*.md") if not path.name.endswith(".zh-CN.md"))
CHAPTERS = [path for path in ENGLISH if path.name != "index.md"]


def text_of(path: Path) -> str:
    return path.read_text(encoding="utf-8")


def chinese(path: Path) -> Path:
    return path.with_name(f"{path.stem}.zh-CN.md")


def prose(path: Path) -> str:
    return FENCE.sub("", text_of(path))


def test_there_are_twelve_chapters_in_two_languages() -> None:
    assert [path.name[:2] for path in CHAPTERS] == [f"{number:02}" for number in range(1, 13)]
    assert {chinese(path) for path in ENGLISH} == set(BOOK.glob("*.zh-CN.md"))


@pytest.mark.parametrize("path", ENGLISH, ids=lambda path: path.stem)
def test_both_languages_are_in_step(path: Path) -> None:
    other = chinese(path)
    assert FENCE.findall(text_of(path)) == FENCE.findall(text_of(other))

    def shape(of: Path) -> list[str]:
        """Headings, rows of tables, items of lists, marks of figures, in their order."""
        return re.findall(r"^#+ |^\||^- |^\d\. |^<!-- [\w ]+", prose(of), re.MULTILINE)

    def words(of: Path) -> set[str]:
        return set(re.findall(r"`[^`\n]+`", prose(of)))

    def links(of: Path) -> list[str]:
        found = re.findall(r"\]\(([^)]+)\)", prose(of))
        return sorted({link.replace(".zh-CN.md", ".md") for link in found})

    assert shape(path) == shape(other)
    assert words(path) == words(other)
    assert links(path) == links(other)


@pytest.mark.parametrize("path", CHAPTERS, ids=lambda path: path.stem)
def test_a_chapter_has_all_its_parts(path: Path) -> None:
    parts = re.split(r"^## .*\n", text_of(path), flags=re.MULTILINE)
    assert len(parts) == 10  # what comes first, and nine parts
    idea, picture, formula, code, see, figures, _, questions, answers = parts[1:]
    assert len(idea) > 1500
    assert "```text" in picture
    assert "```text" in formula
    assert code.count("\n| `") >= 6
    assert "```bash" in see
    assert "<!-- figure " in figures
    numbers = [re.findall(r"^(\d)\. ", part, re.MULTILINE) for part in (questions, answers)]
    assert numbers[0] == numbers[1] == ["1", "2", "3", "4"][: len(numbers[0])]
    assert len(numbers[0]) >= 3


def stands_in(tree: ast.Module, dotted: str) -> bool:
    """Whether a module's text defines a name, or a class in it a method."""
    body: list[ast.stmt] = tree.body
    for part in dotted.split("."):
        for node in body:
            if isinstance(node, ast.ClassDef | ast.FunctionDef | ast.AsyncFunctionDef):
                names, inner = [node.name], node.body
            elif isinstance(node, ast.Assign | ast.AnnAssign):
                targets = node.targets if isinstance(node, ast.Assign) else [node.target]
                names, inner = [one.id for one in targets if isinstance(one, ast.Name)], []
            else:
                continue
            if part in names:
                body = inner
                break
        else:
            return False
    return True


def places(path: Path) -> list[tuple[str, str]]:
    """The first cells of the tables of code: (file, dotted name or nothing)."""
    return re.findall(
        r"^\| `([\w/.]+\.(?:py|cpp|hpp))(?:: ([\w.]+))?` \|", prose(path), re.MULTILINE
    )


@pytest.mark.parametrize("path", CHAPTERS, ids=lambda path: path.stem)
def test_the_code_that_a_chapter_names_is_there(path: Path) -> None:
    found = places(path)
    assert len(found) >= 6
    for file, dotted in found:
        assert (SOURCE / file).is_file(), file
        if dotted:
            tree = ast.parse((SOURCE / file).read_text(encoding="utf-8"))
            assert stands_in(tree, dotted), f"{file}: {dotted}"


def test_the_look_for_code_can_fail() -> None:
    tree = ast.parse("X: int = 1\nclass A:\n    def f(self): ...\n")
    assert stands_in(tree, "X")
    assert stands_in(tree, "A.f")
    assert not stands_in(tree, "A.g")
    assert not stands_in(tree, "f")


@pytest.mark.parametrize("path", CHAPTERS, ids=lambda path: path.stem)
def test_its_commands_and_their_options_are_there(path: Path) -> None:
    """Also of those that need a server, and so are run by a reader alone."""
    blocks = [block for _, kind, block in FENCE.findall(text_of(path)) if kind == "bash"]
    app = get_command(build_app())
    for line in "".join(blocks).splitlines():
        name, *given = shlex.split(line)
        if name == "python":
            assert (ROOT / given[0]).is_file(), line
            continue
        assert name == "firsthand", line
        command: Any = app
        while commands := getattr(command, "commands", None):
            # `plan MODEL` is `plan plan MODEL`.
            command = (
                commands[given.pop(0)] if given[0] in commands else next(iter(commands.values()))
            )
        known = {option for one in command.params for option in (*one.opts, *one.secondary_opts)}
        assert {option for option in given if option.startswith("--")} <= known, line


def labs(path: Path) -> list[str]:
    section = prose(path).partition("`firsthand lab NAME`")[2].partition("\n## ")[0]
    return re.findall(r"^- `([\w-]+)`", section, re.MULTILINE)


@pytest.mark.parametrize("path", CHAPTERS, ids=lambda path: path.stem)
def test_a_chapter_has_a_lab(path: Path) -> None:
    assert labs(path)


@pytest.mark.skipif(importlib.util.find_spec("firsthand.labs") is None, reason="no labs here")
def test_every_lab_is_in_the_book_and_no_other() -> None:
    registry = importlib.import_module("firsthand.labs.registry")
    assert {name for path in CHAPTERS for name in labs(path)} == set(registry.labs())


def test_every_figure_is_what_was_measured() -> None:
    for path, text in written(measured()).items():
        assert text_of(path) == text, f"{path.name}: run `python -m bench.book --write`"


def test_links_lead_somewhere() -> None:
    for path in BOOK.glob("*.md"):
        for link in re.findall(r"\]\(([\w/.-]+)\)", text_of(path)):
            assert (path.parent / link).exists(), f"{path.name} → {link}"


@pytest.mark.soak
@pytest.mark.native
@pytest.mark.model
@pytest.mark.parametrize("path", CHAPTERS, ids=lambda path: path.stem)
def test_its_commands_run(path: Path, smollm2_path: Path, tmp_path: Path) -> None:
    for name in ("README.md", "examples"):
        (tmp_path / name).symlink_to(ROOT / name)
    environment = os.environ | {
        "PATH": os.pathsep.join([str(Path(sys.executable).parent), os.environ["PATH"]]),
        "PYTHONPATH": str(ROOT / "src"),
        "FIRSTHAND_PACK_CACHE": "1",
        "FIRSTHAND_HOME": str(tmp_path / "home"),
    }
    for runs, kind, block in FENCE.findall(text_of(path)):
        if not runs:
            continue
        block = block.replace("smollm2-135m", str(smollm2_path))
        for command in block.splitlines() if kind == "bash" else [block]:
            called = re.sub(r"^firsthand ", "python -m firsthand.cli.main ", command)
            called = re.sub(r"^python ", f"{sys.executable} ", called)
            done = subprocess.run(
                ["bash", "-c", called] if kind == "bash" else [sys.executable, "-c", block],
                cwd=tmp_path,
                env=environment,
                capture_output=True,
                encoding="utf-8",
                stdin=subprocess.DEVNULL,
                timeout=300,
            )
            assert done.returncode == 0, f"{command}\n{done.stderr[-2000:]}"
