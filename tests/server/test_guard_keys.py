"""Keys and the free routes: what opens the server, and how little else does.

Owns: proof of `keys.py` and `access.py`. Read next: `test_guard_routes.py`, over the live table.
"""

from __future__ import annotations

import ast
import hashlib
import inspect
from pathlib import Path

import pytest

from firsthand.addresses import is_loopback
from firsthand.errors import InvalidRequest
from firsthand.request import Priority
from firsthand.server.guard import keys as keys_module
from firsthand.server.guard.access import FREE, Access, host_of, presented_key
from firsthand.server.guard.call import Quota
from firsthand.server.guard.keys import KeyRing, key_ring
from firsthand.server.guard.refusal import Refused
from firsthand.server.page_files import FREE_PATHS

KEY, OTHER = "k" * 20, "o" * 20
NO_QUOTA = Quota()


def ring(*keys: str) -> KeyRing:
    return key_ring(keys, None, NO_QUOTA)


def test_a_key_is_known_by_its_hash_alone() -> None:
    known = ring(KEY, OTHER)
    found = known.find(KEY)
    assert found is not None
    assert found.key_id == hashlib.sha256(KEY.encode()).hexdigest()[:12]
    assert known.find(KEY + "x") is None
    assert known.find("") is None
    assert KEY not in repr(known)


def test_two_keys_never_share_a_prefix_cache() -> None:
    callers = list(ring(KEY, OTHER).callers.values())
    assert len({caller.cache_salt for caller in callers} | {""}) == 3
    assert len({caller.tenant for caller in callers}) == 2


def test_s_72_keys_are_compared_in_constant_time_only() -> None:
    """Nothing in `keys.py` compares a hash but `compare_digest`, and `find` looks at every one."""
    tree = ast.parse(inspect.getsource(keys_module.KeyRing.find).strip())
    assert not [node for node in ast.walk(tree) if isinstance(node, ast.Compare | ast.Break)]
    assert not [
        node for loop in ast.walk(tree) if isinstance(loop, ast.For)
        for node in ast.walk(loop) if isinstance(node, ast.Return)
    ]  # fmt: skip
    assert "compare_digest" in ast.unparse(tree)


def test_a_file_of_lines(tmp_path: Path) -> None:
    file = tmp_path / "keys"
    file.write_text(f"# of the team\n{KEY}\n\n  {OTHER}  \n")
    assert len(key_ring((), file, NO_QUOTA).callers) == 2


def test_a_file_of_tables(tmp_path: Path) -> None:
    file = tmp_path / "keys.toml"
    digest = hashlib.sha256(OTHER.encode()).hexdigest()
    file.write_text(
        f'[[key]]\nname = "batch"\nkey = "{KEY}"\npriority = "background"\nmax_concurrent = 2\n'
        f'[[key]]\nsha256 = "{digest}"\n'
    )
    known = key_ring((), file, Quota(requests_per_minute=7))
    batch, plain = known.find(KEY), known.find(OTHER)
    assert batch is not None and plain is not None
    assert (batch.name, batch.highest_priority) == ("batch", Priority.BACKGROUND)
    assert batch.quota == Quota(7, 0, 2)
    assert plain.quota == Quota(7, 0, 0)


@pytest.mark.parametrize(
    ("name", "text", "says"),
    [
        ("k", "", "holds no key"),
        ("k", "short", "line 1"),
        ("k", "with space inside it", "no space"),
        ("k", f"{KEY}\n{KEY}", "there already"),
        ("k", "ключ" * 8, "ASCII"),
        ("k.toml", "[[key]]\nname = 'x'", "either key or sha256"),
        ("k.toml", f"[[key]]\nkey = '{KEY}'\nsha256 = '0'", "either key or sha256"),
        ("k.toml", "[[key]]\nsha256 = 'zz'", "64 digits"),
        ("k.toml", f"[[key]]\nkey = '{KEY}'\nscope = 1", "no field"),
        ("k.toml", f"[[key]]\nkey = '{KEY}'\npriority = 'vip'", "priority"),
        ("k.toml", f"[[key]]\nkey = '{KEY}'\nmax_concurrent = -1", "max_concurrent"),
        ("k.toml", f"[[key]]\nkey = '{KEY}'\nmax_concurrent = true", "max_concurrent"),
        ("k.toml", "[[key]]\nkey = 7", "texts"),
        ("k.toml", "key = 3", "table"),
        ("k.toml", "x = 3", "tables only"),
        ("k.toml", "not toml", "no TOML"),
        ("k.toml", "a = " + "[" * 5000, "no TOML"),
    ],
)
def test_a_bad_file_is_refused_and_no_key_is_shown(
    tmp_path: Path, name: str, text: str, says: str
) -> None:
    file = tmp_path / name
    file.write_text(text)
    with pytest.raises(InvalidRequest, match="api_key_file") as found:
        key_ring((), file, NO_QUOTA)
    assert says in str(found.value)
    assert KEY not in str(found.value)


