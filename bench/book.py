"""The figures of the book: what the product's own commands say, kept as lines, put into chapters.

Owns: which command gives which figure, and the marks between which it stands.
May not know: how anything is measured, how a figure looks.
Read next: `book_tables.py`.

    python -m bench.book --measure MODEL [NAME …]   run them (all, or those), a line for each
    python -m bench.book --write                    put the tables into the chapters

Lines are added to `bench/results/book.jsonl`; of each name the last one counts. Other tables are
made of the lines of other benchmarks. No figure is typed.
"""

from __future__ import annotations

import json
import os
import re
import subprocess
import sys
from collections import Counter
from collections.abc import Callable, Mapping, Sequence
from pathlib import Path
from typing import Any

from bench.book_forms import Lines, NotMeasured, missing
from bench.book_tables import LABS, SENTENCES, TABLES
from bench.record import cpu, head

ROOT = Path(__file__).resolve().parents[1]
BOOK = ROOT / "docs" / "book"
PAGES = sorted((ROOT / "docs").glob("autoscaling*.md"))  # others with a figure of the book
RESULTS = ROOT / "bench" / "results"
TRACES = ROOT / "tests" / "cluster" / "autoscaling" / "traces"
TICK_S = 5.0  # of these, and of what is drawn
OTHERS = ("rivals", "quantization", "judge")
FIGURE = re.compile(
    r"(<!-- figure (\w+): made by bench/book\.py -->\n).*?(<!-- end of figure -->)", re.DOTALL
)
KV_TYPES = ("int16", "float16", "float32", "int8")
PROMPT = "The capital of France is"

Found = dict[str, Any]


def command(*arguments: str) -> Found:
    """What a command of ours prints with --json."""
    started = [sys.executable, "-m", "firsthand.cli.main", *arguments, "--json"]
    done = subprocess.run(started, stdout=subprocess.PIPE, text=True, check=True, cwd=ROOT)
    found = json.loads(done.stdout)
    assert isinstance(found, dict)
    return found


def inspected(model: str) -> Found:
    """The tensors by type, and the plan's operators before and after fusion."""
    found = command("inspect", model, "--plan")
    names = ("kinds", "num_tensors", "num_parameters", "tensor_bytes", "shared", "saved_bytes")
    plan = {side: dict(Counter(operators(found["plan"][side]))) for side in ("before", "after")}
    return {name: found[name] for name in names} | {"plan": plan}


def operators(listed: Sequence[str]) -> list[str]:
    """Of lines such as `v3 = linear(v2, …)`."""
    return [line.partition(" = ")[2].partition("(")[0] for line in listed]


def tokens(model: str) -> Found:
    counted = {}
    for text in SENTENCES:
        count = command("tokenize", model, text)["num_tokens"]
        counted[text] = {"bytes": len(text.encode()), "tokens": count}
    return counted


def stages(model: str) -> Found:
    said = ("run", model, PROMPT, "--max-tokens", "64", "--temperature", "0", "--ignore-end")
    timings = command(*said)["timings"]
    return {name: value for name, value in timings.items() if name.endswith("_ms")} | {
        "token_ms": sum(timings["token_ms"])
    }


def loads(model: str) -> Found:
    return {"ways": command("bench", "load", model)["ways"]}


def formats(model: str) -> Found:
    done = subprocess.run(
        [sys.executable, "bench/formats.py"],
        stdout=subprocess.PIPE,
        text=True,
        check=True,
        cwd=ROOT,
    )
    return {"readers": [json.loads(line) for line in done.stdout.splitlines()]}


def rules(model: str) -> Found:
    only = ("--only", "rule", "--only", "base")
    return {"outcomes": command("bench", "ablate", model, *only)["outcomes"]}


def profiled(model: str) -> Found:
    said = {
        "prompt": ("--step", "prompt", "--prompt-tokens", "512"),
        "token": ("--step", "token", "--prompt-tokens", "512"),
    }
    found = {name: command("profile", model, *options) for name, options in said.items()}
    for one in found.values():
        del one["operators"], one["calls"]
    return found


def kv(model: str) -> Found:
    return {
        kind: command("plan", model, "--kv-dtype", kind)["budget"]["kv_bytes_per_token"]
        for kind in KV_TYPES
    }


def ways_compared(model: str) -> Found:
    sizes = ("--output-tokens", "64", "--prefix-tokens", "256")
    return {"outcomes": command("bench", "compare", model, *sizes)["outcomes"]}


def verified(model: str) -> Found:
    names = ("name", "passed", "num_logits", "difference")
    found = command("verify", model)
    properties = [{name: one[name] for name in names} for one in found["properties"]]
    return {"properties": properties, "num_logits": found["num_logits"]}


def books(model: str) -> Found:
    contract = "examples/tickets/tickets.py:Ticket"
    found = command("data", "check", "examples/tickets/tickets.csv", "--contract", contract)
    names = ("read", "accepted", "quarantined", "duplicates", "reasons", "encoding")
    return {name: found[name] for name in names}


