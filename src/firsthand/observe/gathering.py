"""The evidence, gathered: from a server itself, or from the Prometheus that watches it.

Owns: what is asked, in which order, and what a server's silence is called.
May not know: what the evidence says.
Read next: `snapshot.py` (the readings), `evidence.py` (what they become).

A server that does not answer is evidence, not an error. Of the server itself the numbers of two
moments are taken; what was usual is then everything since its start.
"""

from __future__ import annotations

import json
import urllib.error
from collections.abc import Callable
from dataclasses import replace
from itertools import islice
from pathlib import Path

from firsthand.errors import EngineUnavailable, InvalidRequest
from firsthand.observe.alert_settings import AlertSettings
from firsthand.observe.evidence import Answers, Evidence
from firsthand.observe.kept_failures import failures
from firsthand.observe.recorded import RecordedFacts, sum_up
from firsthand.observe.request_log import LogFacts
from firsthand.observe.snapshot import Snapshot, fetched, from_prometheus, read_page
from firsthand.values import dataclass

LIVE_S = 2.0  # in which it has to say that it lives
MOST_REQUESTS = 200  # of the recorder's list
MOST_KEPT, KEPT_S = 20, 3600.0
BASE_WINDOWS = 6  # so many windows before this one are what is usual


@dataclass(frozen=True, slots=True)
class Gathering:
    """`clock` is Unix time. `window_s` lies between the first number and the last."""

    limits: AlertSettings
    window_s: float
    clock: Callable[[], float]
    sleep: Callable[[float], None]
    log: LogFacts | None = None
    kept: Path | None = None  # where failed requests of a server on this machine have their records

    def of_server(self, url: str, api_key: str | None) -> Evidence:
        """Raises InvalidRequest where the key does not open it."""
        evidence = self._asked(url)
        if evidence.answers is not Answers.YES:
            return replace(evidence, requests=self._kept_requests())
        page = f"{url}/metrics"
        try:
            then = read_page(fetched(page, api_key).decode("utf-8", "replace"), self.clock())
            self.sleep(self.window_s)
            now = read_page(fetched(page, api_key).decode("utf-8", "replace"), self.clock())
        except (OSError, EngineUnavailable):
            return self._asked(url)
        start_s = then.total("process_start_time_seconds")
        base, requests = Snapshot(start_s, {}), self._requests(url, api_key)
        return replace(evidence, now=now, then=then, base=base, requests=requests)

    def of_prometheus(
        self, prometheus: str, url: str | None, api_key: str | None = None
    ) -> Evidence:
        """With `url` the server is asked whether it answers. Raises EngineUnavailable."""
        now_s, job = self.clock(), self.limits.job
        now, then, base = (
            from_prometheus(prometheus, job, now_s - back * self.window_s)
            for back in (0, 1, 1 + BASE_WINDOWS)
        )
        asked, requests = Evidence(self.limits, prometheus), None
        if url is not None:
            asked = self._asked(url)
            answers = asked.answers is Answers.YES
            requests = self._requests(url, api_key) if answers else self._kept_requests()
        asked = replace(asked, source=prometheus, log=self.log, requests=requests)
        return replace(asked, now=now, then=then, base=base)

    def _requests(self, url: str, api_key: str | None) -> RecordedFacts | None:
        """What its recorder has; None: it does not say."""
        try:
            found = json.loads(fetched(f"{url}/firsthand/requests?limit={MOST_REQUESTS}", api_key))
            rows = found["requests"]
            return sum_up(rows, self.clock() - self.window_s) if isinstance(rows, list) else None
        except (OSError, EngineUnavailable, InvalidRequest, ValueError, KeyError, TypeError):
            return None

    def _kept_requests(self) -> RecordedFacts | None:
        """Of a server that says nothing: the last that failed, which outlive it."""
        rows = () if self.kept is None else islice(failures(self.kept), MOST_KEPT)
        return sum_up(rows, self.clock() - KEPT_S)

    def _asked(self, url: str) -> Evidence:
        """Whether it answers, and which of its checks fail."""
        evidence = Evidence(self.limits, f"{url}/metrics", log=self.log)
        try:
            fetched(f"{url}/livez", timeout_s=LIVE_S)
        except EngineUnavailable:
            pass  # it answers that it is not well
        except urllib.error.URLError as error:
            refused = isinstance(error.reason, ConnectionRefusedError)
            return replace(evidence, answers=Answers.REFUSED if refused else Answers.SILENT)
        except OSError:
            return replace(evidence, answers=Answers.SILENT)
        return replace(evidence, answers=Answers.YES, checks=_failed_checks(url))


def _failed_checks(url: str) -> tuple[tuple[str, str], ...]:
    try:
        found = json.loads(fetched(f"{url}/readyz?verbose", any_status=True))
        checks = found["checks"].items()
        return tuple((name, str(one["detail"])) for name, one in checks if not one["ok"])
    except (OSError, EngineUnavailable, ValueError, KeyError, TypeError, AttributeError):
        return ()
