"""Micro models, and stores of releases of them."""

from __future__ import annotations

from collections.abc import Callable
from pathlib import Path

import pytest

from firsthand.cli.micro_model import write_micro_model
from firsthand.generation.load_options import LoadOptions
from firsthand.generation.service_values import ServiceOptions
from firsthand.release.record import Release
from firsthand.release.staging import Staged, stage
from firsthand.release.store import Store
from firsthand.weights.sums import Sums

SUMS = Sums(None)
Stage = Callable[..., Release]


@pytest.fixture
def store(tmp_path: Path) -> Store:
    return Store(tmp_path / "store")


@pytest.fixture(scope="session")
def models(tmp_path_factory: pytest.TempPathFactory) -> Path:
    return tmp_path_factory.mktemp("models")


@pytest.fixture
def staged(store: Store, models: Path) -> Stage:
    """`staged(seed)`: a release of a model of its own, quickly, without golden tokens."""

    def make(seed: int, *, golden: bool = False) -> Release:
        return stage_micro(store, models / f"model-{seed}", seed, golden=golden)

    return make


def stage_micro(store: Store, folder: Path, seed: int, *, golden: bool) -> Release:
    if not folder.exists():
        folder.mkdir()
        write_micro_model(folder, seed)
    wanted = Staged("micro", {"threads": 1}, None, run if golden else None)
    return stage(store, folder, wanted, SUMS)[0]


def run(path: Path) -> ServiceOptions:
    return ServiceOptions(path, LoadOptions(threads=1))
