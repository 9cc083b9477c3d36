"""A server as its users have it: started here, then asked by as many clients as there are prompts.

Owns: how each server is started, and the clients, which are the same for all.
May not know: the engines behind them.
Read next: `protocol.py`, what is asked.

    python run_server.py MODEL firsthand FORMAT        FORMAT: auto or int8
    python run_server.py MODEL llama-server            the program beside this interpreter
"""

from __future__ import annotations

import contextlib
import http.client
import json
import socket
import subprocess
import sys
import threading
import time
from collections.abc import Callable, Sequence
from pathlib import Path

from protocol import THREADS, Prompts, serve

CLIENTS, CONTEXT = 16, 1024
READY_S = 120.0
COUNT = str(THREADS)


def firsthand(model: str, port: str, weights: str) -> list[str]:
    return [
        sys.executable, "-m", "firsthand.cli.entry", "serve", model, "--quantization", weights,
        "--threads", COUNT, "--port", port, "--max-num-seqs", str(CLIENTS),
        "--max-model-len", str(CONTEXT),
    ]  # fmt: skip


def llama_server(model: str, port: str) -> list[str]:
    return [
        str(Path(sys.executable).with_name("llama-server")), "-m", model, "-t", COUNT,
        "-tb", COUNT, "-c", str(CLIENTS * CONTEXT), "-np", str(CLIENTS), "--port", port,
    ]  # fmt: skip


COMMANDS: dict[str, Callable[..., list[str]]] = {
    "firsthand": firsthand,
    "llama-server": llama_server,
}


class Served:
    """A process that lives as long as this one."""

    def __init__(self, model: str, name: str, *options: str) -> None:
        with socket.socket() as free:
            free.bind(("127.0.0.1", 0))
            self._port: int = free.getsockname()[1]
        self._process = subprocess.Popen(
            COMMANDS[name](model, str(self._port), *options),
            stdout=subprocess.DEVNULL,
            stderr=subprocess.DEVNULL,
        )
        until_s = time.monotonic() + READY_S
        while not self._is_ready():
            if self._process.poll() is not None or time.monotonic() > until_s:
                raise RuntimeError(f"{name} does not become ready")
            time.sleep(0.1)

    def close(self) -> None:
        self._process.kill()
        self._process.wait()

    def _is_ready(self) -> bool:
        with contextlib.suppress(OSError), contextlib.closing(self._connect()) as connection:
            connection.request("GET", "/health")
            return connection.getresponse().status == 200
        return False

    def _connect(self) -> http.client.HTTPConnection:
        return http.client.HTTPConnection("127.0.0.1", self._port, timeout=600)

    def prepare(self, num_prompts: int, prompt_tokens: int, new_tokens: int) -> None:
        if num_prompts > CLIENTS or prompt_tokens + new_tokens > CONTEXT:
            raise ValueError(f"at most {CLIENTS} clients with {CONTEXT} tokens each")

    def generate(
        self, prompts: Prompts, new_tokens: int, on_first: Callable[[], None]
    ) -> Sequence[Sequence[int]]:
        """Streamed. A server tells how many tokens an answer has, not which: each stands as 0."""
        counts = [0] * len(prompts)

        def ask(index: int) -> None:
            counts[index] = self._answer(prompts[index], new_tokens)

        clients = [threading.Thread(target=ask, args=(index,)) for index in range(len(prompts))]
        for client in clients:
            client.start()
        for client in clients:
            client.join()
        return [[0] * count for count in counts]

    def _answer(self, prompt: Sequence[int], new_tokens: int) -> int:
        body = {
            "prompt": prompt,
            "max_tokens": new_tokens,
            "temperature": 0,
            "ignore_eos": True,
            "stream": True,
            "stream_options": {"include_usage": True},
        }
        num_tokens = 0
        with contextlib.closing(self._connect()) as connection:
            headers = {"Content-Type": "application/json"}
            connection.request("POST", "/v1/completions", json.dumps(body), headers)
            for line in connection.getresponse():
                if b'"usage":{' in line:
                    num_tokens = json.loads(line[6:])["usage"]["completion_tokens"]
        return num_tokens

    def score(self, window: Sequence[int], start: int) -> float:
        raise ValueError("a server is not asked for a text's likelihood")


if __name__ == "__main__":
    served = Served(*sys.argv[1:])
    try:
        serve(lambda: served)
    finally:
        served.close()
