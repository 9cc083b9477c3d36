"""A load in figures, under the names that vLLM's `bench serve` gives its result.

Owns: rates, goodput, the keys.
May not know: how a request was sent.
Read next: `outcomes.py`, where the times come from.
"""

from __future__ import annotations

import statistics
from collections import Counter
from collections.abc import Mapping, Sequence
from typing import Any

from firsthand.checks import check_choice, check_number
from firsthand.errors import InvalidRequest
from firsthand.loadtest.outcomes import Outcome
from firsthand.percentile import percentile

METRICS = ("ttft", "tpot", "itl", "e2el")
GOALS = ("ttft", "tpot", "e2el")  # a goodput has limits of a request's own


def read_goodput(pairs: Sequence[str]) -> dict[str, float]:
    """`["ttft:500"]` → {"ttft": 500}, in ms. Raises InvalidRequest."""
    found = {}
    for pair in pairs:
        name, _, limit = pair.partition(":")
        check_choice("goodput", name, GOALS)
        if name in found:
            raise InvalidRequest("goodput", f"{name} is given twice")
        try:
            found[name] = float(limit)
        except ValueError:
            raise InvalidRequest("goodput", f"must be NAME:MS, not {pair!r}") from None
        check_number("goodput", found[name], 0, 1e9, low_open=True)
    return found


def read_percentiles(text: str) -> list[float]:
    """`"50,99.9"` → [50, 99.9]. Raises InvalidRequest."""
    try:
        found = [float(word) for word in text.split(",")]
    except ValueError:
        raise InvalidRequest("metric_percentiles", f"must be numbers, not {text!r}") from None
    for one in found:
        check_number("metric_percentiles", one, 0, 100)
    return found


def read_metrics(text: str) -> list[str]:
    """`"ttft,tpot"` → those. Raises InvalidRequest."""
    names = text.split(",")
    for name in names:
        check_choice("percentile_metrics", name, METRICS)
    return names


def times_ms(outcomes: Sequence[Outcome]) -> dict[str, list[float]]:
    """By metric, of those that were answered."""
    good = [one for one in outcomes if not one.fault]
    return {
        "ttft": [one.ttft_s * 1e3 for one in good],
        "tpot": [one.tpot_s * 1e3 for one in good if one.output_tokens > 1],
        "itl": [gap_s * 1e3 for one in good for gap_s in one.itls_s],
        "e2el": [one.e2el_s * 1e3 for one in good],
    }


def summary(
    outcomes: Sequence[Outcome],
    metrics: Sequence[str] = METRICS,
    percentiles: Sequence[float] = (99,),
    goodput: Mapping[str, float] | None = None,
) -> dict[str, Any]:
    """`duration` in seconds, from the first request to the last answer; throughputs per second."""
    good = [one for one in outcomes if not one.fault]
    duration = max((one.ended_s for one in outcomes), default=0.0) or 1e-9
    num_in, num_out = (
        sum(one.input_tokens for one in good),
        sum(one.output_tokens for one in good),
    )
    met = sum(_meets(one, goodput) for one in good) if goodput else None
    found: dict[str, Any] = {
        "duration": duration,
        "completed": len(good),
        "failed": len(outcomes) - len(good),
        "total_input_tokens": num_in,
        "total_output_tokens": num_out,
        "request_throughput": len(good) / duration,
        "request_goodput": None if met is None else met / duration,
        "output_throughput": num_out / duration,
        "total_token_throughput": (num_in + num_out) / duration,
        "max_output_tokens_per_s": _most_per_second(good),
        "max_concurrent_requests": _most_at_once(outcomes),
    }
    times = times_ms(outcomes)
    for name in metrics:
        values = times[name]
        found[f"mean_{name}_ms"] = statistics.fmean(values) if values else 0.0
        found[f"median_{name}_ms"] = percentile(values, 0.5)
        found[f"std_{name}_ms"] = statistics.pstdev(values) if values else 0.0
        for one in percentiles:
            found[f"p{one:g}_{name}_ms"] = percentile(values, one / 100)
    late_ms = [(one.sent_s - one.intended_s) * 1e3 for one in outcomes]
    found["latency_counts_from"] = "intended send time"
    found["p99_send_delay_ms"] = percentile(late_ms, 0.99)
    return found


def details(outcomes: Sequence[Outcome]) -> dict[str, Any]:
    """One entry per request; times in seconds."""
    return {
        "input_lens": [one.input_tokens for one in outcomes],
        "output_lens": [one.output_tokens for one in outcomes],
        "ttfts": [0.0 if one.fault else one.ttft_s for one in outcomes],
        "itls": [one.itls_s for one in outcomes],
        "start_times": [one.intended_s for one in outcomes],
        "errors": [one.fault for one in outcomes],
    }


def faults(outcomes: Sequence[Outcome]) -> list[tuple[str, int]]:
    """Each kind with its number, the most frequent first."""
    return Counter(one.fault for one in outcomes if one.fault).most_common()


def _meets(one: Outcome, goals: Mapping[str, float]) -> bool:
    values = {"ttft": one.ttft_s, "tpot": one.tpot_s, "e2el": one.e2el_s}
    return all(values[name] * 1e3 <= limit for name, limit in goals.items())


def _most_per_second(good: Sequence[Outcome]) -> float:
    """Tokens in the busiest whole second. A piece of text may be several tokens."""
    seconds: Counter[int] = Counter()
    for one in good:
        for time_s in one.token_times_s:
            seconds[int(time_s)] += 1
    pieces = sum(len(one.token_times_s) for one in good)
    tokens = sum(one.output_tokens for one in good)
    return max(seconds.values(), default=0) * tokens / max(1, pieces)


def _most_at_once(outcomes: Sequence[Outcome]) -> int:
    events = sorted([(one.sent_s, 1) for one in outcomes] + [(one.ended_s, -1) for one in outcomes])
    most = at_once = 0
    for _, change in events:
        at_once += change
        most = max(most, at_once)
    return most
