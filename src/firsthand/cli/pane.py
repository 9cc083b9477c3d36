"""What a server's engine does, under the answer that it writes: `chat --url URL --watch`.

Owns: one reader of the feed for a conversation, the room that the answer has beside the picture.
May not know: what is asked or answered.
Read next: `top.py`, whose picture this is; `remote.py`, which talks.
"""

from __future__ import annotations

import sys
import threading
from collections.abc import Iterator
from contextlib import contextmanager

from rich.console import Console, Group, RenderableType
from rich.live import Live
from rich.rule import Rule
from rich.text import Text

from firsthand.cli.remote import Write
from firsthand.cli.top import Seen, Server, drawn, follow
from firsthand.errors import InvalidRequest

ANSWER_SHARE = 0.4  # of the screen's lines; the rest is the picture's
REDRAWS_PER_S = 8


class Pane:
    """Raises InvalidRequest without a terminal, EngineUnavailable where the server has no feed."""

    def __init__(self, client: Server) -> None:
        if not sys.stdout.isatty():
            raise InvalidRequest("watch", "needs a terminal; elsewhere, firsthand top")
        self._seen = Seen()
        self._seen.take(client.own("/firsthand/engine/state"))
        # It waits for the server all the time, so it ends with the process.
        threading.Thread(target=follow, args=(client, self._seen), daemon=True).start()

    @contextmanager
    def shown(self) -> Iterator[Write]:
        """While an answer comes; at its end the picture goes, and the answer stays."""
        console, parts = Console(highlight=False), list[str]()
        screen = Live(
            console=console,
            transient=True,
            refresh_per_second=REDRAWS_PER_S,
            get_renderable=lambda: self._picture("".join(parts), console),
        )
        try:
            with screen:
                yield parts.append
        finally:
            print("".join(parts), end="", flush=True)

    def _picture(self, answer: str, console: Console) -> RenderableType:
        lines = Text(answer).wrap(console, console.width)
        room = max(2, int(console.height * ANSWER_SHARE))
        return Group(*lines[-room:], Rule(style="dim"), drawn(self._seen))
