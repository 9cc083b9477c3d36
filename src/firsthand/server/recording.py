"""Golden tokens are recorded: once, on request, by engines that answer nobody else.

Owns: what is said meanwhile, and that nothing is written before two engines agree.
May not know: the form of the record.
Read next: `../generation/golden.py`, `../generation/golden_answer.py`.
"""

from __future__ import annotations

import asyncio
from collections.abc import Callable

from firsthand.generation.golden import golden_key, write_golden
from firsthand.generation.golden_answer import agreed_tokens
from firsthand.generation.service_values import ServiceOptions
from firsthand.server.rules import registry_entries
from firsthand.server.settings import Settings


async def record(settings: Settings, say: Callable[[str], None]) -> None:
    """Those of each model. Raises what a load raises; EngineError when two engines differ."""
    for entry in registry_entries(settings):
        await _record(entry.service, say)


async def _record(options: ServiceOptions, say: Callable[[str], None]) -> None:
    say(f"{options.name}: hashing the model")
    key = await asyncio.to_thread(golden_key, options.model, options.load, hash_now=True)
    assert key is not None, "it was hashed"
    say(f"{options.name}: two engines answer, one after the other")
    tokens = await agreed_tokens(options)
    path = write_golden(key, tokens)
    say(f"{options.name}: recorded {len(tokens)} golden tokens: {path.name}")
