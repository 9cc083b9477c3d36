"""Text in, text out: where text and engine meet.

Owns: `LLM`, for Python and the command line: the engine on a thread of this process; and
`service.Service`, for the server: the same engine in a process of its own, behind an event loop.
May not know: HTTP, terminals.
Read next: `llm.py` or `service.py`, `loading.py` (from a name to a loaded model), `assembly.py`
(from there to an engine), `texts.py` (events become text), `completion.py` and `report.py` (what
comes back).
"""

from __future__ import annotations

from importlib import import_module
from typing import Any

_PLACES = {
    "LLM": "llm",
    "Chunk": "completion",
    "Completion": "completion",
    "TokenLogprob": "completion",
    "Report": "report",
}

__all__ = ["LLM", "Chunk", "Completion", "Report", "TokenLogprob"]


def __getattr__(name: str) -> Any:
    """Loaded when it is asked for: neither a server nor its engine's process needs `LLM`."""
    if name in _PLACES:
        return getattr(import_module(f"{__name__}.{_PLACES[name]}"), name)
    raise AttributeError(f"module {__name__!r} has no attribute {name!r}")
