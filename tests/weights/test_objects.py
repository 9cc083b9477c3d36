"""Models from object storage, from a real S3 server with faults: whole and right, or an error."""

from __future__ import annotations

import builtins
import hashlib
import json
import threading
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest

from firsthand.config import Environment, read_environment
from firsthand.errors import DownloadFailed, InvalidRequest, ModelNotFound, UnsupportedModel
from firsthand.server.setting_sources import read_settings
from firsthand.weights import catalogue, object_ranges
from firsthand.weights.catalogue import Source, pull, remove_model, resolve
from firsthand.weights.listing import list_models
from firsthand.weights.object_names import parse_object_id
from firsthand.weights.object_ranges import Patience, is_of_etag
from tests.weights.object_server import BUCKET, ObjectServer, object_server

pytest.importorskip("obstore")
pytest.importorskip("moto")
pytestmark = [
    pytest.mark.oracle,
    pytest.mark.filterwarnings("ignore::DeprecationWarning"),
    pytest.mark.filterwarnings("ignore::ResourceWarning"),
]

MODEL = f"s3://{BUCKET}/team/tiny"
WEIGHTS = bytes(range(256)) * 1000
PART = 40_000  # so that the weights are 7 parts


@pytest.fixture(scope="module")
def running() -> Iterator[ObjectServer]:
    with object_server() as server:
        yield server


@pytest.fixture
def server(running: ObjectServer, monkeypatch: pytest.MonkeyPatch) -> ObjectServer:
    monkeypatch.setenv("AWS_ACCESS_KEY_ID", "key")
    monkeypatch.setenv("AWS_SECRET_ACCESS_KEY", "secret")
    monkeypatch.setenv("AWS_REGION", "us-east-1")
    monkeypatch.setenv("AWS_ENDPOINT_URL", running.url)
    monkeypatch.setattr(object_ranges, "PART_BYTES", PART)
    monkeypatch.setattr(object_ranges, "PATIENCE", Patience(sleep=lambda _: None))
    running.on_get = lambda key, count: None
    running.ranges.clear()
    running.matches.clear()
    running.put("team/tiny/config.json", b"{}")
    running.put("team/tiny/model.safetensors", WEIGHTS)
    return running


@pytest.fixture
def env(server: ObjectServer, tmp_path: Path) -> Environment:
    variables = {"FIRSTHAND_HOME": str(tmp_path / "home"), "AWS_ENDPOINT_URL": server.url}
    return read_environment(variables)


def fetch(env: Environment, model: str = MODEL) -> Path:
    return pull(model, env, lambda _: None).path


def nothing_half(env: Environment) -> None:
    assert list_models(env) == []
    with pytest.raises(ModelNotFound, match="firsthand pull"):
        resolve(MODEL, env)


def test_in_parallel_ranges_under_the_etag_of_the_list(
    server: ObjectServer, env: Environment
) -> None:
    nothing_half(env)
    shown: list[Any] = []
    done = pull(MODEL, env, shown.append)
    assert done.source is Source.OBJECTS
    assert (done.path / "model.safetensors").read_bytes() == WEIGHTS
    ranges = sorted(each for key, each in server.ranges if key.endswith("safetensors"))
    assert len(ranges) == 7
    assert "bytes=0-39999" in ranges
    tag = hashlib.md5(WEIGHTS, usedforsecurity=False).hexdigest()
    assert f'"{tag}"' in server.matches
    assert sorted(path.name for path in done.path.iterdir()) == ["config.json", "model.safetensors"]
    assert shown[-1].done_bytes == shown[-1].total_bytes == len(WEIGHTS) + 2
    assert resolve(MODEL, env) == done
    assert [row.name for row in list_models(env)] == [MODEL]
    server.ranges.clear()
    assert fetch(env) == done.path
    assert server.ranges == [], "what is there is not fetched again"
    assert remove_model(MODEL, env) > len(WEIGHTS)
    nothing_half(env)


