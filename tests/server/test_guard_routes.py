"""Every route of the live table needs a key, in whatever way its path is written.

Owns: proof that the door is closed by default (S-70, S-71, G17). The routes come from the app, so
that a new one is in this test before anybody has thought of it. Read next: `test_guard_http.py`.
"""

from __future__ import annotations

import re
from collections.abc import Iterator

import pytest
from fastapi.routing import APIRoute

from firsthand.observe.metrics import Metrics
from firsthand.server.app import build_routes
from firsthand.server.guard.access import FREE
from firsthand.server.guard.middleware import GENERATING
from firsthand.server.house import House
from tests.server.fakes import FakeService
from tests.server.guarded import AUTH, Guarded, guarded, statuses

pytestmark = pytest.mark.process

ADMIN = ("drain", "reload", "sleep", "wake_up", "ps", "loglevel", "requests", "request")
METHODS = ("GET", "HEAD", "POST", "PUT", "PATCH", "DELETE", "OPTIONS", "TRACE")


def table() -> list[str]:
    """Every path that the app has, each parameter filled in."""
    app = build_routes(House({"micro": FakeService()}, Metrics()))
    found = {path for path in (getattr(route, "path", None) for route in app.routes) if path}
    found |= {route.path for route in iter_routes(app)}
    return sorted(re.sub(r"\{[^}]*\}", "micro", path) for path in found)


def iter_routes(app: object) -> Iterator[APIRoute]:
    for route in getattr(app, "routes", ()):
        if isinstance(route, APIRoute):
            yield route
        yield from iter_routes(getattr(route, "original_router", None))


def variants(path: str) -> Iterator[str]:
    """Other ways to write a path, which some program on the way might take for the same."""
    yield path
    yield from (
        path + end for end in ("/", "//", "?x=/health", "#/health", "%20", "%00", ";a", "/.")
    )
    yield from ("/" + path, "//evil.example" + path, "/." + path, "/x/.." + path)
    yield from (path.upper(), path.replace("/", "//"), path.replace("/", "/./"))
    yield from (path.replace("/", "%2f"), path.replace("/", "\\"), "/%2e" + path)
    yield from ("/health/.." + path, "/health/%2e%2e" + path, "/livez;" + path, "/readyz?" + path)
    yield from (f"http://localhost{path}", f"http://evil.example{path}", f"HTTP://[::1]{path}")
    yield from (f"http://localhost/health@{path}", f"https://health{path}", f"ftp://a{path}")
    first = path[1:2]
    yield f"/%{ord(first):02x}{path[2:]}" if first else "/"


HOSTS = ("localhost", "evil.example", "evil.example/health", "health", "localhost/health?", "[::1]")


@pytest.fixture(scope="module")
def server() -> Iterator[Guarded]:
    with guarded() as found:
        yield found


def ask(method: str, target: str, host: str = "localhost", headers: str = "") -> bytes:
    length = "Content-Length: 0\r\n" if method in ("POST", "PUT", "PATCH") else ""
    head = (
        f"{method} {target} HTTP/1.1\r\nHost: {host}\r\nConnection: close\r\n{length}{headers}\r\n"
    )
    return head.encode("latin-1")


def free(target: str) -> bool:
    """The only exceptions, as a router sees a target: decoded, without scheme, host and query."""
    path = re.sub(r"^[a-zA-Z]+://[^/]*", "", target).partition("?")[0].partition("#")[0]
    return re.sub("%([0-9a-f]{2})", lambda found: chr(int(found[1], 16)), path) in FREE


def test_the_table_is_that_of_the_server() -> None:
    paths = table()
    assert len(paths) >= 15
    assert set(FREE) | {"/v1/chat/completions", "/tokenize", "/metrics"} <= set(paths)


def test_s_70_every_route_and_verb_needs_the_key(server: Guarded) -> None:
    for path in table():
        for method in METHODS:
            got = statuses(server.exchange(ask(method, path), 3))
            if path in FREE and method in ("GET", "HEAD"):
                assert got in ([200], [405]), (method, path)
            else:
                assert got == [401], (method, path)


