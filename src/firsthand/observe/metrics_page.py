"""The page of all metrics, made of the catalogue.

Owns: its layout, and how others call the same thing. May not know: how anything is counted.
Read next: `exports.py`, which writes it.
"""

from __future__ import annotations

from firsthand.observe.catalogue import SECTIONS
from firsthand.observe.entry import Entry, Label, When
from firsthand.observe.labels import MODEL

_HEAD = """# Metrics

[中文](metrics.zh-CN.md)

Made of the catalogue (`src/firsthand/observe/catalogue.py`) by `make generated`; a test holds it \
to what a server gives out. `GET /metrics`: Prometheus' text, or OpenMetrics by `Accept`. It needs \
a key, but for `--metrics-public`.

Base units. No label holds what a caller wrote; `model` is the service's own name for its model, \
whichever of its names a caller used. A counter's name ends in `_total`; a histogram \
`x` has `x_bucket`, `x_sum` and `x_count`. What is known anyway is read when somebody asks; the \
rest is counted once per step, answer or request.
"""

# Theirs → ours, for whoever has dashboards of another server.
_OTHERS = (
    ("`sglang:num_running_reqs`", "`firsthand_requests_running`"),
    ("`sglang:num_queue_reqs`", "`sum(firsthand_requests_waiting)`"),
    ("`sglang:token_usage`", "`firsthand_kv_blocks_used_ratio`"),
    (
        "`sglang:cache_hit_rate`",
        '`rate(firsthand_prefix_cache_tokens_total{result="hit"}[5m])` over the sum of both',
    ),
    ("`sglang:gen_throughput`", '`rate(firsthand_tokens_total{phase="generation"}[1m])`'),
    ("`llamacpp:prompt_tokens_total`", '`firsthand_tokens_total{phase="prompt"}`'),
    ("`llamacpp:tokens_predicted_total`", '`firsthand_tokens_total{phase="generation"}`'),
    ("`llamacpp:requests_processing`", "`firsthand_requests_running`"),
    ("`llamacpp:requests_deferred`", "`sum(firsthand_requests_waiting)`"),
)


def metrics_page() -> str:
    parts = [_HEAD]
    for section in SECTIONS:
        rows = "\n".join(map(_row, section.entries))
        head = "| name | kind | unit | what it says | labels |\n|---|---|---|---|---|"
        parts.append(f"## {section.title}\n\n{head}\n{rows}\n")
    parts += [_buckets(), _vllm(), _others()]
    return "\n".join(parts)


def _row(entry: Entry) -> str:
    labels = "; ".join(map(_label, entry.labels)) or "none"
    meaning = entry.meaning + ("" if entry.when is When.ALWAYS else f" ({entry.when})")
    return f"| `{entry.exposed}` | {entry.kind} | {entry.unit or '1'} | {meaning} | {labels} |"


def _label(label: Label) -> str:
    if label is MODEL:
        return "`model`"
    values = ", ".join(f"`{value}`" for value in label.values if value)
    return f"`{label.name}`: {values or label.meaning}"


def _buckets() -> str:
    found: dict[tuple[float, ...], list[str]] = {}
    for section in SECTIONS:
        for entry in section.entries:
            if entry.buckets:
                found.setdefault(entry.buckets, []).append(f"`{entry.name}`")
    rows = "\n".join(
        f"| {', '.join(names)} | {' '.join(f'{bound:g}' for bound in bounds)} |"
        for bounds, names in found.items()
    )
    return f"## Buckets\n\n| of | upper bounds |\n|---|---|\n{rows}\n"


def _vllm() -> str:
    rows = "\n".join(
        f"| `{alias.name}` | `{entry.exposed}{_where(alias.where)}` |"
        for section in SECTIONS
        for entry in section.entries
        for alias in entry.aliases
    )
    return f"""## Under vLLM's names

The same numbers with the labels `model_name` and `engine`, for dashboards and autoscalers that \
exist; `--vllm-metrics false` leaves them out. Counters have `_total` there too.

| vLLM | ours |
|---|---|
{rows}
"""


def _where(where: tuple[tuple[str, str], ...]) -> str:
    inner = ",".join(f'{name}="{value}"' for name, value in where)
    return f"{{{inner}}}" if inner else ""


def _others() -> str:
    rows = "\n".join(f"| {theirs} | {ours} |" for theirs, ours in _OTHERS)
    return f"## Of other servers\n\n| there | here |\n|---|---|\n{rows}\n"