@pytest.mark.parametrize("fault", [503, 500, "short", "long"])
def test_a_fault_that_passes_is_tried_again(
    server: ObjectServer, env: Environment, fault: int | str
) -> None:
    server.on_get = lambda key, count: fault if count in (1, 3, 4, 6) else None
    assert (fetch(env) / "model.safetensors").read_bytes() == WEIGHTS


@pytest.mark.parametrize("fault", [503, "short", "long"])
def test_what_stays_wrong_leaves_nothing_half_and_the_next_pull_goes_on(
    server: ObjectServer, env: Environment, fault: int | str
) -> None:
    last = f"bytes={6 * PART}-"

    def wrong(key: str, count: int) -> int | str | None:
        return fault if server.ranges[count - 1][1].startswith(last) else None

    server.on_get = wrong
    with pytest.raises(DownloadFailed, match=r"tries"):
        fetch(env)
    nothing_half(env)
    server.on_get = lambda key, count: None
    server.ranges.clear()
    assert (fetch(env) / "model.safetensors").read_bytes() == WEIGHTS
    again = [each for key, each in server.ranges if key.endswith("safetensors")]
    assert [each.startswith(last) for each in again] == [True], "the parts that came are kept"


def test_an_object_that_changes_between_ranges_is_never_mixed(
    server: ObjectServer, env: Environment
) -> None:
    other, key = WEIGHTS[::-1], "team/tiny/model.safetensors"
    changed = threading.Event()

    def change() -> None:
        if not changed.is_set():
            changed.set()
            server.put(key, other)

    server.on_get = lambda name, count: change if (name, count > 3) == (key, True) else None
    assert (fetch(env) / "model.safetensors").read_bytes() == other
    assert changed.is_set()
    turn = iter(range(10**6))

    def always(name: str, count: int) -> Any:
        return (lambda: server.put(key, b"%d" % next(turn) + WEIGHTS)) if name == key else None

    server.put(key, WEIGHTS)
    server.on_get = always
    with pytest.raises(DownloadFailed, match="changed"):
        fetch(env)
    assert (resolve(MODEL, env).path / "model.safetensors").read_bytes() == other


def test_s90_a_wrong_hash_keeps_nothing(server: ObjectServer, env: Environment) -> None:
    sums = f"{'0' * 64}  model.safetensors\n"
    server.put("team/tiny/SHA256SUMS", sums.encode())
    try:
        with pytest.raises(DownloadFailed, match="is not what its line in SHA256SUMS says"):
            fetch(env)
        nothing_half(env)
        assert not list(env.home.rglob("model.safetensors*"))
        right = f"{hashlib.sha256(WEIGHTS).hexdigest()} *model.safetensors\n"
        server.put("team/tiny/SHA256SUMS", right.encode())
        assert (fetch(env) / "model.safetensors").read_bytes() == WEIGHTS
    finally:
        server.delete("team/tiny/SHA256SUMS")


def test_etags_that_are_made_of_sums(tmp_path: Path) -> None:
    path = tmp_path / "file"
    content = bytes(11 << 20)
    path.write_bytes(content)

    def md5(data: bytes) -> Any:
        return hashlib.md5(data, usedforsecurity=False)

    cut = 8 << 20
    joined = md5(md5(content[:cut]).digest() + md5(content[cut:]).digest()).hexdigest()
    assert is_of_etag(path, md5(content).hexdigest())
    assert is_of_etag(path, f"{joined}-2")
    for wrong in (f"{joined}-3", joined, md5(b"").hexdigest(), "", "x" * 32, f"{joined}-0"):
        assert not is_of_etag(path, wrong)


def test_two_pulls_at_once(server: ObjectServer, env: Environment) -> None:
    found: list[Path] = []
    threads = [threading.Thread(target=lambda: found.append(fetch(env))) for _ in range(3)]
    for thread in threads:
        thread.start()
    for thread in threads:
        thread.join()
    assert len(set(found)) == 1
    assert len(found) == 3
    assert sum(key.endswith("safetensors") for key, _ in server.ranges) == 7


