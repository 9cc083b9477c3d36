"""The READMEs are true: their commands run, and the two languages say the same.

Owns: how a document's blocks are found and run. May not know: what a command prints in detail.
Read next: README.md. A block runs if `<!-- runs -->` stands above it.
"""

from __future__ import annotations

import ast
import os
import re
import subprocess
import sys
from dataclasses import fields
from pathlib import Path

import pytest

ROOT = Path(__file__).resolve().parents[1]
ENGLISH = (ROOT / "README.md").read_text(encoding="utf-8")
CHINESE = (ROOT / "README.zh-CN.md").read_text(encoding="utf-8")
BLOCK = re.compile(r"^(<!-- runs -->\n)?```(\w+)\n(.*?)^```$", re.MULTILINE | re.DOTALL)


def runnable(language: str) -> list[str]:
    return [text for mark, name, text in BLOCK.findall(ENGLISH) if mark and name == language]


def commands() -> list[str]:
    return [line for block in runnable("bash") for line in block.splitlines() if line]


def run(arguments: list[str] | str, model: Path) -> str:
    """Run as a reader would. Where nothing was pulled, the model's file stands for its name."""
    if os.environ.get("FIRSTHAND_REQUIRE_MODELS") != "1":
        swap = ("smollm2-135m", str(model))
        if isinstance(arguments, str):
            arguments = arguments.replace(*swap)
        else:
            arguments = [argument.replace(*swap) for argument in arguments]
    path = os.pathsep.join([str(Path(sys.executable).parent), os.environ["PATH"]])
    done = subprocess.run(
        arguments,
        shell=isinstance(arguments, str),
        capture_output=True,
        encoding="utf-8",
        env=os.environ | {"PATH": path},
        timeout=120,
        stdin=subprocess.DEVNULL,
    )
    assert done.returncode == 0, done.stderr
    return done.stdout


@pytest.mark.native
@pytest.mark.model
@pytest.mark.parametrize("command", commands())
def test_a_command_of_the_readme_runs(command: str, smollm2_path: Path) -> None:
    assert run(command, smollm2_path).strip()


@pytest.mark.native
@pytest.mark.model
@pytest.mark.parametrize("program", runnable("python"))
def test_the_python_of_the_readme_runs(program: str, smollm2_path: Path) -> None:
    assert "Paris" in run([sys.executable, "-c", program], smollm2_path)


def test_there_is_something_to_run() -> None:
    assert len(commands()) >= 5
    assert runnable("python")


def test_both_languages_show_the_same_blocks() -> None:
    assert BLOCK.findall(ENGLISH) == BLOCK.findall(CHINESE)


def test_both_languages_have_the_same_shape() -> None:
    """Headings by level, table rows, list items, links and words in code, in the same order."""

    def shape(text: str) -> list[str]:
        prose = BLOCK.sub("", text)
        return re.findall(r"^#+ |^\| |^- ", prose, re.MULTILINE)

    def words(text: str) -> list[str]:
        return sorted(re.findall(r"`[^`\n]+`", BLOCK.sub("", text)))

    def links(text: str) -> list[str]:
        """Of a page that has both languages each links its own."""
        found = {link.replace(".zh-CN", "") for link in re.findall(r"\]\(([\w/.-]+)\)", text)}
        return sorted(found - {"README.md"})

    assert shape(ENGLISH) == shape(CHINESE)
    assert words(ENGLISH) == words(CHINESE)
    assert links(ENGLISH) == links(CHINESE)


def test_links_lead_somewhere() -> None:
    for document in (*ROOT.glob("*.md"), *ROOT.glob("docs/*.md")):
        for link in re.findall(r"\]\(([\w/.-]+)\)", document.read_text(encoding="utf-8")):
            assert (document.parent / link).exists(), f"{document.name} → {link}"


def test_the_files_that_documents_name_exist() -> None:
    """`plan.py` on a package's page lies in that package; a name with a folder, in the source."""
    source = ROOT / "src" / "firsthand"
    missing = []
    for document in (ROOT / "ARCHITECTURE.md", *sorted(ROOT.glob("docs/*.md"))):
        places = [source / document.stem.removesuffix(".zh-CN"), source, ROOT]
        for name in re.findall(r"`([\w/.-]+\.(?:py|md|txt|cpp|hpp))`", document.read_text("utf-8")):
            if not any((place / name).is_file() for place in places):
                missing.append(f"{document.name}: {name}")
    assert not missing


def test_every_package_has_its_page() -> None:
    packages = {path.parent.name for path in (ROOT / "src" / "firsthand").glob("*/__init__.py")}
    pages = {path.stem for path in ROOT.glob("docs/*.md")}
    assert packages - pages <= {"scheduling"}, "scheduling is told on the engine's page"


def test_both_readmes_name_every_command() -> None:
    from firsthand.cli.main import build_app

    for command in build_app().registered_commands:
        assert re.search(rf"`(firsthand )?{command.name}\b", ENGLISH), command.name


def table(document: str, heading: str) -> dict[str, str]:
    """Rows of the first table under a heading: the names in its first cell, and the second cell."""
    section = document.split(f"## {heading}", 1)[1].split("\n## ", 1)[0]
    rows = re.findall(r"^\| (`[^|]+) \| ([^|]+) \|", section, re.MULTILINE)
    return {name: value for names, value in rows for name in re.findall(r"`(\w+)`", names)}


def test_the_page_for_python_has_every_option_and_its_default() -> None:
    from firsthand.generation.load_options import LoadOptions
    from firsthand.generation.options import Options
    from firsthand.request import FinishReason

    page = (ROOT / "docs" / "python.md").read_text(encoding="utf-8")
    shown = table(page, "Options of a load")
    defaults = {field.name: field.default for field in fields(LoadOptions)}
    assert {name: ast.literal_eval(value.strip("`")) for name, value in shown.items()} == defaults
    assert set(table(page, "Options of an answer")) == set(Options.__annotations__)
    reasons = table(page, "What comes back")["finish_reason"]
    assert re.findall(r"`(\w+)`", reasons) == [reason.value for reason in FinishReason]
