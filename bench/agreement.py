"""Our perplexity of a text beside llama.cpp's, on the same file: they must agree within 0.5 %.

Owns: what is compared with what, and the lines.
May not know: how either computes it.
Read next: `rivals/perplexity_llamacpp.py`; `src/firsthand/evaluate/windows.py`, `halves`.

    python bench/agreement.py MODEL.gguf [MODEL.gguf …] [--text FILE] [--windows 20]

Each reads the text itself: its own tokens, windows as it cuts them. `firsthand eval`
does so by `--method halves`, once with the file's own blocks and once with what they stand for in
floats. llama.cpp rounds activations to 8 bits, ours have more: that is what is left between them.
The text is Python's help on its own language, unless another is named.
"""

from __future__ import annotations

import argparse
import json
import subprocess
import sys
import tempfile
from collections.abc import Sequence
from pathlib import Path
from typing import Any

ROOT = Path(__file__).resolve().parents[1]
sys.path.insert(0, str(ROOT))

from bench.record import cpu, head  # noqa: E402
from bench.rivals.engines import HERE, VERSIONS  # noqa: E402

LINES = ROOT / "bench" / "results" / "agreement.jsonl"
LARGEST_DIFFERENCE = 0.5  # percent
WINDOW = 512


def theirs(rivals: Path, model: Path, text: Path, window: int, windows: int) -> dict[str, Any]:
    python = rivals / "venv" / "llamacpp" / "bin" / "python"
    script = HERE / "perplexity_llamacpp.py"
    return answer([str(python), str(script), str(model), str(text), str(window), str(windows)])


def ours(model: Path, text: Path, window: int, windows: int, quantization: str) -> dict[str, Any]:
    command = [sys.executable, "-m", "firsthand.cli.main", "eval", str(model)]
    command += ["--metric", "perplexity", "--method", "halves", "--text", str(text)]
    command += ["--window", str(window), "--windows", str(windows)]
    return answer([*command, "--quantization", quantization, "--no-pack-cache", "--json"])


def answer(command: Sequence[str]) -> dict[str, Any]:
    done = subprocess.run(command, stdout=subprocess.PIPE, text=True, check=True)
    return dict(json.loads(done.stdout))


def compared(
    rivals: Path, model: Path, text: Path, *, window: int = WINDOW, windows: int
) -> dict[str, Any]:
    """Raises ValueError where the two did not score as many tokens."""
    reference = theirs(rivals, model, text, window, windows)
    line: dict[str, Any] = {
        **head("agreement"),
        "cpu": cpu(),
        "model": model.name,
        "version": VERSIONS["llama-cpp-python"],
        "window": window,
        **reference,
    }
    for name in ("auto", "none"):
        found = ours(model, text, window, windows, name)
        if found["tokens_scored"] != reference["tokens_scored"]:
            raise ValueError(f"{found['tokens_scored']} tokens, not {reference['tokens_scored']}")
        difference = 100 * (found["perplexity"] / reference["perplexity"] - 1)
        line[name] = {"perplexity": found["perplexity"], "difference_percent": difference}
    return line


def main(arguments: Sequence[str]) -> int:
    parser = argparse.ArgumentParser(description="Our perplexity beside llama.cpp's.")
    parser.add_argument("models", type=Path, nargs="+")
    parser.add_argument("--text", type=Path)
    parser.add_argument("--windows", type=int, default=20)
    parser.add_argument("--rivals", type=Path, default=ROOT / ".rivals", help="where they are")
    given = parser.parse_args(arguments)
    agree = True
    with tempfile.TemporaryDirectory() as folder:
        text = given.text or help_text(Path(folder) / "help.txt")
        for model in given.models:
            line = compared(given.rivals.resolve(), model, text, windows=given.windows)
            found = max(abs(line[name]["difference_percent"]) for name in ("auto", "none"))
            agree = agree and found <= LARGEST_DIFFERENCE
            print(json.dumps(line), flush=True)
            LINES.parent.mkdir(parents=True, exist_ok=True)
            with LINES.open("a", encoding="utf-8") as file:
                print(json.dumps(line), file=file)
    return 0 if agree else 1


def help_text(path: Path) -> Path:
    from pydoc_data.topics import topics

    path.write_text("\n".join(topics[name] for name in sorted(topics))[:200_000], encoding="utf-8")
    return path


if __name__ == "__main__":
    sys.exit(main(sys.argv[1:]))
