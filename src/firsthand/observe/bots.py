"""Alerts as messages of a team's chat: the bots of DingTalk, Feishu and WeCom.

Owns: the file that names bots, the form and signature each kind wants, what its answer means.
May not know: where alerts come from, what is kept of them.
Read next: `received.py`, whose receiver sends through this.

Each kind takes JSON by POST at an address that is a secret itself; DingTalk and Feishu may want a
signature over the time as well. All answer 200 and say in the body whether they took it. Sources:
open.dingtalk.com, open.feishu.cn, developer.work.weixin.qq.com (custom bots of a group).
"""

from __future__ import annotations

import base64
import hmac
import json
import urllib.error
import urllib.request
from collections.abc import Sequence
from dataclasses import field
from pathlib import Path
from typing import Any
from urllib.parse import quote_plus, urlsplit

from firsthand.checks import check_choice, shown
from firsthand.errors import InvalidRequest
from firsthand.files import read_text, strict_toml
from firsthand.observe.received import Notice, NotTold
from firsthand.values import dataclass

KINDS = DINGTALK, FEISHU, WECOM = "dingtalk", "feishu", "wecom"
TIERS = ("P0", "P1")
KEYS = ("kind", "url", "secret", "tiers")
WAIT_S = 10.0
MAX_FILE_BYTES = 1 << 16
MAX_ANSWER_BYTES = 1 << 16
MAX_TEXT_BYTES = 2000  # WeCom takes 2,048 of a text, the others more
WORDS = {"en": ("firing", "resolved"), "zh": ("触发", "恢复")}


@dataclass(frozen=True, slots=True)
class Bot:
    """Where messages go. `tiers`: of which alerts."""

    kind: str
    url: str = field(repr=False)
    secret: str = field(default="", repr=False)
    tiers: tuple[str, ...] = TIERS

    def __post_init__(self) -> None:
        check_choice("kind", self.kind, KINDS)
        if urlsplit(self.url).scheme not in ("http", "https"):
            raise InvalidRequest("url", "must be an http address")
        if self.secret and self.kind == WECOM:
            raise InvalidRequest("secret", "WeCom's bots sign nothing: theirs is in the address")
        for tier in self.tiers:
            check_choice("tiers", tier, TIERS)


def read_bots(file: Path) -> list[Bot]:
    """From a TOML file of `[[bot]]` tables. Raises InvalidRequest, which names the table."""
    try:
        content = strict_toml(read_text(file, "--bots", MAX_FILE_BYTES))
    except ValueError as error:
        raise InvalidRequest("--bots", f"{file} is no TOML: {error}") from None
    tables = content.pop("bot", [])
    if content or not isinstance(tables, list) or not tables:
        raise InvalidRequest("--bots", f"{file} must have [[bot]] tables, and nothing else")
    return [_bot(f"{file}: bot {number}", one) for number, one in enumerate(tables, 1)]


def text_of(notices: Sequence[Notice], language: str) -> str:
    """A line per alert: tier, state, name, what is wrong, where."""
    firing, resolved = WORDS[language]
    lines = []
    for one in notices:
        state = firing if one.ended_s is None else resolved
        place = one.labels.get("instance", "")
        parts = (f"[{one.severity}] {state}: {one.alert}", one.summary, place)
        lines.append(" · ".join(part for part in parts if part))
    kept = "\n".join(lines).encode()[:MAX_TEXT_BYTES]
    return kept.decode(errors="ignore")


def tell_all(bots: Sequence[Bot], notices: Sequence[Notice], language: str, now_s: float) -> None:
    """To each bot the alerts of its tiers, as one message. Raises NotTold when all were tried, if
    one was not taken."""
    faults = []
    for bot in bots:
        of_bot = [one for one in notices if one.severity in bot.tiers]
        try:
            if of_bot:
                send(bot, text_of(of_bot, language), now_s)
        except NotTold as error:
            faults.append(str(error))
    if faults:
        raise NotTold("; ".join(faults))


def request_of(bot: Bot, text: str, now_s: float) -> tuple[str, dict[str, Any]]:
    """Address and body of one message."""
    match bot.kind:
        case "dingtalk":
            body = {"msgtype": "text", "text": {"content": text}}
            if not bot.secret:
                return bot.url, body
            stamp = str(int(now_s * 1000))
            sign = quote_plus(_signature(bot.secret, f"{stamp}\n{bot.secret}"))
            mark = "&" if urlsplit(bot.url).query else "?"
            return f"{bot.url}{mark}timestamp={stamp}&sign={sign}", body
        case "feishu":
            said: dict[str, Any] = {"msg_type": "text", "content": {"text": text}}
            if bot.secret:  # here the text to sign is the key, and nothing is signed with it
                stamp = str(int(now_s))
                sign = _signature(f"{stamp}\n{bot.secret}", "")
                said = {"timestamp": stamp, "sign": sign, **said}
            return bot.url, said
        case _:
            return bot.url, {"msgtype": "text", "text": {"content": text}}


def send(bot: Bot, text: str, now_s: float) -> None:
    """One message. Raises NotTold where it was not taken, without the address, which is secret."""
    url, body = request_of(bot, text, now_s)
    headers = {"Content-Type": "application/json; charset=utf-8"}
    asked = urllib.request.Request(url, json.dumps(body, ensure_ascii=False).encode(), headers)
    try:
        with urllib.request.urlopen(asked, timeout=WAIT_S) as reply:
            answer = json.loads(reply.read(MAX_ANSWER_BYTES))
            code = answer.get("errcode", answer.get("code"))
    except urllib.error.HTTPError as error:
        raise NotTold(f"{bot.kind}: HTTP {error.code}") from None
    except OSError as error:
        raise NotTold(f"{bot.kind}: {getattr(error, 'reason', error)}") from None
    except (ValueError, RecursionError, AttributeError):
        raise NotTold(f"{bot.kind}: its answer is not one of a bot") from None
    if code != 0:
        said = answer.get("errmsg", answer.get("msg", ""))
        raise NotTold(f"{bot.kind}: refused with {shown(code)}, {shown(said)}")


def _bot(where: str, table: Any) -> Bot:
    if not isinstance(table, dict):
        raise InvalidRequest(where, "must be a table")
    for key, value in table.items():
        if key not in KEYS:
            raise InvalidRequest(f"{where}: {shown(key)}", f"is none of {', '.join(KEYS)}")
        if key == "tiers":
            if not isinstance(value, list) or not all(isinstance(one, str) for one in value):
                raise InvalidRequest(f"{where}: tiers", f"must be a list of {', '.join(TIERS)}")
        elif not isinstance(value, str):
            raise InvalidRequest(f"{where}: {key}", "must be a text")
    for key in ("kind", "url"):
        if key not in table:
            raise InvalidRequest(f"{where}: {key}", "is missing")
    try:
        return Bot(**{**table, **({"tiers": tuple(table["tiers"])} if "tiers" in table else {})})
    except InvalidRequest as error:
        raise InvalidRequest(f"{where}: {error.field}", error.message) from None


def _signature(key: str, text: str) -> str:
    return base64.b64encode(hmac.digest(key.encode(), text.encode(), "sha256")).decode()
