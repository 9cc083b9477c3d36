"""What an engine answers to fixed tokens, asked by the way that every request takes.

Owns: how it is asked, that nothing is found computed, and that two engines must agree.
May not know: who compares, where a record lies.
Read next: `golden.py`.
"""

from __future__ import annotations

from collections.abc import Sequence

from firsthand.errors import EngineError
from firsthand.generation.golden import NUM_TOKENS, PROMPT
from firsthand.generation.service import Service
from firsthand.generation.service_values import ServiceOptions
from firsthand.values import dataclass

TENANT = "selfcheck"


@dataclass(slots=True)
class SelfAnswer:
    """Each time with a salt of its own."""

    service: Service
    _number: int = 0

    async def __call__(self, prompt: Sequence[int], num_tokens: int) -> Sequence[int]:
        self._number += 1
        stream = self.service.submit(
            self.service.prompt_of(prompt),
            {
                "max_tokens": num_tokens,
                "temperature": 0.0,
                "ignore_end": True,
                "priority": "urgent",
                "tenant": TENANT,
                "cache_salt": f"{TENANT} {self._number}",
                "seed": 0,
            },
        )
        return (await stream.completions())[0].token_ids


async def agreed_tokens(options: ServiceOptions) -> tuple[int, ...]:
    """Those of two engines, one after the other, which answer nobody else. Raises what a load
    raises; EngineError when they differ."""
    seen = []
    for _ in range(2):
        async with await Service.start(options) as service:
            await service.wait_ready()
            seen.append(tuple(await SelfAnswer(service)(PROMPT, NUM_TOKENS)))
    if seen[0] != seen[1]:
        name = options.name or str(options.model)
        raise EngineError(f"{name}: two engines gave different tokens; nothing was recorded")
    return seen[0]
