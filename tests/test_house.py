"""The house rules that a program can check: documents, dangers, environment, sizes, paths.

Owns: the limits below, each with its reason. May not know: what any module does.
Read next: CONTRIBUTING.md.
"""

from __future__ import annotations

import ast
import re
from collections.abc import Iterator
from pathlib import Path

import pytest

ROOT = Path(__file__).resolve().parents[1]
PACKAGE = ROOT / "src" / "firsthand"

MAX_FILE_LINES = 400
MAX_FUNCTION_LINES = 70

# Files that may be longer, each with the reason why it is one room and not two.
LONG_FILES: dict[str, str] = {}
LONG_FUNCTIONS: dict[str, str] = {}

# Whatever turns bytes into code. Unpickling runs what the file says, so there is no pickle, nor
# anything that pickles below.
FORBIDDEN_MODULES = {"pickle", "cPickle", "_pickle", "marshal", "shelve", "dill", "cloudpickle"}
FORBIDDEN_MODULES |= {"joblib", "code", "codeop"}
FORBIDDEN_NAMES = {"eval", "exec", "compile", "__import__"}
FORBIDDEN_CALLS = {"torch.load", "yaml.load", "yaml.unsafe_load", "numpy.load", "np.load"}
FORBIDDEN_CALLS |= {"os.system", "os.popen", "object.__setattr__"}

# A path that exists on one machine only. The text is split so that this file passes too.
MACHINE_PATH = re.compile(r"(?<![\w.])/(?:work|farm|root|home|Users|tmp)/[\w.-]+")
TEXT_SUFFIXES = {".py", ".md", ".toml", ".txt", ".cpp", ".h", ".hpp", ".json", ".jsonl", ""}
NOT_OURS = {".git", ".venv", "build", "dist", "results"}


def sources() -> list[Path]:
    return sorted(PACKAGE.rglob("*.py"))


def name(path: Path) -> str:
    return path.relative_to(ROOT).as_posix()


def parse(path: Path) -> ast.Module:
    return ast.parse(path.read_text(encoding="utf-8"), str(path))


def dangers(tree: ast.AST) -> Iterator[str]:
    """What the gate refuses in one file, with its line."""
    for node in ast.walk(tree):
        match node:
            case ast.Import(names=names):
                found = [alias.name for alias in names if alias.name in FORBIDDEN_MODULES]
            case ast.ImportFrom(module=module, names=names):
                full = [f"{module}.{alias.name}" for alias in names]
                found = [x for x in full if x in FORBIDDEN_CALLS]
                found += [str(module)] if module in FORBIDDEN_MODULES else []
            case ast.Call(func=ast.Name(id=called)):
                found = [called] if called in FORBIDDEN_NAMES else []
            case ast.Attribute():
                found = [ast.unparse(node)] if ast.unparse(node) in FORBIDDEN_CALLS else []
            case ast.keyword(arg="allow_pickle" | "shell" as argument):
                found = [argument]
            case _:
                continue
        yield from (f"line {getattr(node, 'lineno', 0)}: {what}" for what in found)


def test_nothing_in_the_package_can_run_what_a_file_says() -> None:
    found = {name(path): list(dangers(parse(path))) for path in sources()}
    assert not {file: lines for file, lines in found.items() if lines}


@pytest.mark.parametrize(
    "text",
    [
        "import pickle",
        "from pickle import loads",
        "def f():\n    import marshal",
        "import torch\ntorch.load('x')",
        "from torch import load",
        "eval('1')",
        "np.load('x', allow_pickle=True)",
        "subprocess.run('x', shell=True)",
    ],
)
def test_the_gate_can_fail(text: str) -> None:
    assert list(dangers(ast.parse(text)))


def test_only_config_reads_the_environment() -> None:
    readers = {
        name(path)
        for path in sources()
        for node in ast.walk(parse(path))
        if isinstance(node, ast.Attribute | ast.ImportFrom | ast.Name)
        and re.search(r"\b(os\.environ|os\.getenv|import (environ|getenv))", ast.unparse(node))
    }
    assert readers <= {"src/firsthand/config.py"}


def test_every_module_says_what_it_owns() -> None:
    """Three answers: what it owns, what it may not know, what to read next."""
    lacking = {}
    for path in sources():
        text = ast.get_docstring(parse(path)) or ""
        missing = [word for word in ("Owns:", "May not", "Read next:") if word not in text]
        if missing and path.read_text(encoding="utf-8").strip():
            lacking[name(path)] = missing
    assert not lacking


def test_files_and_functions_keep_their_size() -> None:
    long = {}
    for path in sources():
        lines = len(path.read_text(encoding="utf-8").splitlines())
        if lines > MAX_FILE_LINES and name(path) not in LONG_FILES:
            long[name(path)] = lines
        for node in ast.walk(parse(path)):
            if isinstance(node, ast.FunctionDef | ast.AsyncFunctionDef):
                where = f"{name(path)}::{node.name}"
                length = (node.end_lineno or 0) - node.lineno + 1
                if length > MAX_FUNCTION_LINES and where not in LONG_FUNCTIONS:
                    long[where] = length
    assert not long


def test_no_module_keeps_changing_state() -> None:
    """`global` is the sign of it; a constant needs none."""
    found = [
        f"{name(path)}:{node.lineno}"
        for path in sources()
        for node in ast.walk(parse(path))
        if isinstance(node, ast.Global)
    ]
    assert not found


def texts() -> Iterator[Path]:
    for path in sorted(ROOT.rglob("*")):
        parts = path.relative_to(ROOT).parts
        hidden = any(part.startswith(".") and part != ".ci" for part in parts)
        if not hidden and not NOT_OURS & set(parts) and path.is_file():
            yield path


def test_no_text_names_a_place_on_one_machine() -> None:
    found = []
    for path in texts():
        if path.suffix not in TEXT_SUFFIXES or path.stat().st_size > 1_000_000:
            continue
        for number, line in enumerate(path.read_text(encoding="utf-8").splitlines(), 1):
            found += [f"{name(path)}:{number}: {hit}" for hit in MACHINE_PATH.findall(line)]
    assert not found
