"""Golden tokens are recorded: once, on request, by engines that answer nobody else.

Owns: that two engines, one after the other, must agree before anything is written.
May not know: the form of the record.
Read next: `../generation/golden.py`, `selfcheck.py`.
"""

from __future__ import annotations

import asyncio
from collections.abc import Callable

from firsthand.errors import EngineError
from firsthand.generation.golden import NUM_TOKENS, PROMPT, golden_key, write_golden
from firsthand.generation.service import Service, ServiceOptions
from firsthand.server.rules import registry_entries
from firsthand.server.selfcheck import SelfAnswer
from firsthand.server.settings import Settings


async def record(settings: Settings, say: Callable[[str], None]) -> None:
    """Those of each model. Raises what a load raises; EngineError when two engines differ."""
    for entry in registry_entries(settings):
        await _record(entry.service, say)


async def _record(options: ServiceOptions, say: Callable[[str], None]) -> None:
    say(f"{options.name}: hashing the model")
    key = await asyncio.to_thread(golden_key, options.model, options.load, hash_now=True)
    assert key is not None, "it was hashed"
    seen = []
    for number in (1, 2):
        say(f"{options.name}: engine {number} of 2 answers")
        async with await Service.start(options) as service:
            await service.wait_ready()
            seen.append(tuple(await SelfAnswer(service)(PROMPT, NUM_TOKENS)))
    if seen[0] != seen[1]:
        message = f"{options.name}: two engines gave different tokens; nothing was recorded"
        raise EngineError(message)
    path = write_golden(key, seen[0])
    say(f"{options.name}: recorded {len(seen[0])} golden tokens: {path.name}")