def test_a_file_that_is_not_there_or_not_text(tmp_path: Path) -> None:
    with pytest.raises(InvalidRequest, match="api_key_file"):
        key_ring((), tmp_path / "none", NO_QUOTA)
    (tmp_path / "bytes").write_bytes(b"\xff" * 40)
    with pytest.raises(InvalidRequest, match="UTF-8"):
        key_ring((), tmp_path / "bytes", NO_QUOTA)


def caller(access: Access, method: str, path: str, *headers: tuple[str, str]) -> str:
    pairs = [(name.encode(), value.encode("latin-1")) for name, value in headers]
    return access.caller(method, path, pairs).key_id


@pytest.mark.parametrize(
    "header",
    [
        ("authorization", f"Bearer {KEY}"),
        ("authorization", f"bearer   {KEY} "),
        ("x-api-key", KEY),
    ],
)
def test_both_headers_open(header: tuple[str, str]) -> None:
    assert caller(Access(ring(KEY)), "POST", "/v1/completions", header)


@pytest.mark.parametrize(
    "headers",
    [
        [],
        [("authorization", KEY)],
        [("authorization", f"Basic {KEY}")],
        [("authorization", "Bearer ")],
        [("authorization", f"Bearer {KEY}x")],
        [("authorization", f"Bearer {KEY}, {KEY}")],
        [("x-api-key", "")],
        [("x-api-key", OTHER), ("authorization", f"Bearer {KEY}")],
        [("x-api-key", "\xff\xfe")],
        [("api-key", KEY)],
        [("cookie", f"key={KEY}")],
    ],
)
def test_everything_else_does_not(headers: list[tuple[str, str]]) -> None:
    with pytest.raises(Refused) as found:
        caller(Access(ring(KEY)), "POST", "/v1/completions", *headers)
    assert (found.value.status, found.value.code) == (401, "invalid_api_key")
    assert ("www-authenticate", "Bearer") in found.value.headers()
    assert KEY not in str(found.value)


def test_the_free_routes_are_five_and_the_page() -> None:
    access = Access(ring(KEY))
    for path in FREE:
        assert caller(access, "GET", path) == ""
        for method in ("POST", "DELETE", "OPTIONS"):
            with pytest.raises(Refused):
                caller(access, method, path)
    assert all(path == "/" or path.startswith("/page/") for path in FREE_PATHS)
    assert sorted(FREE - FREE_PATHS) == [
        "/health", "/livez", "/readyz", "/v2/health/live", "/v2/health/ready",
    ]  # fmt: skip


def test_metrics_are_public_only_when_they_are_said_to_be() -> None:
    with pytest.raises(Refused):
        caller(Access(ring(KEY)), "GET", "/metrics")
    public = Access(ring(KEY), metrics_public=True)
    assert caller(public, "GET", "/metrics") == ""
    for path in ("/metrics/", "/metrics/x", "/Metrics", "/v1/models", "/health_generate"):
        with pytest.raises(Refused):
            caller(public, "GET", path)


def test_without_keys_only_this_machines_names_are_taken() -> None:
    """A web page that has pointed its own name here is no neighbour."""
    access = Access(ring(), hosts=frozenset({"localhost", "127.0.0.1"}))
    assert caller(access, "GET", "/v1/models", ("host", "localhost:8000")) == ""
    for host in ("evil.example", "evil.example:80", "localhost.evil.example", ""):
        with pytest.raises(Refused) as found:
            caller(access, "GET", "/v1/models", ("host", host))
        assert found.value.status == 403


@pytest.mark.parametrize(
    ("host", "name"),
    [
        ("a.example", "a.example"),
        ("A.example:80", "a.example"),
        ("[::1]:8000", "::1"),
        ("::1", "::1"),
        ("", ""),
    ],
)
def test_the_name_in_host(host: str, name: str) -> None:
    assert host_of([(b"host", host.encode())]) == name
    assert host_of([(b"host", b"a"), (b"host", b"b")]) == ""


def test_loopback() -> None:
    assert all(map(is_loopback, ("127.0.0.1", "127.9.9.9", "::1", "localhost")))
    assert not any(map(is_loopback, ("0.0.0.0", "::", "10.0.0.1", "example.org", "")))


def test_presented_key_takes_the_same_key_twice() -> None:
    key = KEY.encode()
    assert presented_key([(b"authorization", b"Bearer " + key), (b"x-api-key", key)]) == KEY
