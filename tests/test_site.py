"""The site is built of the pages, and every link inside it leads somewhere.

Owns: a build without pages, which parses and resolves what a build with them does.
May not know: what a page says. Read next: `docs/conf.py`.
"""

from __future__ import annotations

import subprocess
import sys
from pathlib import Path

import pytest

ROOT = Path(__file__).resolve().parents[1]


@pytest.mark.slow
def test_the_site_builds_without_a_warning(tmp_path: Path) -> None:
    said = ["-m", "sphinx", "-q", "-W", "--keep-going", "-b", "dummy", "-d", str(tmp_path / "read")]
    done = subprocess.run(
        [sys.executable, *said, str(ROOT / "docs"), str(tmp_path / "site")],
        capture_output=True,
        encoding="utf-8",
        timeout=300,
    )
    assert done.returncode == 0, done.stderr
