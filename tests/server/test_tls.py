"""TLS, and certificates that clients must have, with authorities made on the spot.

Owns: proof of the `ssl_…` settings. Read next: `test_proxy.py`, where a proxy does it.
"""

from __future__ import annotations

import shutil
import socket
import ssl
import subprocess
import time
from pathlib import Path

import httpx
import pytest

from firsthand.errors import InvalidRequest
from firsthand.server.listening import tls_context
from firsthand.server.settings import Settings
from tests.server.authority import Authority
from tests.server.fakes import Script
from tests.server.guarded import CHAT, KEY, STREAM, Guarded, drain, guarded

pytestmark = [
    pytest.mark.process,
    pytest.mark.skipif(shutil.which("openssl") is None, reason="needs the openssl command"),
]

HEADERS = {"authorization": f"Bearer {KEY}", "content-type": "application/json"}


@pytest.fixture(scope="module")
def authority(tmp_path_factory: pytest.TempPathFactory) -> Authority:
    return Authority(tmp_path_factory.mktemp("tls") / "ours")


def client(authority: Authority, own: tuple[Path, Path] | None = None) -> httpx.Client:
    context = ssl.create_default_context(cafile=str(authority.file))
    if own is not None:
        context.load_cert_chain(*own)
    return httpx.Client(verify=context, headers=HEADERS, timeout=10)


def url(server: Guarded, path: str = "/v1/chat/completions") -> str:
    return f"https://localhost:{server.port}{path}"


def test_f_66_answers_and_streams_come_over_tls(authority: Authority) -> None:
    certificate, key = authority.issue("server")
    script = Script(pieces=("x" * 4_000,) * 20)
    with (
        guarded(script, ssl_certfile=certificate, ssl_keyfile=key) as server,
        client(authority) as asking,
    ):
        answer = asking.post(url(server), content=CHAT)
        assert answer.json()["choices"][0]["message"]["content"] == "x" * 80_000
        with asking.stream("POST", url(server), content=STREAM) as stream:
            text = stream.read().decode()
        assert text.count("x" * 4_000) == 20 and text.endswith("data: [DONE]\n\n")
        without = {"authorization": ""}
        assert asking.get(url(server, "/v1/models"), headers=without).status_code == 401


def test_what_is_no_tls_gets_no_answer_and_nobody_else_is_held_up(authority: Authority) -> None:
    certificate, key = authority.issue("server")
    with (
        guarded(ssl_certfile=certificate, ssl_keyfile=key) as server,
        client(authority) as asking,
        server.connect() as silent,
    ):
        plain = server.exchange(b"GET /livez HTTP/1.1\r\nHost: localhost\r\n\r\n", 2.0)
        assert b"200" not in plain
        assert asking.get(url(server, "/livez")).status_code == 200
        assert silent.fileno() > 0


def test_f_66_clients_need_a_certificate_of_the_authority(
    authority: Authority, tmp_path: Path
) -> None:
    certificate, key = authority.issue("server")
    stranger = Authority(tmp_path / "theirs")
    with guarded(ssl_certfile=certificate, ssl_keyfile=key, ssl_ca_certs=authority.file) as server:
        with client(authority, authority.issue("client")) as known:
            assert known.post(url(server), content=CHAT).status_code == 200
            refused = known.post(url(server), content=CHAT, headers={"authorization": "Bearer x"})
            assert refused.status_code == 401  # a certificate is no key
        for wrong in (None, stranger.issue("client")):
            with client(authority, wrong) as unknown, pytest.raises(httpx.TransportError):
                unknown.get(url(server, "/livez"))
        assert not server.running.peers.connections


def test_a_key_that_is_not_the_certificates_ends_the_start(
    authority: Authority, tmp_path: Path
) -> None:
    certificate, key = authority.issue("server")
    tls_context(Settings(ssl_certfile=certificate, ssl_keyfile=key))
    _, other = authority.issue("other")
    secret = tmp_path / "secret"
    command = ["openssl", "ec", "-in", str(key), "-aes128", "-passout", "pass:x"]
    subprocess.run([*command, "-out", str(secret)], check=True, capture_output=True)
    for wrong in (other, tmp_path / "missing", certificate, secret):
        with pytest.raises(InvalidRequest, match=r"ssl_certfile: .*server\.pem"):
            tls_context(Settings(ssl_certfile=certificate, ssl_keyfile=wrong))
    given = Settings(ssl_certfile=certificate, ssl_keyfile=key, ssl_ca_certs=key)
    with pytest.raises(InvalidRequest, match="ssl_ca_certs"):
        tls_context(given)


