"""Imports go down only: every import in the source, checked against ARCHITECTURE.md's table.

Owns: the layer rule. May not know: what any module does. Read next: ARCHITECTURE.md.
"""

from __future__ import annotations

import ast
import re
import subprocess
import sys
from collections.abc import Iterator
from pathlib import Path
from typing import NamedTuple

import pytest

ROOT = Path(__file__).resolve().parents[1]
SOURCE = ROOT / "src"
ROW = re.compile(r"^\| (\d+) \| `([\w.]+)` \|([^|]*)\|", re.MULTILINE)


class Layer(NamedTuple):
    """A row of the table: its height, and the outside libraries that it may import."""

    height: int
    libraries: frozenset[str]


def read_table() -> dict[str, Layer]:
    text = (ROOT / "ARCHITECTURE.md").read_text(encoding="utf-8")
    return {
        name if name == "firsthand" else f"firsthand.{name}": Layer(
            int(height), frozenset(re.findall(r"`(\w+)`", libraries))
        )
        for height, name, libraries in ROW.findall(text)
    }


def row_of(module: str, table: dict[str, Layer]) -> str | None:
    """The row with the longest name that `module` is, or lies in."""
    parts = module.split(".")
    names = (".".join(parts[:end]) for end in range(len(parts), 0, -1))
    return next((name for name in names if name in table), None)


def imports_of(path: Path) -> Iterator[str]:
    """Every module that a file imports, wherever the import stands. `from a import b` is a.b."""
    for node in ast.walk(ast.parse(path.read_text(encoding="utf-8"), str(path))):
        if isinstance(node, ast.Import):
            yield from (alias.name for alias in node.names)
        elif isinstance(node, ast.ImportFrom):
            assert node.level == 0, f"{path}: relative import"
            yield from (f"{node.module}.{alias.name}" for alias in node.names)


def complaints(module: str, imported: str, table: dict[str, Layer]) -> Iterator[str]:
    own = row_of(module, table)
    assert own == module or own != "firsthand", f"{module} is in no row of the layer table"
    assert own is not None
    height, libraries = table[own]
    library = imported.split(".")[0]
    if library != "firsthand":
        if library not in libraries and library not in sys.stdlib_module_names:
            yield f"{module} imports {imported}: {own} may not use that library"
        return
    target = row_of(imported, table)
    assert target is not None
    same_package = target.split(".")[:2] == own.split(".")[:2]
    limit = height if same_package else height - 1
    if table[target].height > limit:
        yield f"{module} imports {imported}: layer {table[target].height} from layer {height}"


def modules() -> Iterator[tuple[str, Path]]:
    for path in sorted(SOURCE.rglob("*.py")):
        parts = path.relative_to(SOURCE).with_suffix("").parts
        yield ".".join(parts[:-1] if parts[-1] == "__init__" else parts), path


def test_imports_go_down_only() -> None:
    table = read_table()
    found = [
        text
        for module, path in modules()
        for imported in imports_of(path)
        for text in complaints(module, imported, table)
    ]
    assert not found, "\n".join(found)


def test_the_table_names_only_what_exists() -> None:
    names = {module for module, _ in modules()}
    packages = names | {".".join(name.split(".")[:-1]) for name in names}
    assert sorted(set(read_table()) - packages) == []


@pytest.mark.parametrize(
    ("module", "imported"),
    [
        ("firsthand.scheduling.plan", "numpy.zeros"),
        ("firsthand.scheduling.plan", "firsthand.engine.engine"),
        ("firsthand.models.spec", "firsthand.models.llama"),
        ("firsthand.quant.formats", "firsthand.text.tokenizer"),
        ("firsthand.compute.native.executor", "torch.nn"),
    ],
)
def test_the_rule_can_fail(module: str, imported: str) -> None:
    assert list(complaints(module, imported, read_table()))


def test_pure_packages_load_no_arrays() -> None:
    """Each pure module, in a fresh interpreter: the standard library is enough for it."""
    table = read_table()
    pure = [m for m, _ in modules() if not table[str(row_of(m, table))].libraries]
    pure = [m for m in pure if table[str(row_of(m, table))].height <= 3]
    assert "firsthand.scheduling.plan" in pure
    code = (
        "import sys, importlib\n"
        f"for name in {pure!r}:\n"
        "    importlib.import_module(name)\n"
        "heavy = {'numpy', 'torch', 'tokenizers', 'jinja2', 'typer'} & set(sys.modules)\n"
        "sys.exit(f'loaded: {heavy}' if heavy else 0)\n"
    )
    done = subprocess.run([sys.executable, "-c", code], capture_output=True, text=True)
    assert done.returncode == 0, done.stderr
