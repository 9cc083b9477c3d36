"""A conversation at the terminal: what a person types, and the messages that it becomes.

Owns: the commands inside a conversation, Ctrl-C and the end of the input at the prompt; the form of
an answer's parts.
May not know: who answers.
Read next: `generate.py` (a model in this process), `remote.py` (a server).
"""

from __future__ import annotations

import importlib
import re
import sys
from collections.abc import Iterator, Mapping
from contextlib import suppress
from typing import Any

from firsthand.cli.output import say
from firsthand.errors import InvalidRequest
from firsthand.values import dataclass

COMMANDS = ("/reset", "/bye")
LEAVING = ("/bye", "/quit", "/exit")
HELP = "Ctrl-C ends an answer, /reset forgets the conversation, /bye leaves."


@dataclass(frozen=True, slots=True)
class Piece:
    """A part of an answer; the last one has the reason of the end."""

    text: str = ""
    reasoning: str = ""
    finish_reason: str | None = None
    timings: Mapping[str, Any] | None = None  # in llama.cpp's names, where they were asked for


def conversation(system: str | None) -> list[dict[str, str]]:
    """The messages before the first one of the user."""
    if system is None:
        return []
    check_utf8("system", system)
    return [{"role": "system", "content": system}]


def user(text: str) -> dict[str, str]:
    return {"role": "user", "content": text}


def lines() -> Iterator[str]:
    """What a person types, line by line, until /bye or the end of the input.

    Ctrl-C at the prompt drops the line. Without a terminal no prompt is shown. On one, lines can
    be edited, and the arrow keys bring back earlier ones of this conversation.
    """
    live = sys.stdin.isatty()
    if live:
        with suppress(ImportError):
            importlib.import_module("readline")  # `input` uses it once it is there
        say(HELP)
    while True:
        try:
            text = input("> " if live else "").strip()
        except KeyboardInterrupt:
            print(flush=True)
            continue
        except EOFError:
            return
        if text in LEAVING:
            return
        if text == "/help":
            say(HELP)
        elif text not in COMMANDS and re.match(r"/\w+(\s|$)", text):
            say(f"unknown command {text.split()[0]}; there are {' and '.join(COMMANDS)}")
        elif text:
            yield text


def check_utf8(field: str, text: str) -> None:
    """An argument whose bytes are no UTF-8 comes from Python with lone surrogates in it."""
    try:
        text.encode()
    except UnicodeEncodeError:
        raise InvalidRequest(field, "the argument is not valid UTF-8") from None
