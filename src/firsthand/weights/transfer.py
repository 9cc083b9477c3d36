"""HTTP as a download needs it: who gets the token, when to try again, where to go on.

Owns: requests, redirects, retries, resuming a partial file.
May not know: models, the cache's layout, hashes (whoever asked for the file checks it).
Read next: `hub.py`, the only user.

The token goes to the hub's own origin (scheme, host, port) and nowhere else: each hop of a
redirect is a new request that asks anew whether it may carry it.
"""

from __future__ import annotations

import http.client
import json
import os
import shutil
import ssl
import time
import urllib.error
import urllib.request
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from dataclasses import field
from email.message import Message
from pathlib import Path
from typing import Any, BinaryIO, TypeVar
from urllib.parse import urljoin, urlsplit

from firsthand.errors import DownloadFailed, ModelNotFound
from firsthand.values import dataclass

MAX_JSON_BYTES = 32 * 2**20
_MAX_REDIRECTS = 5
_MAX_WAIT_S = 60.0
_BLOCK_BYTES = 2**20
_REDIRECTS = (301, 302, 303, 307, 308)
_T = TypeVar("_T")


@dataclass(frozen=True, slots=True)
class Client:
    """Where the hub is and how patient we are. `timeout_s` bounds every wait for bytes."""

    endpoint: str
    token: str | None = field(default=None, repr=False)
    timeout_s: float = 30.0
    max_tries: int = 4
    backoff_s: float = 0.5
    sleep: Callable[[float], None] = time.sleep


@dataclass(frozen=True, slots=True)
class RemoteFile:
    """What the hub says about a file before we fetch it. `etag` is without quotes, unchecked."""

    etag: str
    num_bytes: int
    commit: str | None


class _TryAgain(Exception):
    """A failure that may pass. Never leaves this module."""

    def __init__(self, message: str, wait_s: float | None = None) -> None:
        super().__init__(message)
        self.wait_s = wait_s


def get_json(client: Client, url: str) -> Any:
    """The parsed answer, at most MAX_JSON_BYTES of it."""

    def attempt() -> Any:
        with _open(client, "GET", url, {}) as response:
            text = _read_some(response, MAX_JSON_BYTES + 1)
        if len(text) > MAX_JSON_BYTES:
            raise DownloadFailed(f"{url}: an answer over {MAX_JSON_BYTES} bytes")
        try:
            return json.loads(text)
        except (ValueError, RecursionError) as error:
            raise DownloadFailed(f"{url}: the answer is no JSON; is this a hub?") from error

    return _with_retries(client, url, attempt)


def look_up(client: Client, url: str) -> RemoteFile:
    """Size and hash of a file, without its bytes.

    For a large file the hub answers with a redirect to its storage, and says in that same answer
    what the storage would not: X-Linked-Etag is the SHA-256, X-Linked-Size the size.
    """

    def attempt() -> RemoteFile:
        with _open(client, "HEAD", url, {}) as response:
            headers = response.headers
        etag = headers.get("X-Linked-Etag") or headers.get("ETag") or ""
        size = headers.get("X-Linked-Size") or headers.get("Content-Length") or ""
        if not (size.isascii() and size.isdigit() and len(size) < 19):
            raise DownloadFailed(f"{url}: the hub does not say how long the file is")
        return RemoteFile(
            etag.removeprefix("W/").strip('"'), int(size), headers.get("X-Repo-Commit")
        )

    return _with_retries(client, url, attempt)


def download(
    client: Client, url: str, partial: Path, num_bytes: int, report: Callable[[int], None]
) -> None:
    """Fill `partial` up to `num_bytes`, going on from what it already has.

    `report` gets the size so far. On failure the bytes that came stay, for the next call.
    """

    def attempt() -> None:
        start = partial.stat().st_size if partial.is_file() else 0
        if start > num_bytes:
            start = 0
        _check_room(partial, num_bytes - start)
        descriptor = os.open(partial, os.O_RDWR | os.O_CREAT | os.O_NOFOLLOW, 0o644)
        with os.fdopen(descriptor, "r+b") as file:
            file.truncate(start)
            if start == num_bytes:
                return
            headers = {"Range": f"bytes={start}-"} if start else {}
            with _open(client, "GET", url, headers) as response:
                if start and not _continues(response, start):
                    file.truncate(0)
                    start = 0
                file.seek(start)
                _copy(response, file, start, num_bytes, report)

    _with_retries(client, url, attempt)


def _copy(
    response: http.client.HTTPResponse,
    file: BinaryIO,
    start: int,
    num_bytes: int,
    report: Callable[[int], None],
) -> None:
    done = start
    report(done)
    while done < num_bytes:
        # One byte over the end would show a body that is longer than was said.
        block = _read_some(response, min(_BLOCK_BYTES, num_bytes - done + 1), whole=False)
        if not block:
            raise _TryAgain(f"the connection ended after {done} of {num_bytes} bytes")
        if done + len(block) > num_bytes:
            raise DownloadFailed(
                f"{file.name}: the hub sent more than the {num_bytes} bytes it said"
            )
        file.write(block)
        done += len(block)
        report(done)


def _continues(response: http.client.HTTPResponse, start: int) -> bool:
    """Whether the body begins at `start`. A server may ignore a range and send the whole file."""
    content_range = response.headers.get("Content-Range") or ""
    return response.status == 206 and content_range.startswith(f"bytes {start}-")


