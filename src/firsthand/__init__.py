"""Firsthand: an LLM inference and serving system that can be read, measured and broken on purpose.

Owns: the public names. `LLM` is loaded when it is first asked for, so that `import firsthand`
costs nothing: neither numpy nor a kernel is imported before there is work for them.
May not know: anything else.
Read next: `request.py` (the nouns), `generation/llm.py` (the façade).
"""

from __future__ import annotations

from typing import Any

from firsthand.version import VERSION as __version__

__all__ = ["LLM", "Chunk", "Completion", "__version__"]


def __getattr__(name: str) -> Any:
    if name in ("LLM", "Chunk", "Completion"):
        from firsthand import generation

        return getattr(generation, name)
    raise AttributeError(f"module 'firsthand' has no attribute {name!r}")


def __dir__() -> list[str]:
    return sorted(__all__)
