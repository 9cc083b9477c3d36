"""Text in, text out: where text and engine meet.

Owns: `LLM`, for Python and the command line: the engine on a thread of this process; and
`service.Service`, for the server: the same engine in a process of its own, behind an event loop.
May not know: HTTP, terminals.
Read next: `llm.py` or `service.py`, `loading.py` (from a name to a loaded model), `assembly.py`
(from there to an engine), `texts.py` (events become text), `completion.py` and `report.py` (what
comes back).
"""

from __future__ import annotations

from firsthand.generation.completion import Chunk, Completion, TokenLogprob
from firsthand.generation.llm import LLM
from firsthand.generation.report import Report

__all__ = ["LLM", "Chunk", "Completion", "Report", "TokenLogprob"]
