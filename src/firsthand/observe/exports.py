"""The files of this repository that are made of the catalogue.

Owns: which they are, and their paths. May not know: what stands in them.
Read next: `metrics_page.py`.

`make generated` writes them; a test fails while one differs from what it would write.
"""

from __future__ import annotations

from collections.abc import Mapping
from pathlib import Path

from firsthand.observe.metrics_page import metrics_page


def generated() -> dict[str, str]:
    """Every file's path from the root of the repository, and its text."""
    return {"docs/metrics.md": metrics_page()}


def write(files: Mapping[str, str], root: Path) -> None:
    for path, text in files.items():
        target = root / path
        target.parent.mkdir(parents=True, exist_ok=True)
        target.write_text(text, encoding="utf-8")


if __name__ == "__main__":
    write(generated(), Path())
