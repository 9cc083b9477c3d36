"""A running server's admin socket, as a command asks it.

Owns: what a refusal becomes.
May not know: verbs.
Read next: `chaos.py`, its user; `../server/admin.py`, the other end.
"""

from __future__ import annotations

import http.client
import json
from collections.abc import Mapping
from pathlib import Path
from typing import Any
from urllib.parse import urlencode

from firsthand.errors import EngineUnavailable, InvalidRequest
from firsthand.unix_http import exchange


def ask_admin(path: Path, verb: str, query: Mapping[str, object]) -> dict[str, Any]:
    """The answer to a verb. Raises InvalidRequest with the server's words, EngineUnavailable."""
    given = {key: value for key, value in query.items() if value is not None}
    try:
        answer = exchange(path, "POST", f"/firsthand/admin/{verb}?{urlencode(given)}", timeout_s=30)
        found = json.loads(answer.content)
        if answer.status == 200:
            return dict(found)
        message = str(found["error"]["message"])
    except (OSError, http.client.HTTPException) as error:
        why = getattr(error, "strerror", None) or type(error).__name__
        raise EngineUnavailable(f"{path}: cannot be reached: {why}") from None
    except (ValueError, KeyError, TypeError):
        raise EngineUnavailable(f"{path}: is no server of ours") from None
    name, colon, text = message.partition(": ")
    raise InvalidRequest(name, text) if colon else InvalidRequest(verb, message)