def test_a_renewed_certificate_is_shown_after_a_reload_and_a_wrong_one_never(
    authority: Authority,
) -> None:
    certificate, key = authority.issue("renewed")
    with (
        guarded(ssl_certfile=certificate, ssl_keyfile=key) as server,
        client(authority) as connected,
    ):
        assert connected.get(url(server, "/livez")).status_code == 200
        first, first_key = certificate.read_text(), key.read_text()
        authority.issue("renewed")
        assert shown(server) == first
        server.running.reload()
        assert shown(server) == certificate.read_text() != first
        renewed = certificate.read_text()
        authority.issue("renewed")
        key.write_text(first_key)
        with pytest.raises(InvalidRequest, match=r"ssl_certfile: .*renewed\.pem"):
            server.running.reload()
        assert shown(server) == renewed
        assert connected.get(url(server, "/livez")).status_code == 200


def test_a_reload_takes_another_authority_for_clients(authority: Authority, tmp_path: Path) -> None:
    certificate, key = authority.issue("server")
    theirs = Authority(tmp_path / "theirs")
    trusted = tmp_path / "trusted.pem"
    shutil.copyfile(authority.file, trusted)
    ours, others = authority.issue("client"), theirs.issue("client")
    with guarded(ssl_certfile=certificate, ssl_keyfile=key, ssl_ca_certs=trusted) as server:
        for file, known, unknown in (
            (authority.file, ours, others),
            (theirs.file, others, ours),
        ):
            shutil.copyfile(file, trusted)
            server.running.reload()
            with client(authority, known) as one:
                assert one.get(url(server, "/livez")).status_code == 200
            with client(authority, unknown) as one, pytest.raises(httpx.TransportError):
                one.get(url(server, "/livez"))


def shown(server: Guarded) -> str:
    """The certificate that a new connection gets."""
    return ssl.get_server_certificate(("127.0.0.1", server.port), timeout=10)


def test_a_connection_that_is_cut_in_the_handshake_leaves_nothing(authority: Authority) -> None:
    certificate, key = authority.issue("server")
    with guarded(ssl_certfile=certificate, ssl_keyfile=key) as server:
        for content in (b"", b"\x16\x03\x01\x02\x00", b"\x00" * 100):
            with socket.create_connection(("127.0.0.1", server.port)) as opened:
                opened.sendall(content)
                opened.shutdown(socket.SHUT_WR)
                opened.settimeout(10)
                drain(opened)
        assert not server.running.peers.connections


def test_a_handshake_that_is_under_way_is_waited_for_one_that_failed_is_not(
    authority: Authority,
) -> None:
    certificate, key = authority.issue("server")
    context = ssl.create_default_context(cafile=str(authority.file))
    with guarded(ssl_certfile=certificate, ssl_keyfile=key, receive_timeout=1.0) as server:
        with server.connect() as opened:
            assert eventually(server, 1)
            with context.wrap_socket(opened, server_hostname="localhost"):
                assert eventually(server, 1)
        assert eventually(server, 0)
        with server.connect() as opened:
            opened.sendall(b"\x00" * 100)
            opened.settimeout(10)
            drain(opened)
        assert eventually(server, 0)


def eventually(server: Guarded, num: int) -> bool:
    """Whether so many connections are there, soon."""
    until = time.monotonic() + 20
    while (found := server.running.lifecycle.num_connections()) != num:
        assert time.monotonic() < until, found
        time.sleep(0.01)
    return True


@pytest.mark.parametrize("begin", [b"", b"\x16\x03\x01\x02\x00\x01"])
def test_a_handshake_that_does_not_end_is_ended(authority: Authority, begin: bytes) -> None:
    certificate, key = authority.issue("server")
    with (
        guarded(ssl_certfile=certificate, ssl_keyfile=key, receive_timeout=0.3) as server,
        server.connect() as opened,
    ):
        opened.settimeout(30)
        opened.sendall(begin)
        assert opened.recv(1) == b""


def test_who_writes_all_before_reading_is_told_so_over_tls(authority: Authority) -> None:
    certificate, key = authority.issue("server")
    context = ssl.create_default_context(cafile=str(authority.file))
    num_bytes = 24 << 20
    head = f"POST /v1/chat/completions HTTP/1.1\r\nHost: localhost\r\nContent-Length: {num_bytes}"
    with guarded(ssl_certfile=certificate, ssl_keyfile=key) as server:
        server.running.peers.linger_s = 20.0
        with (
            server.connect() as opened,
            context.wrap_socket(opened, server_hostname="localhost") as secure,
        ):
            secure.sendall(f"{head}\r\nAuthorization: Bearer {KEY}\r\n\r\n".encode())
            secure.sendall(b" " * num_bytes)
            assert secure.recv(65536).startswith(b"HTTP/1.1 413")
