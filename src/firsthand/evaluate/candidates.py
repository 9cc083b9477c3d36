"""Several forms of one model beside each other: size against loss, as JSON, Markdown and a plot.

Owns: who is compared with whom, and the three forms of the result.
May not know: how a divergence is computed, where files go.
Read next: `divergence.py`; `candidates_plot.py`, the picture.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence
from dataclasses import asdict
from typing import Any, cast, get_args

from firsthand.checks import check_choice
from firsthand.evaluate.divergence import Divergence, divergence
from firsthand.evaluate.perplexity import Method, load_for_scoring
from firsthand.generation.load_options import LoadOptions
from firsthand.values import dataclass
from firsthand.weights.sources import Quantization

HEADINGS = (
    "model", "weights, MiB", "perplexity", "change, %", "divergence", "99.9 %", "same top, %"
)  # fmt: skip


@dataclass(frozen=True, slots=True)
class Candidate:
    """One row. Divergences are in nats per token; `held_bytes` are what the weights take."""

    model: str
    quantization: str
    held_bytes: int
    perplexity: float
    perplexity_change_percent: float
    divergence_mean: float
    divergence_standard_error: float
    divergence_999: float
    same_top_share: float
    tokens: int


def split_name(text: str) -> tuple[str, Quantization]:
    """`MODEL` or `MODEL@QUANTIZATION`, as auto where it says none."""
    model, mark, quantization = text.rpartition("@")
    if not mark or quantization not in get_args(Quantization):
        return text, "auto"
    check_choice("quantization", quantization, get_args(Quantization))
    return model, cast(Quantization, quantization)


def compare(
    reference: str,
    candidates: Sequence[str],
    text: str,
    options: dict[str, Any],
    *,
    window: int,
    max_windows: int | None = None,
    stride: int | None = None,
    method: Method = "windows",
    progress: Callable[[str], None] | None = None,
) -> list[Candidate]:
    """The reference as floats, then each candidate, one at a time beside it."""
    floats = load_for_scoring(reference, LoadOptions(**(options | {"quantization": "none"})))
    rows: list[Candidate] = []
    for name in candidates:
        if progress is not None:
            progress(name)
        model, quantization = split_name(name)
        loaded = load_for_scoring(model, LoadOptions(**(options | {"quantization": quantization})))
        found = divergence(
            floats,
            loaded,
            text,
            window=window,
            max_windows=max_windows,
            stride=stride,
            method=method,
        )
        if not rows:
            rows.append(_reference(reference, floats.weights.held_bytes, found))
        rows.append(_row(model, quantization, loaded.weights.held_bytes, found))
    return rows


def _reference(model: str, held_bytes: int, found: Divergence) -> Candidate:
    perplexity, tokens = found.reference_perplexity, found.num_tokens
    return Candidate(model, "none", held_bytes, perplexity, 0.0, 0.0, 0.0, 0.0, 1.0, tokens)


def _row(model: str, quantization: str, held_bytes: int, found: Divergence) -> Candidate:
    return Candidate(
        model,
        quantization,
        held_bytes,
        found.candidate_perplexity,
        found.perplexity_change,
        found.mean,
        found.standard_error,
        found.percentile(99.9),
        found.same_top_share,
        found.num_tokens,
    )


def as_rows(rows: Sequence[Candidate]) -> list[dict[str, Any]]:
    return [asdict(row) for row in rows]


def cells(row: Candidate) -> tuple[str, ...]:
    return (
        f"{row.model}@{row.quantization}",
        f"{row.held_bytes / 2**20:.1f}",
        f"{row.perplexity:.4f}",
        f"{row.perplexity_change_percent:+.3f}",
        f"{row.divergence_mean:.6f}",
        f"{row.divergence_999:.4f}",
        f"{100 * row.same_top_share:.2f}",
    )


def as_markdown(rows: Sequence[Candidate]) -> str:
    lines = [f"| {' | '.join(HEADINGS)} |", "|---" * len(HEADINGS) + "|"]
    lines += [f"| {' | '.join(cells(row))} |" for row in rows]
    return "\n".join(lines) + "\n"