def test_what_is_not_there(server: ObjectServer, env: Environment) -> None:
    with pytest.raises(ModelNotFound, match="nothing under this prefix"):
        fetch(env, f"s3://{BUCKET}/nothing")
    with pytest.raises(ModelNotFound, match="no such bucket"):
        fetch(env, "s3://no-such-bucket/x")
    server.put("text/readme.md", b"x")
    with pytest.raises(UnsupportedModel, match=r"no \.gguf file"):
        fetch(env, f"s3://{BUCKET}/text")
    server.put("parts/m-00001-of-00002.gguf", b"x")
    with pytest.raises(DownloadFailed, match=r"m-00002-of-00002\.gguf"):
        fetch(env, f"s3://{BUCKET}/parts")
    server.on_get = lambda key, count: 403
    with pytest.raises(DownloadFailed, match="no access"):
        fetch(env)


def test_s_103_a_servers_settings_may_lie_in_a_bucket(
    server: ObjectServer, env: Environment
) -> None:
    server.put("team/serve.toml", b"max-num-seqs = 3\n")
    server.put("team/serve.toml.old", b"max-num-seqs = 4\n")
    found = read_settings({}, {}, f"s3://{BUCKET}/team/serve.toml")
    assert found.settings.max_num_seqs == 3
    assert found.origins["max_num_seqs"] == f"file s3://{BUCKET}/team/serve.toml"
    with pytest.raises(ModelNotFound):
        read_settings({}, {}, f"s3://{BUCKET}/team/serve")
    with pytest.raises(InvalidRequest, match="--config"):
        read_settings({}, {}, "s3://B/x")
    server.put("team/large.toml", b"#" * ((1 << 20) + 1))
    with pytest.raises(InvalidRequest, match="longer"):
        read_settings({}, {}, f"s3://{BUCKET}/team/large.toml")


def test_load_5_only_the_shards_of_the_index(server: ObjectServer, env: Environment) -> None:
    places = {name: f"model-0000{name}-of-00002.safetensors" for name in "12"}
    index = json.dumps({"weight_map": places}).encode()
    for name in ("model-00001-of-00002.safetensors", "other.safetensors"):
        server.put(f"cut/{name}", b"1234")
    server.put("cut/model.safetensors.index.json", index)
    with pytest.raises(DownloadFailed, match="index names model-00002"):
        fetch(env, f"s3://{BUCKET}/cut")
    server.put("cut/model-00002-of-00002.safetensors", b"5678")
    names = sorted(path.name for path in fetch(env, f"s3://{BUCKET}/cut").iterdir())
    assert names == [
        "model-00001-of-00002.safetensors",
        "model-00002-of-00002.safetensors",
        "model.safetensors.index.json",
    ]


@pytest.mark.parametrize(
    "address",
    [
        "s3://", "s3://models", "s3://models/", "s3://Models/x", "s3://models/../x",
        "s3://models/x/../y", "s3://mo..dels/x", "s3:///x", "s3://models/x y", "s3://models//x",
        "s3://models/%2e%2e/x", "s3://user@models/x", "s3://models/x?versionId=1", "s3://models/.x",
    ],
)  # fmt: skip
def test_s90_hostile_addresses(address: str) -> None:
    with pytest.raises(InvalidRequest, match="s3://bucket/prefix"):
        parse_object_id(address)


def test_without_the_extra(env: Environment, monkeypatch: pytest.MonkeyPatch) -> None:
    true_import = builtins.__import__

    def no_obstore(name: str, *given: Any, **named: Any) -> Any:
        if name.startswith("obstore"):
            raise ModuleNotFoundError(name, name="obstore")
        return true_import(name, *given, **named)

    monkeypatch.setattr(builtins, "__import__", no_obstore)
    with pytest.raises(InvalidRequest, match=r"pip install 'firsthand\[storage\]'"):
        catalogue.pull(MODEL, env, lambda _: None)
