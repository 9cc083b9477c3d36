"""`/v1/files` by the official client and by hand: whole or not there, one's own, within bounds.

Owns: proof of `stored/files.py` and `routes/files.py`. Read next: `test_batches.py`.
"""

from __future__ import annotations

import fcntl
import json
import sqlite3
import threading
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import Any

import httpx
import openai
import pytest

from firsthand.errors import InvalidRequest
from firsthand.server.guard.refusal import Refused
from firsthand.server.settings import Settings
from firsthand.server.stored.catalogue import open_catalogue
from firsthand.server.stored.files import Bounds, Files, Page, make_folders
from firsthand.server.stored.stored import stored_of
from tests.server.guarded import KEY, Guarded, guarded

OTHER = "other-key-0123456789"
LINES = b'{"a": 1}\n' * 4


@contextmanager
def keeping(folder: Path, **values: Any) -> Iterator[Guarded]:
    with guarded(files_folder=folder / "kept", **values) as server:
        yield server


@contextmanager
def client_of(server: Guarded, key: str = KEY) -> Iterator[Any]:
    url = f"http://127.0.0.1:{server.port}/v1"
    with openai.OpenAI(base_url=url, api_key=key, max_retries=0) as client:
        yield client


@pytest.fixture
def files(tmp_path: Path) -> Files:
    make_folders(tmp_path)
    return Files(tmp_path, open_catalogue(tmp_path / "catalogue.db"), Bounds(1000, 500))


def kept(files: Files, content: bytes = LINES, owner: str = "") -> str:
    upload = files.begin()
    upload.write(content)
    found = upload.keep(owner, "a.jsonl", "batch", None)
    upload.close()
    return found.id


def test_the_official_client_keeps_lists_reads_and_deletes(tmp_path: Path) -> None:
    """And another server over the same folder has what the first one kept."""
    with keeping(tmp_path) as server, client_of(server) as client:
        after = {"anchor": "created_at", "seconds": 3600}
        one = client.files.create(file=("数据.jsonl", LINES), purpose="batch", expires_after=after)
        assert (one.object, one.bytes, one.filename) == ("file", len(LINES), "数据.jsonl")
        assert (one.purpose, one.status) == ("batch", "processed")
        assert one.expires_at == one.created_at + 3600
        two = client.files.create(file=b"x", purpose="batch")
        assert two.expires_at == two.created_at + 30 * 86400
        assert client.files.retrieve(one.id) == one
        assert client.files.content(one.id).read() == LINES
        assert [found.id for found in client.files.list()] == [two.id, one.id]
        pages = client.files.list(limit=1, order="asc", purpose="batch")
        assert pages.has_more and [found.id for found in pages] == [one.id, two.id]
        assert client.files.list(purpose="batch_output").data == []
        assert client.files.delete(two.id).deleted
        with pytest.raises(openai.NotFoundError):
            client.files.content(two.id)
    with keeping(tmp_path) as server, client_of(server) as client:
        assert client.files.content(one.id).read() == LINES
        assert [found.id for found in client.files.list()] == [one.id]


def test_files_are_a_keys_own(tmp_path: Path) -> None:
    keys = (KEY, OTHER)
    with keeping(tmp_path, api_key=keys) as server:
        with client_of(server) as client:
            mine = client.files.create(file=LINES, purpose="batch").id
        with client_of(server, OTHER) as client:
            assert client.files.list().data == []
            for ask in (client.files.retrieve, client.files.content, client.files.delete):
                with pytest.raises(openai.NotFoundError):
                    ask(mine)
            with pytest.raises(openai.BadRequestError):
                client.files.list(after=mine)
            with pytest.raises(openai.NotFoundError) as refused:
                client.batches.create(
                    input_file_id=mine,
                    endpoint="/v1/chat/completions",
                    completion_window="24h",
                )
            assert refused.value.param == "input_file_id"


def upload(server: Guarded, **form: Any) -> httpx.Response:
    headers = {"Authorization": f"Bearer {KEY}"}
    return httpx.post(f"http://127.0.0.1:{server.port}/v1/files", headers=headers, **form)


