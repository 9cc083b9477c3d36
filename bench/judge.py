"""An outside judge: lm-eval asks our server, and says what each format of the weights is worth.

Owns: its two tasks, which need nothing from any hub, the server's start and end, the lines.
May not know: how a score is computed, here or there.
Read next: `rivals/install.py`, step `lmeval`; docs/evaluate.md, where the table stands.

    python bench/judge.py NAME MODEL TEXT [FORMAT …] [--questions 200] [--tokenizer FOLDER]

A FORMAT is one of --quantization, or the folder of another model. lm-eval needs a folder with the
tokenizer: MODEL, unless another is named.
lm-eval runs in its own interpreter and asks `/v1/completions` for the log-probabilities of prompts
(`echo` with `logprobs`): what it counts, it counts itself.

| task | what is asked | the figure |
|---|---|---|
| endings | which of four endings a line has; three are other lines' | accuracy |
| passages | the text itself, in pieces | perplexity of a word, bits of a byte |
"""

from __future__ import annotations

import argparse
import json
import os
import random
import subprocess
import sys
import tempfile
import time
from collections.abc import Iterator, Sequence
from contextlib import contextmanager
from pathlib import Path
from typing import Any
from urllib.request import urlopen

ROOT = Path(__file__).resolve().parents[1]
sys.path.insert(0, str(ROOT))

from bench.record import cpu, head  # noqa: E402

LINES = ROOT / "bench" / "results" / "judge.jsonl"
FORMATS = ("none", "int8", "int4")
READY_S = 120.0
PIECE_CHARS = 1_000
HEAD = "dataset_path: json\ntest_split: test\nnum_fewshot: 0\n"
ENDINGS = """output_type: multiple_choice
doc_to_text: "{{beginning}}"
doc_to_choice: "{{endings}}"
doc_to_target: "{{answer}}"
target_delimiter: ""
metric_list:
  - metric: acc
"""
PASSAGES = """output_type: loglikelihood_rolling
doc_to_text: ""
doc_to_target: "{{text}}"
metric_list:
  - metric: word_perplexity
  - metric: bits_per_byte
"""


