"""Prometheus, asked for the alerts that fired.

Owns: the query, its steps, what a bad answer is called. May not know: what is made of it.
Read next: `review.py`.
"""

from __future__ import annotations

import json
import math
import urllib.error
import urllib.request
from urllib.parse import urlencode, urlsplit

from firsthand.errors import EngineUnavailable, InvalidRequest
from firsthand.observe.review import Episode, episodes_of_series

TIMEOUT_S = 30.0
MAX_BYTES = 64 << 20
MAX_POINTS = 10_000  # Prometheus refuses over 11,000 per series
LEAST_STEP_S = 15.0


def fired(url: str, since_s: float, now_s: float) -> list[Episode]:
    """Raises InvalidRequest for no address, EngineUnavailable for no answer."""
    if urlsplit(url).scheme not in ("http", "https"):
        raise InvalidRequest("--prometheus", "must be an http address")
    step_s = max(LEAST_STEP_S, (now_s - since_s) / MAX_POINTS)
    window = f"{step_s * 1e3:.0f}ms"  # of a step, so that what lies between two is seen
    start_s = now_s - step_s * math.ceil((now_s - since_s) / step_s)
    query = urlencode(
        {
            "query": f'max_over_time(ALERTS{{alertstate="firing"}}[{window}])',
            "start": f"{start_s:.3f}",
            "end": f"{now_s:.3f}",
            "step": f"{step_s:.3f}",
        }
    )
    try:
        with urllib.request.urlopen(
            f"{url.rstrip('/')}/api/v1/query_range?{query}", timeout=TIMEOUT_S
        ) as reply:
            answer = json.loads(reply.read(MAX_BYTES))
        return episodes_of_series(answer["data"]["result"], step_s, now_s)
    except urllib.error.HTTPError as error:
        raise EngineUnavailable(f"{url}: answers {error.code}") from None
    except OSError as error:
        raise EngineUnavailable(f"{url}: {getattr(error, 'reason', error)}") from None
    except (ValueError, KeyError, TypeError, IndexError):
        raise EngineUnavailable(f"{url}: is no Prometheus, by its answer") from None
