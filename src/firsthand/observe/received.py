"""The record of alerts: what Alertmanager sent, and who answered, line by line.

Owns: the record's file, and a receiver of webhooks that writes it.
May not know: what is made of it (`review.py`), whom it tells (`bots.py`).
Read next: `routing.py`, which sends every alert here.

The file is only ever added to, one JSON object per line. A line that was cut is passed over.
"""

from __future__ import annotations

import json
from collections.abc import Callable, Mapping
from dataclasses import asdict
from datetime import datetime
from http.server import BaseHTTPRequestHandler, ThreadingHTTPServer
from pathlib import Path
from typing import Any

from firsthand.errors import InvalidRequest
from firsthand.values import dataclass

MAX_BODY_BYTES = 1 << 20
MAX_LINE_BYTES = 64 << 10
READ_S = 10.0
RECORD_PATH = "/record"

Tell = Callable[[list["Notice"]], None]


class NotTold(Exception):
    """Somebody could not be told of an alert."""


@dataclass(frozen=True, slots=True)
class Notice:
    """One alert as it was sent once. Times are Unix seconds; `ended_s` None: it fires."""

    at_s: float
    receiver: str
    alert: str
    severity: str
    labels: dict[str, str]
    fingerprint: str
    began_s: float
    ended_s: float | None
    summary: str


@dataclass(frozen=True, slots=True)
class Answer:
    """Somebody did something about an alert."""

    at_s: float
    alert: str
    note: str


@dataclass(frozen=True, slots=True)
class AlertRecord:
    """The file. It need not be there yet."""

    path: Path

    def add(self, line: Notice | Answer) -> None:
        kind = "notice" if isinstance(line, Notice) else "answer"
        text = json.dumps({"kind": kind, **asdict(line)}, ensure_ascii=False) + "\n"
        self.path.parent.mkdir(parents=True, exist_ok=True)
        with self.path.open("ab", buffering=0) as stream:  # one write: lines never mix
            stream.write(text.encode())

    @property
    def size_bytes(self) -> int:
        return self.path.stat().st_size if self.path.exists() else 0

    def read(self, last_bytes: int | None = None) -> tuple[list[Notice], list[Answer]]:
        """All of it, or no more than its end."""
        notices, answers = [], []
        if self.path.exists():
            with self.path.open("rb") as stream:
                if last_bytes is not None:  # the line that is cut there is passed over
                    stream.seek(max(0, self.size_bytes - last_bytes))
                for raw in stream:
                    line = _read_line(raw)
                    if isinstance(line, Notice):
                        notices.append(line)
                    elif line is not None:
                        answers.append(line)
        return notices, answers


def notices_of(body: Mapping[str, Any], at_s: float) -> list[Notice]:
    """The alerts of a webhook's body. Raises InvalidRequest where it is none of version 4."""
    alerts = body.get("alerts")
    if body.get("version") != "4" or not isinstance(alerts, list):
        raise InvalidRequest("body", "is no webhook of Alertmanager, version 4")
    try:
        return [_notice(str(body.get("receiver", "")), one, at_s) for one in alerts]
    except (KeyError, TypeError, ValueError, AttributeError) as error:
        raise InvalidRequest("body", f"an alert in it cannot be read: {error}") from None


class Receiver:
    """Takes webhooks on this machine's own address, on any path. `port` 0: any free one.

    `tell` gets the alerts of each webhook that came on another path than /record, where every alert
    comes once more. If it raises NotTold the answer is 502, so that Alertmanager sends them again.
    """

    def __init__(
        self,
        record: AlertRecord,
        port: int,
        clock: Callable[[], float],
        tell: Tell = lambda notices: None,
    ) -> None:
        self._server = ThreadingHTTPServer(("127.0.0.1", port), _handler(record, clock, tell))
        self.port: int = self._server.server_address[1]

    def run(self) -> None:
        """Until `close`, from another thread, or Ctrl-C."""
        self._server.serve_forever(poll_interval=0.1)

    def close(self) -> None:
        self._server.shutdown()
        self._server.server_close()


def _handler(
    record: AlertRecord, clock: Callable[[], float], tell: Tell
) -> type[BaseHTTPRequestHandler]:
    class Handler(BaseHTTPRequestHandler):
        timeout = READ_S

        def do_POST(self) -> None:
            length = self.headers.get("Content-Length", "")
            if not length.isdecimal() or int(length) > MAX_BODY_BYTES:
                self.send_error(413)
                return
            try:
                body = json.loads(self.rfile.read(int(length)))
                if not isinstance(body, dict):
                    raise InvalidRequest("body", "must be an object")
                notices = notices_of(body, clock())
                for notice in notices:
                    record.add(notice)
                if self.path != RECORD_PATH:
                    tell(notices)
            except (ValueError, RecursionError, InvalidRequest):
                self.send_error(400)
                return
            except NotTold:
                self.send_error(502)
                return
            self.send_response(200)
            self.send_header("Content-Length", "0")
            self.end_headers()

        def log_message(self, format: str, *arguments: object) -> None:
            pass

    return Handler


def _notice(receiver: str, alert: Mapping[str, Any], at_s: float) -> Notice:
    labels = {str(name): str(value) for name, value in alert["labels"].items()}
    ended = alert["endsAt"] if alert["status"] == "resolved" else None
    return Notice(
        at_s=at_s,
        receiver=receiver,
        alert=labels["alertname"],
        severity=labels.get("severity", ""),
        labels=labels,
        fingerprint=str(alert["fingerprint"]),
        began_s=datetime.fromisoformat(alert["startsAt"]).timestamp(),
        ended_s=None if ended is None else datetime.fromisoformat(ended).timestamp(),
        summary=str(alert.get("annotations", {}).get("summary", "")),
    )


def _read_line(raw: bytes) -> Notice | Answer | None:
    if len(raw) > MAX_LINE_BYTES:
        return None
    try:
        line = json.loads(raw)
        kind = line.pop("kind")
        return Notice(**line) if kind == "notice" else Answer(**line)
    except (ValueError, TypeError, KeyError, AttributeError):
        return None
