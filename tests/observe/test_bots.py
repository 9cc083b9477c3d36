"""Alerts told to a team's chat: what each kind of bot is sent, and what its answer does.

The bots are a server of the test's own that checks signatures as their makers describe them.
"""

from __future__ import annotations

import base64
import hashlib
import hmac
import json
import threading
import time
import urllib.error
import urllib.request
from collections.abc import Iterator
from http.server import BaseHTTPRequestHandler, ThreadingHTTPServer
from pathlib import Path
from typing import Any
from urllib.parse import parse_qs, urlsplit

import pytest

from firsthand.errors import InvalidRequest
from firsthand.observe.bots import MAX_TEXT_BYTES, Bot, read_bots, send, tell_all, text_of
from firsthand.observe.received import AlertRecord, Notice, NotTold, Receiver

SECRET = "SEC0123"
NOTICE = Notice(
    at_s=100.0,
    receiver="message",
    alert="FirsthandQueueLong",
    severity="P1",
    labels={"instance": "10.0.0.7:8000"},
    fingerprint="f",
    began_s=90.0,
    ended_s=None,
    summary="requests wait for over a minute",
)


def signed(key: str, text: str) -> str:
    return base64.b64encode(hmac.new(key.encode(), text.encode(), hashlib.sha256).digest()).decode()


class Chat:
    """The bots' side. `refuses`: the code that is answered."""

    def __init__(self) -> None:
        self.asked: list[tuple[str, dict[str, Any]]] = []
        self.refuses = 0
        chat = self

        class Handler(BaseHTTPRequestHandler):
            def do_POST(self) -> None:
                body = json.loads(self.rfile.read(int(self.headers["Content-Length"])))
                chat.asked.append((self.path, body))
                key = "code" if self.path.startswith("/feishu") else "errcode"
                reply = json.dumps({key: chat.refuses, "errmsg": "keywords not in content"})
                self.send_response(200)
                self.send_header("Content-Length", str(len(reply)))
                self.end_headers()
                self.wfile.write(reply.encode())

            def log_message(self, format: str, *arguments: object) -> None:
                pass

        self._server = ThreadingHTTPServer(("127.0.0.1", 0), Handler)
        self.url = f"http://127.0.0.1:{self._server.server_address[1]}"

    def __enter__(self) -> Chat:
        threading.Thread(target=self._server.serve_forever, args=(0.02,), daemon=True).start()
        return self

    def __exit__(self, *_: object) -> None:
        self._server.shutdown()
        self._server.server_close()


@pytest.fixture
def chat() -> Iterator[Chat]:
    with Chat() as running:
        yield running


def test_each_kind_gets_its_own_form_signed_as_its_maker_says(chat: Chat) -> None:
    text = text_of([NOTICE], "zh")
    assert text.startswith("[P1] 触发: FirsthandQueueLong · ") and "10.0.0.7:8000" in text
    send(Bot("dingtalk", f"{chat.url}/dingtalk?access_token=t", SECRET), text, 1.5)
    send(Bot("feishu", f"{chat.url}/feishu/hook", SECRET), text, 1.5)
    send(Bot("wecom", f"{chat.url}/wecom?key=k"), text, 1.5)
    (ding, first), (_, second), (_, third) = chat.asked
    query = parse_qs(urlsplit(ding).query)
    assert query["access_token"] == ["t"] and query["timestamp"] == ["1500"]
    assert query["sign"] == [signed(SECRET, f"1500\n{SECRET}")]
    assert first == third == {"msgtype": "text", "text": {"content": text}}
    assert second["sign"] == signed(f"1\n{SECRET}", "") and second["timestamp"] == "1"
    assert second["msg_type"] == "text" and second["content"] == {"text": text}


