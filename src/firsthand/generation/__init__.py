"""Text in, text out: where text and engine meet.

Owns: the façade `LLM`, used alike by Python, the command line and the server.
May not know: HTTP, terminals.
Read next: `llm.py` (the façade), `loading.py` (from a name to a running engine), `stream.py`
(events become text), `completion.py` and `report.py` (what comes back).
"""

from __future__ import annotations

from firsthand.generation.completion import Chunk, Completion, TokenLogprob
from firsthand.generation.llm import LLM
from firsthand.generation.report import Report

__all__ = ["LLM", "Chunk", "Completion", "Report", "TokenLogprob"]
