"""What every test may ask for: the real models, if they are on this machine.

Owns: where tests find a model, or a folder on no disk. May not know: how a test uses it.
Read next: any `test_*.py`.

A model is found through an environment variable (a path), else in the cache that
`firsthand pull NAME` fills. With FIRSTHAND_REQUIRE_MODELS=1 (as `make test` sets it) a missing
model is a failure, so that a green run means that nothing was left out. FIRSTHAND_TEST_NATIVE names
the kernels to test, if not those that are installed.
"""

from __future__ import annotations

import importlib.util
import os
import shutil
import sys
import tempfile
from collections.abc import Iterator
from pathlib import Path

import pytest


def pytest_configure() -> None:
    """Tests leave no packed models behind; those of packing itself say where theirs go."""
    os.environ["FIRSTHAND_PACK_CACHE"] = "0"
    if built := os.environ.get("FIRSTHAND_TEST_NATIVE"):
        _load_kernels(built)


def _load_kernels(path: str) -> None:
    """Those of this file, and not the installed ones: `make sanitize`."""
    name = "firsthand.compute.native._native"
    spec = importlib.util.spec_from_file_location(name, path)
    assert spec is not None
    assert spec.loader is not None
    sys.modules[name] = importlib.util.module_from_spec(spec)
    spec.loader.exec_module(sys.modules[name])


@pytest.fixture
def fast_folder() -> Iterator[Path]:
    """In memory where there is such a place: what a run leaves does not depend on the disk."""
    memory = Path("/dev/shm")
    folder = Path(tempfile.mkdtemp(dir=memory if memory.is_dir() else None))
    yield folder
    shutil.rmtree(folder)


@pytest.fixture(scope="session")
def smollm2_path() -> Path:
    """The .gguf file of SmolLM2-135M-Instruct."""
    return _model("FIRSTHAND_TEST_MODEL", "smollm2-135m")


@pytest.fixture(scope="session")
def gemma3_path() -> Path:
    """The .gguf file of Gemma 3 270M."""
    return _model("FIRSTHAND_TEST_GEMMA3", "gemma3-270m")


def _model(variable: str, name: str) -> Path:
    if given := os.environ.get(variable):
        path = Path(given)
        assert path.is_file(), f"{variable} names no file: {path}"
        return path
    from firsthand.config import read_environment
    from firsthand.errors import ModelNotFound
    from firsthand.weights.catalogue import resolve

    try:
        return resolve(name, read_environment()).path
    except ModelNotFound as error:
        reason = f"{error} (run `firsthand pull {name}`, or set {variable})"
    if os.environ.get("FIRSTHAND_REQUIRE_MODELS") == "1":
        pytest.fail(reason)
    pytest.skip(reason)