def _check_room(partial: Path, num_bytes: int) -> None:
    free_bytes = shutil.disk_usage(partial.parent).free
    if free_bytes < num_bytes:
        raise DownloadFailed(
            f"{num_bytes} bytes do not fit into {partial.parent}, which has {free_bytes} free"
        )


def _with_retries(client: Client, what: str, attempt: Callable[[], _T]) -> _T:
    problem = ""
    for tried in range(client.max_tries):
        try:
            return attempt()
        except _TryAgain as error:
            problem = str(error)
            wait_s = client.backoff_s * 2**tried if error.wait_s is None else error.wait_s
        if tried + 1 < client.max_tries:
            client.sleep(wait_s)
    raise DownloadFailed(f"{what}: {problem} ({client.max_tries} tries)")


@contextmanager
def _open(
    client: Client, method: str, url: str, headers: dict[str, str]
) -> Iterator[http.client.HTTPResponse]:
    """The answer after all redirects, closed at the end. Failures are sorted into our kinds."""
    for _ in range(_MAX_REDIRECTS + 1):
        response = _send(client, method, url, headers)
        with response:
            redirected = response.status in _REDIRECTS
            # The answer to HEAD that names the hash is the one to read, also when it redirects.
            if not redirected or (method == "HEAD" and "X-Linked-Etag" in response.headers):
                if not redirected:
                    _check_status(response.status, response.headers, url, client)
                yield response
                return
            url = _next_url(url, response.headers.get("Location"))
    raise DownloadFailed(f"{_shown(url)}: more than {_MAX_REDIRECTS} redirects")


def _send(
    client: Client, method: str, url: str, headers: dict[str, str]
) -> http.client.HTTPResponse:
    """One request, no redirect followed. Proxies are those of the user's environment."""
    # Built from parts: the usual opener also follows redirects (with all headers) and reads
    # file: and ftp: addresses.
    opener = urllib.request.OpenerDirector()
    opener.add_handler(urllib.request.ProxyHandler())
    opener.add_handler(urllib.request.HTTPHandler())
    opener.add_handler(urllib.request.HTTPSHandler())
    opener.addheaders = [("User-Agent", "firsthand"), ("Accept-Encoding", "identity")]
    if client.token is not None and _origin(url) == _origin(client.endpoint):
        headers = {**headers, "Authorization": f"Bearer {client.token}"}
    try:
        request = urllib.request.Request(url, headers=headers, method=method)
        response = opener.open(request, timeout=client.timeout_s)
    except urllib.error.URLError as error:
        if isinstance(error.reason, ssl.SSLCertVerificationError):
            raise DownloadFailed(f"{_shown(url)}: {error.reason}") from error
        raise _TryAgain(f"no connection: {error.reason}") from error
    except (ValueError, http.client.InvalidURL) as error:
        raise DownloadFailed(f"{_shown(url)}: not an address: {error}") from error
    except (OSError, http.client.HTTPException) as error:
        raise _TryAgain(f"no answer: {error or type(error).__name__}") from error
    if not isinstance(response, http.client.HTTPResponse):
        raise DownloadFailed(f"{_shown(url)}: not an http address")
    return response


def _read_some(response: http.client.HTTPResponse, max_bytes: int, *, whole: bool = True) -> bytes:
    try:
        return response.read(max_bytes) if whole else response.read1(max_bytes)
    except (OSError, http.client.HTTPException) as error:
        raise _TryAgain(f"the connection broke: {error or type(error).__name__}") from error


def _check_status(status: int, headers: Message, url: str, client: Client) -> None:
    if 200 <= status < 300:
        return
    if status == 429 or status >= 500:
        raise _TryAgain(f"the server answers {status}", _retry_after_s(headers))
    if status in (401, 403):
        hint = (
            "the token in HF_TOKEN has no access to it"
            if client.token
            else "it does not exist, or it needs a token in HF_TOKEN"
        )
        raise DownloadFailed(f"{_shown(url)}: the server answers {status}: {hint}")
    if status == 404:
        raise ModelNotFound(f"{_shown(url)}: the hub has no such model, revision or file")
    raise DownloadFailed(f"{_shown(url)}: the server answers {status}")


def _retry_after_s(headers: Message) -> float | None:
    """The wait that the server asks for; its other form, a date, is left to our own back-off."""
    value = str(headers.get("Retry-After") or "").strip()
    if not (value.isascii() and value.isdigit() and len(value) < 9):
        return None
    return min(float(value), _MAX_WAIT_S)


def _next_url(url: str, location: str | None) -> str:
    try:
        target = urljoin(url, location or "")
        scheme = urlsplit(target).scheme
    except ValueError as error:
        raise DownloadFailed(f"{_shown(url)}: a redirect to nowhere") from error
    if not location or scheme not in ("http", "https"):
        raise DownloadFailed(f"{_shown(url)}: a redirect to {_shown(target)!r}")
    if urlsplit(url).scheme == "https" and scheme == "http":
        raise DownloadFailed(f"{_shown(url)}: a redirect from https down to http")
    return target


def _origin(url: str) -> tuple[str, str | None, int | None]:
    parts = urlsplit(url)
    port = parts.port or {"http": 80, "https": 443}.get(parts.scheme)
    return (parts.scheme, parts.hostname, port)


def _shown(url: str) -> str:
    """The address without its query: a redirect's query can be a key to the file."""
    return url.partition("?")[0][:200]
