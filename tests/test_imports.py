"""What an import costs: `import firsthand` and `firsthand --help` load no heavy library.

Owns: the list of what is heavy. May not know: why a module would want one. Read next:
`test_layers.py`.
"""

from __future__ import annotations

import subprocess
import sys

import pytest

HEAVY = (
    *("numpy", "torch", "tokenizers", "jinja2", "transformers", "huggingface_hub", "matplotlib"),
    *("fastapi", "pydantic", "obstore", "cryptography", "pyarrow", "firsthand.data.running"),
)


def loaded_by(code: str) -> set[str]:
    """Which heavy libraries a fresh interpreter holds after `code`."""
    tail = f"\nimport sys\nsys.stderr.write(' '.join(set({HEAVY!r}) & set(sys.modules)))"
    done = subprocess.run(
        [sys.executable, "-c", code + tail], capture_output=True, text=True, check=True
    )
    return set(done.stderr.split())


def test_the_package_is_light() -> None:
    assert loaded_by("import firsthand") == set()


def test_help_is_light() -> None:
    code = "import sys\nsys.argv = ['firsthand', '--help']\nfrom firsthand.cli.main import main\n"
    code += "try:\n    main()\nexcept SystemExit as done:\n    assert not done.code"
    assert loaded_by(code) == set()


@pytest.mark.native
def test_the_library_needs_no_torch() -> None:
    assert "torch" not in loaded_by("from firsthand import LLM")


@pytest.mark.native
def test_the_engines_of_a_server_start_before_its_http_libraries_are_loaded() -> None:
    found = loaded_by("import firsthand.cli.main, firsthand.server.starting")
    assert found.isdisjoint(("fastapi", "pydantic"))


@pytest.mark.native
def test_a_server_without_files_starts_without_what_jobs_are_made_of() -> None:
    found = loaded_by("import firsthand.server.running")
    assert found.isdisjoint(("obstore", "cryptography", "pyarrow", "firsthand.data.running"))


def test_what_the_package_offers() -> None:
    import firsthand

    assert "LLM" in firsthand.__all__
    for name in firsthand.__all__:
        assert hasattr(firsthand, name)
