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

# What may be longer, each with the reason why it is one room and not two.
LONG_FILES: dict[str, str] = {}
LONG_FUNCTIONS = {
    "src/firsthand/compute/native/csrc/module.cpp::NB_MODULE": "the list of what Python sees",
}

# Whatever turns bytes into code (S-80). Unpickling runs what the file says, so there is no pickle,
# nor anything that pickles below.
FORBIDDEN_MODULES = {"pickle", "cPickle", "_pickle", "marshal", "shelve", "dill", "cloudpickle"}
FORBIDDEN_MODULES |= {"joblib", "code", "codeop"}
# Memory that has a name can be opened by whoever learns it (S-92).
FORBIDDEN_MODULES |= {"_posixshmem", "multiprocessing"}
FORBIDDEN_NAMES = {"eval", "exec", "compile", "__import__"}
FORBIDDEN_CALLS = {"torch.load", "yaml.load", "yaml.unsafe_load", "numpy.load", "np.load"}
FORBIDDEN_CALLS |= {"os.system", "os.popen", "object.__setattr__"}
# It does what the standard library does for a dataclass, with names from our own source alone.
ALLOWED = {"src/firsthand/values.py": {"exec", "object.__setattr__"}}

# A path that exists on one machine only. The text is split so that this file passes too.
MACHINE_PATH = re.compile(r"(?<![\w.])/(?:work|farm|root|home|Users|tmp)/[\w.-]+")
TEXT_SUFFIXES = {".py", ".md", ".toml", ".txt", ".cpp", ".h", ".hpp", ".json", ".jsonl", ""}
NOT_OURS = {".git", ".venv", "build", "dist", "results"}


def sources() -> list[Path]:
    return sorted(PACKAGE.rglob("*.py"))


def cpp_sources() -> list[Path]:
    return sorted(path for path in PACKAGE.rglob("*") if path.suffix in (".cpp", ".hpp"))


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
    for file, allowed in ALLOWED.items():
        assert {line.partition(": ")[2] for line in found.pop(file)} == allowed
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


ENVIRONMENT = re.compile(r"\b(os\.environb?|os\.(get|put|unset)env|import (environ|getenv))")


def environment_readers(tree: ast.AST) -> Iterator[str]:
    for node in ast.walk(tree):
        if isinstance(node, ast.Attribute | ast.ImportFrom) and ENVIRONMENT.search(
            ast.unparse(node)
        ):
            yield f"line {node.lineno}: {ast.unparse(node)}"


def test_only_config_reads_the_environment() -> None:
    readers = {name(path) for path in sources() if list(environment_readers(parse(path)))}
    assert readers == {"src/firsthand/config.py"}


@pytest.mark.parametrize(
    "text",
    [
        "os.environ['X']",
        "x = os.environ",
        "os.getenv('X')",
        "from os import environ",
        "from os import getenv as read",
        "def f():\n    os.putenv('X', '1')",
    ],
)
def test_the_environment_rule_can_fail(text: str) -> None:
    assert list(environment_readers(ast.parse(text)))


def test_every_module_says_what_it_owns() -> None:
    """Three answers: what it owns, what it may not know, what to read next."""
    lacking = {}
    for path in sources():
        text = ast.get_docstring(parse(path)) or ""
        missing = [word for word in ("Owns:", "May not", "Read next:") if word not in text]
        if missing and path.read_text(encoding="utf-8").strip():
            lacking[name(path)] = missing
    assert not lacking


def python_functions(tree: ast.AST) -> Iterator[tuple[str, int]]:
    """Each function with its number of lines."""
    for node in ast.walk(tree):
        if isinstance(node, ast.FunctionDef | ast.AsyncFunctionDef):
            yield node.name, (node.end_lineno or 0) - node.lineno + 1


def cpp_functions(lines: list[str]) -> Iterator[tuple[str, int]]:
    """Each function outside a class, by our layout: both its first line and its last brace stand
    at the margin, and nothing between them does but a preprocessor line."""
    start = 0
    for number, line in enumerate(lines):
        if line[:1].isalpha():
            start = number
        elif line == "}":
            signature = re.search(r"([\w:~]+)\(", lines[start])
            yield signature[1] if signature else lines[start], number - start + 1


