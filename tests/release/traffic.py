"""Requests without end, for as long as a test changes what is served.

Owns: `Traffic`. May not know: what is changed. Read next: `test_served.py`.
"""

from __future__ import annotations

import threading

import httpx

from firsthand.release.record import Release
from tests.server.processes import Server


class Traffic:
    """Requests without end; each answer's header is noted, each failure kept."""

    def __init__(self, server: Server, model: str = "micro") -> None:
        self.seen: list[str] = []
        self.failed: list[str] = []
        self._server, self._model = server, model
        self._stop = threading.Event()
        self._threads = [threading.Thread(target=self._run) for _ in range(3)]

    def _run(self) -> None:
        body = {"model": self._model, "prompt": "abc", "max_tokens": 12, "ignore_eos": True}
        with httpx.Client(base_url=self._server.url, timeout=120) as client:
            while not self._stop.is_set():
                try:
                    answer = client.post("/v1/completions", json=body)
                except httpx.HTTPError as error:
                    self.failed.append(str(error))
                    continue
                if answer.status_code == 200:
                    self.seen.append(answer.headers.get("x-release", ""))
                else:
                    self.failed.append(answer.text)

    def wait(self, release: Release, count: int = 3) -> None:
        goal = self.seen.count(release.id[:16]) + count
        until = 3000
        while self.seen.count(release.id[:16]) < goal:
            assert not self.failed, self.failed[:3]
            assert until, self.seen[-10:]
            until -= 1
            self._stop.wait(0.02)

    def __enter__(self) -> Traffic:
        for thread in self._threads:
            thread.start()
        return self

    def __exit__(self, *_: object) -> None:
        self._stop.set()
        for thread in self._threads:
            thread.join()