def test_what_is_refused_is_named_and_leaves_nothing(tmp_path: Path) -> None:
    file = {"file": ("a.jsonl", LINES)}
    cases: list[tuple[dict[str, Any], int, str | None]] = [
        ({"files": file}, 400, "purpose"),
        ({"files": file, "data": {"purpose": "vision"}}, 400, "purpose"),
        ({"data": {"purpose": "batch"}, "files": {"x": ("a", b"")}}, 400, "x"),
        ({"files": {"purpose": (None, b"batch")}}, 400, "file"),
        ({"files": {**file, "purpose": (None, b"b" * 300)}}, 400, "purpose"),
        ({"files": [*file.items(), *file.items()], "data": {"purpose": "batch"}}, 400, "file"),
        ({"files": {"file": ("a" * 300, LINES)}, "data": {"purpose": "batch"}}, 400, "file"),
        ({"files": {"file": ("a", b"")}, "data": {"purpose": "batch"}}, 400, "file"),
        (
            {"files": file, "data": {"purpose": "batch", "expires_after[seconds]": "7200"}},
            400,
            "expires_after[anchor]",
        ),
        (
            {
                "files": file,
                "data": {
                    "purpose": "batch",
                    "expires_after[anchor]": "created_at",
                    "expires_after[seconds]": "60",
                },
            },
            400,
            "expires_after[seconds]",
        ),
        ({"files": {"file": ("a", b"x" * 70_000)}, "data": {"purpose": "batch"}}, 413, "file"),
        ({"json": {}}, 415, None),
        ({"content": b"--x", "params": {"a": "1"}}, 400, "a"),
    ]
    with keeping(tmp_path, max_file_size=65_536) as server:
        for form, status, param in cases:
            reply = upload(server, **form)
            assert (reply.status_code, reply.json()["error"]["param"]) == (status, param), form
        assert reply.headers.get("x-request-id")
        for query in ("limit=0", "limit=a", "limit=10001", "order=up", "after=file-1", "x=1"):
            status, answer = server.get(f"/v1/files?{query}")
            assert status == 400 and query.partition("=")[0].encode() in answer
    assert [path.name for path in (tmp_path / "kept/files").iterdir()] == []
    assert [path.name for path in (tmp_path / "kept/incoming").iterdir()] == []


def test_a_large_file_is_not_held_and_a_client_that_goes_leaves_nothing(tmp_path: Path) -> None:
    """Larger than any other body may be."""
    content = b"x" * (3 << 20)
    with keeping(tmp_path, max_body_size=65_536) as server:
        with client_of(server) as client:
            assert client.files.create(file=content, purpose="batch").bytes == len(content)
        with server.connect() as gone:
            head = f"POST /v1/files HTTP/1.1\r\nHost: x\r\nAuthorization: Bearer {KEY}\r\n"
            kind = "Content-Type: multipart/form-data; boundary=z\r\nContent-Length: 1000\r\n\r\n"
            part = '--z\r\nContent-Disposition: form-data; name="file"; filename="a"\r\n\r\nabc'
            gone.sendall((head + kind + part).encode())
            incoming = tmp_path / "kept/incoming"
            wait(lambda: any(incoming.iterdir()))
        wait(lambda: not any(incoming.iterdir()))
        assert len(list((tmp_path / "kept/files").iterdir())) == 1


def wait(true: Any) -> None:
    for _ in range(1000):
        if true():
            return
        threading.Event().wait(0.02)
    raise AssertionError("it never was")


def test_without_a_folder_there_are_none() -> None:
    with guarded() as server:
        for path in ("/v1/files", "/v1/batches", "/v1/files/a/content"):
            status, answer = server.get(path)
            assert status == 404 and b"--files-folder" in answer
        assert upload(server, files={"file": LINES}).status_code == 404