def too_long() -> Iterator[tuple[str, int]]:
    """Files and functions beyond their limit, with their number of lines."""
    for path in (*sources(), *cpp_sources()):
        text = path.read_text(encoding="utf-8")
        lines = text.splitlines()
        if len(lines) > MAX_FILE_LINES:
            yield name(path), len(lines)
        python = path.suffix == ".py"
        for function, length in python_functions(parse(path)) if python else cpp_functions(lines):
            if length > MAX_FUNCTION_LINES:
                yield f"{name(path)}::{function}", length


def test_files_and_functions_keep_their_size() -> None:
    """Also the other way: an exception that is no longer needed goes."""
    assert dict(too_long()).keys() == LONG_FILES.keys() | LONG_FUNCTIONS.keys()


def test_the_size_rule_sees_functions_of_both_languages() -> None:
    python = "async def a():\n    def b():\n        pass\n\n    return b"
    assert dict(python_functions(ast.parse(python))) == {"a": 5, "b": 2}
    cpp = [
        *("namespace x {", "", "template <class T>", "int f(int a,", "      int b) {"),
        *("#if Y", "  if (a) {", "  }", "#endif", "  return b;", "}", "", "}  // namespace x"),
    ]
    assert list(cpp_functions(cpp)) == [("f", 8)]
    found = [
        each for path in cpp_sources() for each in cpp_functions(path.read_text().splitlines())
    ]
    assert len(found) > 50, "the layout that the rule relies on is gone"


def global_statements(tree: ast.AST) -> Iterator[int]:
    """`global` is the sign of a module that keeps changing state; a constant needs none."""
    yield from (node.lineno for node in ast.walk(tree) if isinstance(node, ast.Global))


def test_no_module_keeps_changing_state() -> None:
    found = [f"{name(path)}:{at}" for path in sources() for at in global_statements(parse(path))]
    assert not found


def test_the_state_rule_can_fail() -> None:
    assert list(global_statements(ast.parse("def f():\n    global x\n    x = 1"))) == [2]


def texts() -> Iterator[Path]:
    for path in sorted(ROOT.rglob("*")):
        parts = path.relative_to(ROOT).parts
        hidden = any(part.startswith(".") and part != ".ci" for part in parts)
        if not hidden and not NOT_OURS & set(parts) and path.is_file():
            yield path


def machine_paths(text: str) -> Iterator[str]:
    for number, line in enumerate(text.splitlines(), 1):
        yield from (f"line {number}: {hit}" for hit in MACHINE_PATH.findall(line))


def test_no_text_names_a_place_on_one_machine() -> None:
    found = {
        name(path): list(machine_paths(path.read_text(encoding="utf-8")))
        for path in texts()
        if path.suffix in TEXT_SUFFIXES and path.stat().st_size <= 1_000_000
    }
    assert not {file: lines for file, lines in found.items() if lines}


def test_the_path_rule_can_fail() -> None:
    assert list(machine_paths("see\n/" + "tmp/x")) == ["line 2: /" + "tmp/x"]
    assert not list(machine_paths("docs/tmp/x, https://example.org/home/x"))


# Older ones have faults that a request reaches (S-94): a template out of its sandbox, requests told
# apart wrongly, work that grows with the square of a header.
FLOORS = {"jinja2": (3, 1, 6), "h11": (0, 16), "starlette": (1, 0, 1), "torch": (2, 6)}


def test_s_94_no_version_that_is_known_to_be_bad_is_allowed() -> None:
    text = (ROOT / "pyproject.toml").read_text(encoding="utf-8")
    asked = dict(re.findall(r'"([\w-]+)>=([\d.]+)"', text))
    for library, floor in FLOORS.items():
        assert tuple(int(part) for part in asked[library].split(".")) >= floor, library
    assert "multipart" not in text
