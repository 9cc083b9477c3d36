"""Many clients of OpenAI's own library, in a process of their own, with its default retries.

Owns: the load; one line of JSON at the end: how each ended, and how often it had asked.
May not know: what is expected.
Read next: `test_storm.py`.

    python -m tests.soak.official_clients PORT NUM_CLIENTS MAX_TOKENS
"""

from __future__ import annotations

import asyncio
import json
import sys
from collections import Counter

import openai


async def ask(port: int, asked: Counter[int], number: int, max_tokens: int) -> str:
    async def count(_: object) -> None:
        asked[number] += 1

    hooks = {"request": [count]}
    async with (
        openai.DefaultAsyncHttpxClient(event_hooks=hooks, timeout=300.0) as http,
        openai.AsyncOpenAI(
            base_url=f"http://127.0.0.1:{port}/v1", api_key="none", http_client=http
        ) as client,
    ):
        try:
            await client.completions.create(
                model="micro",
                prompt="abc",
                max_tokens=max_tokens,
                seed=1,
                extra_body={"ignore_eos": True},
            )
        except openai.APIStatusError as error:
            return str(error.status_code)
        except openai.APIConnectionError:
            return "lost"
        return "done"


async def play(port: int, num: int, max_tokens: int) -> dict[str, object]:
    asked: Counter[int] = Counter()
    ended = await asyncio.gather(*(ask(port, asked, number, max_tokens) for number in range(num)))
    return {"ended": Counter(ended), "most_tries": max(asked.values()), "tries": asked.total()}


if __name__ == "__main__":
    print(json.dumps(asyncio.run(play(*map(int, sys.argv[1:])))))
