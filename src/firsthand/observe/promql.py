"""Pieces of Prometheus' language, over metrics of the catalogue only.

Owns: selectors, durations and quantiles, as they are written.
May not know: what is asked with them.
Read next: `catalogue.py`; `alerts.py` and `dashboards.py`, which ask.
"""

from __future__ import annotations

from firsthand.observe.catalogue import CATALOGUE
from firsthand.observe.entry import Kind


def duration(seconds: float) -> str:
    """As Prometheus writes one: 90 → `90s`, 0.5 → `500ms`."""
    return f"{seconds:.0f}s" if seconds == int(seconds) else f"{seconds * 1000:.0f}ms"


def series(name: str, suffix: str = "", **labels: str) -> str:
    """A selector of one metric of the catalogue; KeyError of any other, or of a label that it has
    not. A label's value may begin with the operator, `=~` or `!~`; without one it is `=`."""
    entry = CATALOGUE[name]
    if suffix and entry.kind is not Kind.HISTOGRAM:
        raise KeyError(f"{name} has no {suffix}")
    known = {*entry.label_names, "job", "instance", "le"}
    if not labels.keys() <= known:
        raise KeyError(f"{name} has no label {labels.keys() - known}")
    parts = []
    for label, value in labels.items():
        operator = value[:2] if value[:2] in ("=~", "!~") else "="
        parts.append(f'{label}{operator}"{value.removeprefix(operator)}"')
    inner = "{" + ",".join(parts) + "}" if parts else ""
    return f"{entry.exposed}{suffix}{inner}"


def quantile(q: float, name: str, window_s: float, by: str = "job", **labels: str) -> str:
    buckets = f"rate({series(name, '_bucket', **labels)}[{duration(window_s)}])"
    return f"histogram_quantile({q:g}, sum by ({by}, le) ({buckets}))"
