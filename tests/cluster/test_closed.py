"""What Ray is told before it is loaded. Read next: `test_cluster.py`, which asks a Ray.

Owns: variables that decide where calls go. May not know: Ray.
"""

from __future__ import annotations

import subprocess
import sys

import pytest

from firsthand.cluster.closed import VARIABLES
from firsthand.config import child_environment

pytestmark = pytest.mark.process

CALL = """
from concurrent import futures
import grpc
echo = grpc.unary_unary_rpc_method_handler(lambda request, context: request)
server = grpc.server(futures.ThreadPoolExecutor(1))
server.add_generic_rpc_handlers((grpc.method_handlers_generic_handler("a", {"b": echo}),))
port = server.add_insecure_port("127.0.0.1:0")
server.start()
with grpc.insecure_channel(f"127.0.0.1:{port}") as channel:
    print(channel.unary_unary("/a/b", bytes, bytes)(b"heard", timeout=20).decode())
"""


def test_calls_within_a_cluster_go_by_no_proxy_for_the_web() -> None:
    environment = child_environment({"http_proxy": "http://127.0.0.1:9", "no_proxy": ""})
    command = [sys.executable, "-c", CALL]
    for variables, said in (({}, ""), (VARIABLES, "heard\n")):
        done = subprocess.run(
            command, env=environment | variables, capture_output=True, text=True, check=False
        )
        assert done.stdout == said