def questions(text: str, count: int) -> list[dict[str, Any]]:
    """Lines cut at a space near their middle; the other endings are those of lines drawn."""
    draw = random.Random(0)
    lines = [line for line in text.splitlines() if 60 <= len(line) <= 300]
    draw.shuffle(lines)
    cuts = [line.index(" ", len(line) // 2) for line in lines if " " in line[len(line) // 2 :]]
    lines = [line for line in lines if " " in line[len(line) // 2 :]]
    endings = [line[at:] for line, at in zip(lines, cuts, strict=True)]
    found = []
    for number in range(min(count, len(lines))):
        others = draw.sample([n for n in range(len(lines)) if n != number], 3)
        shown = [endings[n] for n in others]
        answer = draw.randrange(4)
        shown.insert(answer, endings[number])
        beginning = lines[number][: cuts[number]]
        found.append({"beginning": beginning, "endings": shown, "answer": answer})
    return found


def write_tasks(folder: Path, text: str, count: int) -> None:
    pieces = [text[at : at + PIECE_CHARS] for at in range(0, count * 100, PIECE_CHARS)]
    tasks: dict[str, tuple[str, list[dict[str, Any]]]] = {
        "endings": (ENDINGS, questions(text, count)),
        "passages": (PASSAGES, [{"text": piece} for piece in pieces if piece.strip()]),
    }
    for name, (form, rows) in tasks.items():
        data = folder / f"{name}.jsonl"
        data.write_text("\n".join(json.dumps(row) for row in rows), encoding="utf-8")
        files = f"dataset_kwargs:\n  data_files:\n    test: {data}\n"
        (folder / f"{name}.yaml").write_text(f"task: {name}\n{HEAD}{files}{form}")


@contextmanager
def served(model: Path, quantization: str, port: int) -> Iterator[str]:
    command = [sys.executable, "-m", "firsthand.cli.main", "serve", str(model)]
    command += [
        "--quantization",
        quantization,
        "--port",
        str(port),
        "--served-model-name",
        "judged",
    ]
    process = subprocess.Popen(command, stdout=subprocess.DEVNULL)
    url = f"http://127.0.0.1:{port}"
    try:
        wait_ready(url, process)
        yield f"{url}/v1/completions"
    finally:
        process.terminate()
        process.wait(30)


def wait_ready(url: str, process: subprocess.Popen[bytes]) -> None:
    until = time.monotonic() + READY_S
    while time.monotonic() < until and process.poll() is None:
        try:
            with urlopen(f"{url}/readyz", timeout=5) as reply:
                if reply.status == 200:
                    return
        except OSError:
            time.sleep(0.2)
    raise SystemExit("the server does not become ready")


def asked(lmeval: Path, url: str, tokenizer: Path, tasks: Path, window: int) -> dict[str, Any]:
    """lm-eval's own results, by task."""
    arguments = f"model=judged,base_url={url},tokenizer={tokenizer},max_length={window}"
    out = tasks / "out"
    command = [str(lmeval), "-m", "lm_eval", "run", "--model", "local-completions"]
    command += ["--model_args", arguments + ",num_concurrent=1,tokenized_requests=True"]
    command += ["--include_path", str(tasks), "--tasks", "endings,passages"]
    offline = {"HF_HUB_OFFLINE": "1", "HF_DATASETS_OFFLINE": "1", "HF_HOME": str(tasks / "cache")}
    done = subprocess.run(
        [*command, "--output_path", str(out)],
        env={**os.environ, **offline},
        stdout=subprocess.PIPE,
        stderr=subprocess.STDOUT,
        text=True,
    )
    if done.returncode != 0:
        raise SystemExit(done.stdout[-3_000:])
    newest = max(out.rglob("results*.json"), key=lambda path: path.stat().st_mtime)
    return dict(json.loads(newest.read_text(encoding="utf-8"))["results"])


def judged(
    lmeval: Path,
    model: Path,
    quantization: str,
    tasks: Path,
    *,
    window: int,
    port: int,
    tokenizer: Path | None = None,
) -> dict[str, Any]:
    with served(model, quantization, port) as url:
        results = asked(lmeval, url, tokenizer or model, tasks, window)
    endings, passages = results["endings"], results["passages"]
    return {
        "accuracy": endings["acc,none"],
        "accuracy_standard_error": endings["acc_stderr,none"],
        "word_perplexity": passages["word_perplexity,none"],
        "bits_per_byte": passages["bits_per_byte,none"],
    }


def main(arguments: Sequence[str]) -> int:
    parser = argparse.ArgumentParser(description="lm-eval asks our server.")
    parser.add_argument("name")
    parser.add_argument("model", type=Path)
    parser.add_argument("text", type=Path)
    parser.add_argument("formats", nargs="*", default=FORMATS)
    parser.add_argument("--questions", type=int, default=200)
    parser.add_argument("--window", type=int, default=128)
    parser.add_argument("--tokenizer", type=Path)
    parser.add_argument("--port", type=int, default=8765)
    python = ROOT / ".rivals" / "venv" / "lmeval" / "bin" / "python"
    parser.add_argument("--lmeval", type=Path, default=python, help="an interpreter with lm-eval")
    given = parser.parse_args(arguments)
    text = given.text.read_text(encoding="utf-8")
    for form in given.formats:
        model, quantization = given.model, form
        if "/" in form:
            model, quantization = Path(form), "auto"
        with tempfile.TemporaryDirectory() as folder:
            write_tasks(Path(folder), text, given.questions)
            found = judged(
                given.lmeval,
                model,
                quantization,
                Path(folder),
                window=given.window,
                port=given.port,
                tokenizer=given.tokenizer,
            )
        line = {
            **head("judge"),
            "cpu": cpu(),
            "model": given.name,
            "weights": quantization if model == given.model else model.name,
            "questions": given.questions,
            **found,
        }
        print(json.dumps(line), flush=True)
        LINES.parent.mkdir(parents=True, exist_ok=True)
        with LINES.open("a", encoding="utf-8") as file:
            print(json.dumps(line), file=file)
    return 0


if __name__ == "__main__":
    sys.exit(main(sys.argv[1:]))
