"""How late the server's event loop is: by that much every request is late.

Owns: the timer that is watched. May not know: who counts.
Read next: `running.py`.
"""

from __future__ import annotations

import asyncio
from collections.abc import Callable

TICK_S = 0.1


async def watch_lag(observe: Callable[[float], None]) -> None:
    """For ever: seconds between the time for which a timer was set and that at which it came."""
    loop = asyncio.get_running_loop()
    while True:
        due_s = loop.time() + TICK_S
        await asyncio.sleep(TICK_S)
        observe(max(0.0, loop.time() - due_s))
