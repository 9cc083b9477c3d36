"""Two texts that every Python has with it: one to calibrate a real model on, one to judge it on.

Owns: how they are put together. They are Python's own help, every second topic in the one and the
others in the other; before the latter stand the passages that the quality gate reads.
May not know: models. Read next: `quantization.py`, which takes both.

    python bench/help_topics.py OUT    write OUT/calibration.txt and OUT/held_out.txt
"""

from __future__ import annotations

import sys
from pathlib import Path
from pydoc_data.topics import topics

PASSAGES = Path(__file__).resolve().parents[1] / "tests" / "evaluate" / "passages.txt"


def main(out: Path) -> None:
    names = sorted(topics)
    calibration = "\n".join(topics[name] for name in names[0::2])
    held_out = PASSAGES.read_text(encoding="utf-8") + "\n".join(
        topics[name] for name in names[1::2]
    )
    out.mkdir(parents=True, exist_ok=True)
    (out / "calibration.txt").write_text(calibration, encoding="utf-8")
    (out / "held_out.txt").write_text(held_out, encoding="utf-8")


if __name__ == "__main__":
    main(Path(sys.argv[1]))