def test_a_refusal_is_told_without_the_address_and_the_other_bots_are_asked(chat: Chat) -> None:
    chat.refuses = 310000
    bots = [
        Bot("dingtalk", f"{chat.url}/a?access_token=hidden"),
        Bot("wecom", "http://127.0.0.1:9"),
    ]
    with pytest.raises(NotTold) as caught:
        tell_all([*bots, bots[0]], [NOTICE], "en", 0.0)
    assert len(chat.asked) == 2
    assert "310000" in str(caught.value) and "keywords" in str(caught.value)
    assert "hidden" not in str(caught.value) and "wecom" in str(caught.value)


def test_only_the_tiers_of_a_bot_and_no_more_than_it_takes(chat: Chat) -> None:
    tell_all([Bot("wecom", chat.url, tiers=("P0",))], [NOTICE], "en", 0.0)
    assert chat.asked == []
    assert len(text_of([NOTICE] * 100, "zh").encode()) <= MAX_TEXT_BYTES


def webhook(url: str, path: str) -> int:
    alert = {
        "status": "firing",
        "labels": {"alertname": "FirsthandServiceDown", "severity": "P0"},
        "annotations": {"summary": "nothing answers"},
        "startsAt": "2026-11-30T20:00:00Z",
        "endsAt": "0001-01-01T00:00:00Z",
        "fingerprint": "1",
    }
    body = json.dumps({"version": "4", "receiver": "phone", "alerts": [alert]}).encode()
    try:
        with urllib.request.urlopen(urllib.request.Request(url + path, body), timeout=10) as reply:
            status: int = reply.status
            return status
    except urllib.error.HTTPError as error:
        return error.code


def test_the_receiver_tells_each_alert_once_and_asks_for_it_again_where_nobody_was_told(
    chat: Chat, tmp_path: Path
) -> None:
    bots = [Bot("feishu", f"{chat.url}/feishu")]
    record = AlertRecord(tmp_path / "alerts.jsonl")
    receiver = Receiver(record, 0, time.time, lambda found: tell_all(bots, found, "en", 0.0))
    threading.Thread(target=receiver.run, daemon=True).start()
    url = f"http://127.0.0.1:{receiver.port}"
    try:
        assert [webhook(url, "/P0"), webhook(url, "/record")] == [200, 200]
        assert len(chat.asked) == 1
        chat.refuses = 1
        assert webhook(url, "/P0") == 502
    finally:
        receiver.close()
    assert len(record.read()[0]) == 3  # kept, whoever was told


@pytest.mark.parametrize(
    ("content", "where"),
    [
        ("", "[[bot]]"),
        ("bot = 1", "[[bot]]"),
        ("[[bot]]\nkind = 'dingtalk'", "bot 1: url"),
        ("[[bot]]\nkind = 'slack'\nurl = 'http://a'", "bot 1: kind"),
        ("[[bot]]\nkind = 'wecom'\nurl = 'http://a'\nsecret = 's'", "bot 1: secret"),
        ("[[bot]]\nkind = 'wecom'\nurl = 'file:///etc/passwd'", "bot 1: url"),
        ("[[bot]]\nkind = 'wecom'\nurl = 'http://a'\ntiers = ['P9']", "bot 1: tiers"),
        ("[[bot]]\nkind = 'wecom'\nurl = 'http://a'\nname = 'x'", "'name'"),
        ("[[bot]", "TOML"),
    ],
)
def test_a_file_of_bots_is_refused_by_its_table(tmp_path: Path, content: str, where: str) -> None:
    file = tmp_path / "bots.toml"
    file.write_text(content)
    with pytest.raises(InvalidRequest) as caught:
        read_bots(file)
    assert where in str(caught.value)


def test_a_file_of_bots(tmp_path: Path) -> None:
    file = tmp_path / "bots.toml"
    file.write_text("[[bot]]\nkind = 'feishu'\nurl = 'https://a/b'\ntiers = ['P0']\n")
    assert read_bots(file) == [Bot("feishu", "https://a/b", tiers=("P0",))]
    assert "https" not in repr(read_bots(file))