@pytest.mark.parametrize("path", table())
def test_s_70_in_every_way_of_writing_it(server: Guarded, path: str) -> None:
    for target in variants(path):
        got = statuses(server.exchange(ask("GET", target), 3))
        assert got in ([200] if free(target) else [401], [400]), target  # 400: not HTTP


@pytest.mark.parametrize("host", HOSTS)
def test_s_70_whatever_the_host_says(server: Guarded, host: str) -> None:
    for path in ("/v1/models", "/v1/chat/completions", "/metrics", "/docs", "/openapi.json"):
        for method in ("GET", "POST"):
            got = statuses(server.exchange(ask(method, path, host), 3))
            assert got == ([400] if "/" in host else [401]), (method, path)


def test_s_71_admin_verbs_are_not_on_the_public_port(server: Guarded) -> None:
    for verb in ADMIN:
        path = f"/firsthand/admin/{verb}"
        assert statuses(server.exchange(ask("POST", path), 3)) == [401]
        assert statuses(server.exchange(ask("POST", path, headers=AUTH), 3)) == [404]


def test_with_the_key_every_route_answers(server: Guarded) -> None:
    """The other way round: the guard keeps nobody out who has it."""
    for path in table():
        got = statuses(server.exchange(ask("GET", path, headers=AUTH), 3))
        assert got in ([200], [400], [404], [405], [503]), path


def test_s_73_no_answer_tells_where_it_was_made(server: Guarded) -> None:
    leak = re.compile(rb'0x[0-9a-f]{8,}|Traceback|File "|\.py\b|/(?:home|root|usr|tmp)/', re.I)
    for path in table():
        if path in ("/docs", "/openapi.json"):
            continue
        for method in ("GET", "POST"):
            answer = server.exchange(ask(method, path, headers=AUTH), 3)
            assert not leak.search(answer), (method, path)


def test_the_list_of_generating_routes_is_true() -> None:
    """A route that is on it exists; one that takes a prompt is on it."""
    paths = set(table())
    assert {"/v1/chat/completions", "/v1/completions", "/predict"} <= GENERATING & paths


def test_under_a_prefix_the_same_holds() -> None:
    with guarded(root_path="/llm") as server:
        for path in table():
            for target in (path, "/llm" + path, "/llm//" + path[1:], "/llm/llm" + path):
                got = statuses(server.exchange(ask("GET", target), 3))
                assert got in ([401], [200]), target
                if got == [200]:
                    assert path in FREE, target
        for target in ("/v1/models", "/llm/v1/models"):  # behind a proxy that cuts, and one not
            assert statuses(server.exchange(ask("GET", target, headers=AUTH), 3)) == [200]


def test_without_any_key_a_foreign_name_is_refused() -> None:
    with guarded(api_key=()) as server:
        assert statuses(server.exchange(ask("GET", "/v1/models", "localhost:80"), 3)) == [200]
        assert statuses(server.exchange(ask("GET", "/v1/models", "evil.example"), 3)) == [403]
        assert statuses(server.exchange(ask("GET", "/health", "10.0.0.7:8000"), 3)) == [200]


def test_metrics_public() -> None:
    with guarded(metrics_public=True) as server:
        assert server.get("/metrics", "")[0] == 200
        assert server.get("/v1/models", "")[0] == 401
    with guarded() as server:
        assert server.get("/metrics", "")[0] == 401


def test_cors_only_for_the_origins_that_were_named() -> None:
    origin = "Origin: https://a.example\r\nAccess-Control-Request-Method: POST\r\n"
    with guarded(allowed_origins=("https://a.example",)) as server:
        preflight = server.exchange(ask("OPTIONS", "/v1/completions", headers=origin), 3)
        assert statuses(preflight) == [200]
        assert b"access-control-allow-origin: https://a.example" in preflight.lower()
        other = server.exchange(
            ask("OPTIONS", "/v1/completions", headers=origin.replace("a.", "b.")), 3
        )
        assert b"access-control-allow-origin" not in other.lower()
        assert server.get("/v1/models", origin)[0] == 401
    with guarded() as server:
        assert statuses(server.exchange(ask("OPTIONS", "/v1/completions", headers=origin), 3)) == [
            401
        ]
