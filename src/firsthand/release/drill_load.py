"""Requests without end, each of which has one right answer for each release.

Owns: what is asked, what counts as lost, which release an answer says it is of.
May not know: what happens to the server meanwhile.
Read next: `drill.py`.

Everybody asks for the golden tokens. An answer is right if it is whole and has the tokens of the
release that its header names: so a mixture of two releases is seen as well as a lost request.
"""

from __future__ import annotations

import http.client
import json
import threading
import time
from collections import Counter
from collections.abc import Mapping
from dataclasses import field
from pathlib import Path
from typing import Any, Final

from firsthand.unix_http import Answer, exchange
from firsthand.values import dataclass

NUM_CLIENTS: Final = 4
HEADER: Final = "x-release"


@dataclass(slots=True)
class Load:
    """`expected`: by the beginning of a release's hash, as the header has it, prompt and tokens."""

    socket: Path
    key: str
    expected: Mapping[str, tuple[list[int], list[int]]]
    answers: Counter[str] = field(default_factory=Counter)  # right ones, by the header
    faults: list[str] = field(default_factory=list)
    _stop: threading.Event = field(default_factory=threading.Event)
    _threads: list[threading.Thread] = field(default_factory=list)
    _lock: threading.Lock = field(default_factory=threading.Lock)

    @property
    def num_requests(self) -> int:
        return self.answers.total() + len(self.faults)

    def start(self) -> None:
        for number in range(NUM_CLIENTS):
            thread = threading.Thread(target=self._ask_on, args=(number % 2 == 1,), daemon=True)
            thread.start()
            self._threads.append(thread)

    def stop(self) -> None:
        self._stop.set()
        for thread in self._threads:
            thread.join()

    def wait_answers(self, header: str, count: int, limit_s: float) -> bool:
        """Until there are so many more right ones of this release."""
        goal, until = self.answers[header] + count, time.monotonic() + limit_s
        while self.answers[header] < goal and time.monotonic() < until:
            time.sleep(0.01)
        return self.answers[header] >= goal

    def ask(self, prompt: list[int], num_tokens: int, *, stream: bool) -> tuple[str, list[int]]:
        """The header and the tokens. Raises ValueError for what is no whole answer."""
        body = {
            "prompt": prompt,
            "max_tokens": num_tokens,
            "temperature": 0,
            "seed": 0,
            "ignore_eos": True,
            "return_token_ids": True,
            "stream": stream,
        }
        try:
            answer = exchange(self.socket, "POST", "/v1/completions", body, self.key)
        except (OSError, http.client.HTTPException) as error:
            raise ValueError(f"no answer: {error}") from None
        if answer.status != 200:
            raise ValueError(f"status {answer.status}: {answer.content[:200].decode('utf-8')}")
        tokens = _streamed(answer) if stream else _whole(answer)
        return answer.headers.get(HEADER, ""), tokens

    def _ask_on(self, stream: bool) -> None:
        prompt, tokens = next(iter(self.expected.values()))
        while not self._stop.is_set():
            fault, header = "", ""
            try:
                header, got = self.ask(prompt, len(tokens), stream=stream)
                if header not in self.expected:
                    fault = f"an answer of {header or 'no release'}"
                elif got != self.expected[header][1]:
                    fault = f"wrong tokens of {header}: {got}"
            except ValueError as error:
                fault = str(error)
            with self._lock:
                if fault:
                    self.faults.append(fault)
                else:
                    self.answers[header] += 1


def _whole(answer: Answer) -> list[int]:
    return list(json.loads(answer.content)["choices"][0]["token_ids"])


def _streamed(answer: Answer) -> list[int]:
    lines = answer.content.decode("utf-8").splitlines()
    events = [line.removeprefix("data: ") for line in lines if line.startswith("data: ")]
    if events[-1:] != ["[DONE]"]:
        raise ValueError("a stream was cut")
    choices: list[dict[str, Any]] = [
        choice for event in events[:-1] for choice in json.loads(event).get("choices", ())
    ]
    return [token for choice in choices for token in choice.get("token_ids") or ()]
