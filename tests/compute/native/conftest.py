"""What is compiled once for several tests."""

from __future__ import annotations

import pytest

from tests.compute.native.building import tables


@pytest.fixture(scope="session")
def kernel_tables(tmp_path_factory: pytest.TempPathFactory) -> list[str]:
    """The kernels of this machine's instruction sets, as object files."""
    return tables(tmp_path_factory.mktemp("tables"))
