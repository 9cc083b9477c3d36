"""An engine that ended and was replaced is told of, though nobody need have had a request there.

Owns: that line of the log. May not know: why an engine ends, how it is replaced.
Read next: `../generation/remote.py`, which replaces it; `until_end.py`.
"""

from __future__ import annotations

import asyncio
import logging

from firsthand.generation.registry import Registry
from firsthand.server.logs import tell

LOOK_S = 0.5


async def tell_lost_engines(registry: Registry) -> None:
    """For ever. A model that is loaded anew, or another in its place, begins at 0 again."""
    told: dict[str, int] = {}
    while True:
        for member in registry.members:
            state, known = member.service.state, told.get(member.name, 0)
            # A replica that is lost is told of by who keeps the links to them.
            number = state.num_restarts - (0 if state.replicas is None else state.replicas.num_lost)
            told[member.name] = number
            if number > known:
                text = f"{member.name}: its engine ended, and was replaced"
                facts = {"model": member.name, "num_restarts": number}
                tell("engine_lost", text, logging.ERROR, **facts)
        await asyncio.sleep(LOOK_S)
