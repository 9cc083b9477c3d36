"""A server's admin socket, as releases use it.

Owns: which verbs put a release in place, what a refusal becomes.
May not know: what a verb does.
Read next: `switching.py`; `../unix_http.py`.
"""

from __future__ import annotations

import http.client
import json
from pathlib import Path
from typing import Any, Final
from urllib.parse import urlencode

from firsthand.errors import EngineUnavailable, ReleaseRefused
from firsthand.unix_http import exchange
from firsthand.values import dataclass

LOAD_S: Final = 900.0  # a verb may wait for a model to load, and the old one to become empty


@dataclass(frozen=True, slots=True)
class AdminSocket:
    """Of a running `serve --admin-socket PATH`."""

    path: Path

    def release(self, folder: Path, model: str | None) -> dict[str, Any]:
        """Raises ReleaseRefused with the server's words; EngineUnavailable where none answers."""
        return self._ask("release", {"path": str(folder), "model": model})

    def canary(self, folder: Path, model: str | None, share: str, by: str) -> dict[str, Any]:
        """As `release`."""
        query = {"path": str(folder), "model": model, "share": share, "by": by}
        return self._ask("canary", query)

    def end_canary(self, model: str | None) -> dict[str, Any]:
        """As `release`."""
        return self._ask("canary", {"share": "0", "model": model})

    def _ask(self, verb: str, query: dict[str, str | None]) -> dict[str, Any]:
        given = {name: value for name, value in query.items() if value is not None}
        target = f"/firsthand/admin/{verb}?{urlencode(given)}"
        try:
            answer = exchange(self.path, "POST", target, timeout_s=LOAD_S)
            found = json.loads(answer.content)
        except (OSError, http.client.HTTPException, ValueError) as error:
            raise EngineUnavailable(f"{self.path}: no server answers there: {error}") from None
        if answer.status != 200:
            raise ReleaseRefused(f"the server goes on as it was: {_message(found)}")
        return found if isinstance(found, dict) else {}


def _message(found: Any) -> str:
    error = found.get("error") if isinstance(found, dict) else None
    return str(error.get("message") if isinstance(error, dict) else found)[:500]
