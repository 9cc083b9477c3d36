"""A conversation: `python examples/chat.py [MODEL]`. An empty line, or Ctrl-D, ends it."""

import sys
from contextlib import suppress

from firsthand import LLM

messages: list[dict[str, str]] = []
with suppress(EOFError), LLM(sys.argv[1] if len(sys.argv) > 1 else "smollm2-135m") as llm:
    while text := input("> "):
        messages.append({"role": "user", "content": text})
        for chunk in llm.stream_chat(messages, max_tokens=200, temperature=0.2):
            print(chunk.text, end="" if chunk.completion is None else "\n", flush=True)
            if chunk.completion is not None:
                messages.append({"role": "assistant", "content": chunk.completion.text})