def capacity(model: str) -> Found:
    known = ("plan", "capacity", "--tokens-per-second", "100", "--tokens", "200", "--qps", "10")
    said = {
        "peak": ("--qps-is-peak",),
        "mean_low": ("--peak", "3", "--redundancy", "1.5"),
        "mean_high": ("--peak", "5", "--redundancy", "2"),
    }
    return {name: command(*known, *options)["replicas"] for name, options in said.items()}


def autoscaled(model: str) -> Found:
    """Drawn loads of 12 requests a second at their height, and recorded ones."""
    from firsthand.cluster.autoscaling.loads import SHAPES, drawn

    recorded = {
        path.stem: json.loads(path.read_text(encoding="utf-8"))["requests"]
        for path in sorted(TRACES.glob("*.json"))
    }
    shapes = {name: drawn(name, 12.0, TICK_S) for name in SHAPES if name != "constant"}
    return {load: played(arrivals) for load, arrivals in (recorded | shapes).items()}


def played(arrivals: Sequence[float]) -> Found:
    """To at most 12 replicas of 2 requests a second each, ready after 30 s."""
    from firsthand.cluster.autoscaling.limits import Limits
    from firsthand.cluster.autoscaling.simulator import Service, compared

    service = Service(rate=2.0, idle_s=1.0, busy_s=4.0, ttft_ms=200.0, start_s=30.0)
    at_knee = 0.8 * service.rate * service.busy_s  # as `limits_at` has it of a measured knee
    limits = Limits(max_replicas=12, ongoing_out=at_knee, queue_out=at_knee, p99_ttft_ms=500.0)
    found = compared(arrivals, service, limits, TICK_S)
    return {name: outcome.to_dict() for name, outcome in found.items()}


def labs(model: str) -> Found:
    """What those labs show that run without a model, on a clock of their own."""
    found: Found = {}
    for name in LABS:
        for language in ("en", "zh"):
            shown = command("lab", name, "--lang", language)["evidence"]
            kept = {part: shown[part] for part in ("headings", "rows")}
            found.setdefault(name, {})[language] = kept
    return found


def witnesses(model: str) -> Found:
    from firsthand.observe.alert_settings import AlertSettings
    from firsthand.observe.alerts import rules as alert_rules
    from firsthand.observe.catalogue import CATALOGUE
    from firsthand.observe.cause_texts import TEXTS

    entries = list((ROOT / "docs" / "handbook").glob("FH-???.md"))
    tiers = Counter(rule.tier for rule in alert_rules(AlertSettings()))
    return {
        "metrics": len(CATALOGUE),
        "rules": dict(sorted(tiers.items())),
        "causes": len(TEXTS),
        "entries": len(entries),
    }


MEASURES: Mapping[str, Callable[[str], Found]] = {
    "inspect": inspected,
    "tokens": tokens,
    "stages": stages,
    "load": loads,
    "formats": formats,
    "rules": rules,
    "profile": profiled,
    "kv": kv,
    "compare": ways_compared,
    "verify": verified,
    "books": books,
    "capacity": capacity,
    "autoscale": autoscaled,
    "labs": labs,
    "witnesses": witnesses,
}

TIMED = ("stages", "load", "formats", "rules", "profile", "compare")  # where the machine counts


def measure(model: str, names: Sequence[str]) -> None:
    for name in names or MEASURES:
        line = {
            **head("book"),
            "name": name,
            **({"cpu": cpu(), "load": round(os.getloadavg()[0], 1)} if name in TIMED else {}),
            "model": Path(model).name,
            "found": MEASURES[name](model),
        }
        text = json.dumps(line, ensure_ascii=False)
        with (RESULTS / "book.jsonl").open("a", encoding="utf-8") as file:
            file.write(text + "\n")
        print(text[:200])


def read_lines(name: str) -> list[dict[str, Any]]:
    path = RESULTS / f"{name}.jsonl"
    text = path.read_text(encoding="utf-8") if path.exists() else ""
    return [json.loads(line) for line in text.splitlines()]


def measured() -> Lines:
    """The last line of each name, and all of the other benchmarks."""
    newest = {line["name"]: line for line in read_lines("book")}
    return Lines(newest, {name: read_lines(name) for name in OTHERS})


def written(lines: Lines) -> dict[Path, str]:
    """Every page with a figure, as the lines would have it. KeyError for one without a table."""
    pages = {}
    for path in (*sorted(BOOK.glob("*.md")), *PAGES):
        language = "zh" if path.name.endswith(".zh-CN.md") else "en"

        def figure(found: re.Match[str], language: str = language) -> str:
            try:
                text = TABLES[found[2]](lines, language)
            except NotMeasured as error:
                text = missing(str(error), language)
            return found[1] + text + found[3]

        pages[path] = FIGURE.sub(figure, path.read_text(encoding="utf-8"))
    return pages


def main(arguments: Sequence[str]) -> int:
    match list(arguments):
        case ["--measure", model, *names]:
            measure(model, names)
        case ["--write"]:
            for path, text in written(measured()).items():
                path.write_text(text, encoding="utf-8")
        case _:
            print(__doc__, file=sys.stderr)
            return 2
    return 0


if __name__ == "__main__":
    sys.exit(main(sys.argv[1:]))
