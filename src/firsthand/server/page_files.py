"""The files of the page at `/`, by name: what may be had without a key.

Owns: the list. May not know: what is in them; nothing that is served here depends on a caller.
Read next: `routes/page.py`, which serves them; `guard/access.py`, which lets them through.
"""

from __future__ import annotations

PAGE = "/"
PREFIX = "/page/"
TYPES = {
    "css": "text/css; charset=utf-8",
    "html": "text/html; charset=utf-8",
    "js": "text/javascript; charset=utf-8",
    "svg": "image/svg+xml",
}
INDEX = "index.html"
FILES = (
    *("page.css", "panels.css", "icon.svg"),
    *("app.js", "blocks.js", "chat.js", "conversation.js", "dom.js", "engine.js", "feed.js"),
    *("figures.js", "health.js", "lanes.js", "markdown.js", "messages.js", "model.js", "net.js"),
    *("playground.js", "queue.js", "requests.js", "sampling.js", "steps.js", "store.js"),
    *("texts.js", "words.js"),
)
FREE_PATHS = frozenset({PAGE, *(PREFIX + name for name in FILES)})
