"""A client that may be cut off at any moment, and pays for no answer twice.

    firsthand serve smollm2-135m
    python examples/client.py http://127.0.0.1:8000 "What is the capital of France?"

A request that got no reply may have been answered all the same. With an `Idempotency-Key` it can
be sent again: the server gives the reply that it has kept, and computes nothing. It needs nothing
but the standard library.
"""

import http.client
import json
import random
import sys
import time
import uuid
from typing import Any
from urllib.parse import urlsplit

TRIES = 6
AGAIN = {408, 409, 429, 500, 502, 503, 504}  # 409: the first one is still being answered


def ask(url: str, body: dict[str, Any], api_key: str = "none", timeout_s: float = 60.0) -> Any:
    """The reply's JSON. Raises RuntimeError for a refusal, OSError when nobody answers."""
    headers = {
        "Content-Type": "application/json",
        "Authorization": f"Bearer {api_key}",
        "Idempotency-Key": str(uuid.uuid4()),  # one per question, the same for all its tries
    }
    for attempt in range(TRIES):
        wait_s = min(8.0, 0.25 * 2**attempt)  # when the server does not say
        try:
            status, after, reply = _post(url, json.dumps(body), headers, timeout_s)
        except (OSError, http.client.HTTPException):
            if attempt == TRIES - 1:
                raise
        else:
            if status == 200:
                return json.loads(reply)
            if status not in AGAIN or attempt == TRIES - 1:
                raise RuntimeError(f"{status}: {reply.decode(errors='replace')[:500]}")
            wait_s = after or wait_s
        # Many clients that were refused together must not come back together.
        time.sleep(wait_s * random.uniform(0.8, 1.2))
    raise AssertionError("the last try returns or raises")


def _post(
    url: str, body: str, headers: dict[str, str], timeout_s: float
) -> tuple[int, float | None, bytes]:
    """Status, the seconds of `Retry-After` if it stands there, and the body."""
    at = urlsplit(url)
    https = at.scheme == "https"
    kind = http.client.HTTPSConnection if https else http.client.HTTPConnection
    connection = kind(at.hostname or "127.0.0.1", at.port, timeout=timeout_s)
    try:
        connection.request("POST", f"{at.path}/v1/chat/completions", body, headers)
        reply = connection.getresponse()
        after = reply.getheader("Retry-After")
        return reply.status, float(after) if after else None, reply.read()
    finally:
        connection.close()


if __name__ == "__main__":
    question = {"role": "user", "content": sys.argv[2]}
    answer = ask(sys.argv[1], {"messages": [question], "temperature": 0, "max_tokens": 64})
    print(answer["choices"][0]["message"]["content"])
