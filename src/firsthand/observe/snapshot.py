"""A server's metrics at one moment: read from itself, or from a Prometheus that watches it.

Owns: both readings, and what an answer that is none is called.
May not know: what is made of the numbers.
Read next: `evidence.py`.
"""

from __future__ import annotations

import json
import urllib.error
import urllib.request
from collections import defaultdict
from collections.abc import Iterable, Mapping
from typing import Any
from urllib.parse import urlencode, urlsplit

from prometheus_client.parser import text_string_to_metric_families

from firsthand.errors import EngineUnavailable, InvalidRequest
from firsthand.values import dataclass

TIMEOUT_S = 5.0
MAX_BYTES = 16 << 20
OURS = ("firsthand_", "process_", "up")

Samples = Mapping[str, list[tuple[Mapping[str, str], float]]]


@dataclass(frozen=True, slots=True)
class Snapshot:
    """Each sample's labels and value, by its name as Prometheus has it (`…_total`)."""

    at_s: float
    samples: Samples

    def of(self, name: str, **labels: str) -> list[tuple[Mapping[str, str], float]]:
        """Those whose labels are these."""
        return [
            (found, value)
            for found, value in self.samples.get(name, ())
            if all(found.get(label) == wanted for label, wanted in labels.items())
        ]

    def total(self, name: str, **labels: str) -> float:
        return sum(value for _, value in self.of(name, **labels))


def fetched(
    url: str,
    api_key: str | None = None,
    *,
    any_status: bool = False,
    timeout_s: float = TIMEOUT_S,
) -> bytes:
    """`any_status`: what an error says is an answer too. Raises InvalidRequest for no address,
    OSError for no answer."""
    if urlsplit(url).scheme not in ("http", "https"):
        raise InvalidRequest("url", "must be an http address")
    request = urllib.request.Request(url)
    if api_key:
        request.add_header("Authorization", f"Bearer {api_key}")
    try:
        with urllib.request.urlopen(request, timeout=timeout_s) as reply:
            content: bytes = reply.read(MAX_BYTES)
            return content
    except urllib.error.HTTPError as error:
        with error:
            if any_status:
                return error.read(MAX_BYTES)
        if error.code in (401, 403):
            raise InvalidRequest("api_key", f"{url}: answers {error.code}") from None
        raise EngineUnavailable(f"{url}: answers {error.code}") from None


def read_page(page: str, at_s: float) -> Snapshot:
    """The text that `/metrics` gives. Raises EngineUnavailable where it is none."""
    try:
        families = list(text_string_to_metric_families(page))
    except (ValueError, KeyError, IndexError):
        raise EngineUnavailable("what /metrics gives is no metrics") from None
    return Snapshot(
        at_s, _by_name((s.name, s.labels, s.value) for family in families for s in family.samples)
    )


def from_prometheus(url: str, job: str, at_s: float) -> Snapshot:
    """What it knew of a job then. Raises InvalidRequest, EngineUnavailable."""
    query = urlencode({"query": f"{{job={json.dumps(job)}}}", "time": f"{at_s:.3f}"})
    try:
        answer: Any = json.loads(fetched(f"{url.rstrip('/')}/api/v1/query?{query}"))
        rows = [
            (str(one["metric"].pop("__name__")), one["metric"], float(one["value"][1]))
            for one in answer["data"]["result"]
            if "__name__" in one["metric"]
        ]
    except OSError as error:
        raise EngineUnavailable(f"{url}: {getattr(error, 'reason', error)}") from None
    except (ValueError, KeyError, TypeError, IndexError):
        raise EngineUnavailable(f"{url}: is no Prometheus, by its answer") from None
    return Snapshot(at_s, _by_name(rows))


def _by_name(rows: Iterable[tuple[str, Mapping[str, str], float]]) -> Samples:
    found: defaultdict[str, list[tuple[Mapping[str, str], float]]] = defaultdict(list)
    for name, labels, value in rows:
        if name.startswith(OURS):
            found[name].append((labels, value))
    return dict(found)