def test_all_together_have_a_bound(files: Files) -> None:
    """Also what comes in just now, and what batches work on."""
    for _ in range(2):
        kept(files, b"x" * 400)
    with pytest.raises(Refused) as refused:
        kept(files, b"x" * 201)
    assert (refused.value.status, refused.value.code) == (413, "storage_full")
    (files.folder / "work" / "batch_1.out.jsonl").write_bytes(b"x" * 300)
    with pytest.raises(Refused, match="1000 bytes"):
        files.begin()


def test_what_a_crash_leaves_is_removed_and_what_is_written_stays(files: Files) -> None:
    mine = kept(files)
    (files.folder / "files" / "file-lost").write_bytes(b"x")
    (files.folder / "incoming" / "dead").write_bytes(b"x")
    writing = files.begin()
    writing.write(b"half")
    files.sweep()
    assert [path.name for path in (files.folder / "files").iterdir()] == [mine]
    assert len(list((files.folder / "incoming").iterdir())) == 1
    assert writing.keep("", "b", "batch", None).num_bytes == 4
    writing.close()
    assert len(files.list("", Page(10), None)[0]) == 2


def test_a_file_goes_when_its_time_has_come(files: Files, tmp_path: Path) -> None:
    mine = kept(files)
    later = Files(files.folder, files.catalogue, files.bounds, lambda: 1e11)
    with pytest.raises(Refused):
        later.find("", mine)
    assert later.list("", Page(10), None) == ([], False)
    later.sweep()
    assert not files.path(mine).exists()
    assert files.list("", Page(10), None) == ([], False)


def test_a_disk_that_takes_nothing_is_told_and_nothing_changes(files: Files) -> None:
    mine = kept(files)
    with sqlite3.connect(files.catalogue.path) as connection:
        connection.execute(
            "CREATE TRIGGER full BEFORE INSERT ON files BEGIN SELECT RAISE(FAIL, 'x'); END"
        )
    upload = files.begin()
    upload.write(b"abc")
    with pytest.raises(Refused) as refused:
        upload.keep("", "a", "batch", None)
    upload.close()
    assert (refused.value.status, refused.value.code) == (503, "storage_failed")
    assert "x" not in refused.value.message.split()
    files.sweep()
    assert [path.name for path in (files.folder / "files").iterdir()] == [mine]


def test_a_folder_that_cannot_be_used(tmp_path: Path) -> None:
    (tmp_path / "file").write_bytes(b"")
    for folder in (tmp_path / "file", tmp_path / "file" / "inside"):
        with pytest.raises(InvalidRequest, match="files_folder"):
            stored_of(Settings(files_folder=folder))
    make_folders(tmp_path)
    (tmp_path / "catalogue.db").write_bytes(b"no table" * 100)
    with pytest.raises(InvalidRequest, match="files_folder"):
        stored_of(Settings(files_folder=tmp_path))


def test_an_upload_is_locked_by_who_writes_it(files: Files) -> None:
    upload = files.begin()
    (path,) = (files.folder / "incoming").iterdir()
    with path.open("rb") as other, pytest.raises(BlockingIOError):
        fcntl.flock(other, fcntl.LOCK_EX | fcntl.LOCK_NB)
    upload.close()


def test_a_batch_needs_a_file_that_is_one(tmp_path: Path) -> None:
    with keeping(tmp_path) as server:
        body = {"input_file_id": "file-1", "endpoint": "/v1/embeddings"}
        for more, param in (
            ({}, "completion_window"),
            ({"completion_window": "1h"}, "completion_window"),
            ({"completion_window": "24h"}, "input_file_id"),
            ({"completion_window": "24h", "endpoint": "/v1/models"}, "endpoint"),
            ({"completion_window": "24h", "metadata": {"a": 1}}, "metadata.a"),
            ({"completion_window": "24h", "model": "x"}, "model"),
        ):
            status, answer = server.post("/v1/batches", json.dumps({**body, **more}).encode())
            assert status in (400, 404)
            assert json.loads(answer.partition(b"\r\n\r\n")[2])["error"]["param"] == param
