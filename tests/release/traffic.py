"""Requests without end, for as long as a test changes what is served.

Owns: `Traffic`. May not know: what is changed. Read next: `test_served.py`.
"""

from __future__ import annotations

import threading

import httpx

from firsthand.release.record import Release
from tests.server.processes import Server


class Traffic:
    """Requests without end, one client's streamed; each answer's header is noted, each failure
    kept. A client keeps its connection as long as the server does."""

    def __init__(self, server: Server, model: str = "micro") -> None:
        self.seen: list[str] = []
        self.failed: list[str] = []
        self._server, self._model = server, model
        self._stop = threading.Event()
        self._threads = [
            threading.Thread(target=self._run, args=(stream,)) for stream in (False, False, True)
        ]

    def _run(self, stream: bool) -> None:
        body = {"model": self._model, "prompt": "abc", "max_tokens": 12, "ignore_eos": True}
        asked = {**body, "stream": stream}
        server = self._server
        with httpx.Client(base_url=server.url, timeout=120, verify=server.verify) as client:
            while not self._stop.is_set():
                try:
                    answer = client.post("/v1/completions", json=asked)
                except httpx.HTTPError as error:
                    self.failed.append(f"{type(error).__name__}: {error}")
                    continue
                whole = not stream or answer.text.rstrip().endswith("data: [DONE]")
                if answer.status_code == 200 and whole:
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
