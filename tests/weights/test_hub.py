"""Pulling from a hub: the real client against a small hub on the loopback interface.

Owns: proof of `weights/hub.py` and `weights/transfer.py`.
Read next: `hub_server.py`.
"""

from __future__ import annotations

import json
import os
import subprocess
import sys
import threading
import time
from collections.abc import Iterator
from dataclasses import dataclass, field, replace
from pathlib import Path

import pytest

from firsthand.config import Environment, child_environment
from firsthand.errors import (
    CheckpointError,
    DownloadFailed,
    FirsthandError,
    InvalidRequest,
    ModelNotFound,
    UnsupportedModel,
)
from firsthand.weights.catalogue import pull, resolve
from firsthand.weights.hub import choose_files, hub_bytes, pull_hub
from firsthand.weights.model_names import HubId
from firsthand.weights.places import PullProgress
from firsthand.weights.transfer import Client
from tests.weights.hub_server import COMMIT, Fault, HubServer, running

pytestmark = pytest.mark.process

WEIGHTS = bytes(range(256)) * 1000
TINY = HubId("org", "tiny")


@dataclass
class Pulling:
    """A hub, a cache, and a client that does not really wait."""

    hub: HubServer
    env: Environment
    slept: list[float] = field(default_factory=list)
    events: list[PullProgress] = field(default_factory=list)

    def client(self, **changes: object) -> Client:
        client = Client(
            self.env.hf_endpoint, self.env.hf_token, timeout_s=5.0, sleep=self.slept.append
        )
        return replace(client, **changes)  # type: ignore[arg-type]

    def __call__(self, hub_id: HubId = TINY, **changes: object) -> Path:
        return pull_hub(hub_id, self.env, self.events.append, self.client(**changes))

    @property
    def repo(self) -> Path:
        return self.env.hf_cache / "models--org--tiny"

    def blobs(self) -> list[str]:
        folder = self.repo / "blobs"
        return sorted(os.listdir(folder)) if folder.is_dir() else []

    def check_invisible(self) -> None:
        """Nobody who looks for the model finds any of it."""
        assert not (self.repo / "refs").exists()
        assert not list((self.repo / "snapshots").glob("*"))
        assert not list((self.repo / "snapshots").glob(".*"))
        for name in ("org/tiny", f"org/tiny@{COMMIT}"):
            with pytest.raises(ModelNotFound):
                resolve(name, self.env)


@pytest.fixture
def pulling(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Iterator[Pulling]:
    monkeypatch.setenv("no_proxy", "*")
    hub = HubServer(
        files={
            "config.json": b'{"model_type": "llama"}',
            "tokenizer.json": b"{}",
            "README.md": b"not part of the model",
            "model.safetensors": WEIGHTS,
            "onnx/model.safetensors": b"another form",
        },
        large={"model.safetensors"},
    )
    with running(hub):
        yield Pulling(
            hub,
            Environment(home=tmp_path / "home", hf_cache=tmp_path / "hf", hf_endpoint=hub.endpoint),
        )


def test_layout_is_the_shared_one(pulling: Pulling) -> None:
    path = pulling()
    hub = pulling.hub
    assert path == pulling.repo / "snapshots" / COMMIT
    assert sorted(os.listdir(path)) == ["config.json", "model.safetensors", "tokenizer.json"]
    assert (pulling.repo / "refs" / "main").read_text() == COMMIT
    assert pulling.blobs() == sorted(hub.etag(name) for name in os.listdir(path))
    for name in os.listdir(path):
        assert os.readlink(path / name) == f"../../blobs/{hub.etag(name)}"
        assert (path / name).read_bytes() == hub.files[name]
    assert resolve("org/tiny", pulling.env).path == path
    assert pulling.slept == []


def test_its_size_is_known_without_a_file(pulling: Pulling) -> None:
    """Also of shards, which the index names."""
    size = hub_bytes(TINY, pulling.env, pulling.client())
    assert size == sum(
        len(pulling.hub.files[name])
        for name in ("config.json", "tokenizer.json", "model.safetensors")
    )
    del pulling.hub.files["model.safetensors"]
    index = {"weight_map": {"a": "model-1.safetensors", "b": "model-2.safetensors"}}
    pulling.hub.files |= {
        "model.safetensors.index.json": json.dumps(index).encode(),
        "model-1.safetensors": b"1" * 70,
        "model-2.safetensors": b"2" * 7,
    }
    whole = hub_bytes(TINY, pulling.env, pulling.client())
    texts = len(b'{"model_type": "llama"}') + len(b"{}")
    assert whole == texts + len(json.dumps(index)) + 77
    assert not pulling.hub.seen("GET", "/storage")
    pulling.check_invisible()


def test_second_pull_fetches_no_file(pulling: Pulling) -> None:
    pulling()
    pulling.hub.requests.clear()
    pulling()
    assert pulling.hub.seen("GET", "/resolve/") == pulling.hub.seen("GET", "/storage/") == []


@pytest.mark.oracle
def test_the_hubs_own_library_finds_it(pulling: Pulling) -> None:
    from huggingface_hub import try_to_load_from_cache

    path = pulling()
    found = try_to_load_from_cache("org/tiny", "model.safetensors", cache_dir=pulling.env.hf_cache)
    assert found == str(path / "model.safetensors")


def test_progress_only_grows_and_ends_at_the_total(pulling: Pulling) -> None:
    pulling()
    sizes = [event.done_bytes for event in pulling.events if event.stage == "downloading"]
    assert sizes == sorted(sizes)
    wanted = ("config.json", "tokenizer.json", "model.safetensors")
    total = sum(len(pulling.hub.files[name]) for name in wanted)
    assert pulling.events[-1].done_bytes == pulling.events[-1].total_bytes == total


def test_token_stays_with_the_hub(pulling: Pulling) -> None:
    """The storage is another host: it is asked without the token, and its key is not printed."""
    pulling.hub.needs_token = "hf_secret"
    pulling.env = replace(pulling.env, hf_token="hf_secret")
    pulling.hub.faults["GET /storage/"] = [Fault(status=410)]
    with pytest.raises(DownloadFailed) as caught:
        pulling()
    assert "confidential" not in str(caught.value)
    pulling()
    stored = pulling.hub.seen("GET", "/storage/")
    asked = [request for request in pulling.hub.requests if request not in stored]
    assert len(stored) == 2
    assert all(request.host.startswith("localhost:") for request in stored)
    assert all("Authorization" not in request.headers for request in stored)
    assert all(request.headers["Authorization"] == "Bearer hf_secret" for request in asked)
    assert "hf_secret" not in repr(pulling.env) + repr(pulling.client())


def test_401_says_what_to_set(pulling: Pulling) -> None:
    pulling.hub.needs_token = "hf_secret"
    with pytest.raises(DownloadFailed, match=r"401.*needs a token in HF_TOKEN"):
        pulling()
    pulling.env = replace(pulling.env, hf_token="hf_wrong")
    with pytest.raises(DownloadFailed, match=r"401.*token in HF_TOKEN has no access") as caught:
        pulling()
    assert "hf_wrong" not in str(caught.value)
    pulling.check_invisible()


def test_404_is_model_not_found(pulling: Pulling) -> None:
    with pytest.raises(ModelNotFound, match="org/none"):
        pulling(HubId("org", "none"))
    assert pulling.slept == []
    assert not pulling.env.hf_cache.exists()


def test_429_waits_as_told(pulling: Pulling) -> None:
    pulling.hub.faults["GET /api/"] = [
        Fault(status=429, headers={"Retry-After": "7"}),
        Fault(status=503),
        Fault(status=429, headers={"Retry-After": "99999"}),
    ]
    pulling()
    assert pulling.slept == [7.0, 1.0, 60.0]


def test_errors_of_the_server_are_not_retried_for_ever(pulling: Pulling) -> None:
    pulling.hub.faults["GET /api/"] = [Fault(status=500)] * 100
    with pytest.raises(DownloadFailed, match=r"500.*4 tries"):
        pulling()
    assert len(pulling.hub.requests) == 4
    assert pulling.slept == [0.5, 1.0, 2.0]


@pytest.mark.parametrize(
    ("request_", "fault"),
    [
        ("GET /api/", Fault(hang=True)),
        ("HEAD /config.json", Fault(hang=True)),
        ("GET /storage/", Fault(hang=True, cut_after=1000)),
    ],
)
def test_silence_ends_at_the_timeout(pulling: Pulling, request_: str, fault: Fault) -> None:
    pulling.hub.faults[request_] = [fault] * 2
    began_s = time.monotonic()
    with pytest.raises(DownloadFailed, match="2 tries"):
        pulling(timeout_s=0.2, max_tries=2)
    assert time.monotonic() - began_s < 5  # the server itself would wait for 10 s


def test_no_connection(pulling: Pulling) -> None:
    with pytest.raises(DownloadFailed, match="no connection"):
        pulling(endpoint="http://127.0.0.1:1")


def test_offline_connects_to_nothing(pulling: Pulling) -> None:
    pulling.env = replace(pulling.env, hf_offline=True)
    with pytest.raises(DownloadFailed, match="HF_HUB_OFFLINE"):
        pull("org/tiny", pulling.env, pulling.events.append)
    assert pulling.hub.requests == []


def test_offline_a_complete_model_of_the_cache_is_there(pulling: Pulling) -> None:
    path = pulling()
    pulling.hub.requests.clear()
    pulling.env = replace(pulling.env, hf_offline=True)
    assert pull("org/tiny", pulling.env, pulling.events.append).path == path
    (path / "model.safetensors").unlink()
    with pytest.raises(FirsthandError, match=r"no model in"):
        pull("org/tiny", pulling.env, pulling.events.append)
    assert pulling.hub.requests == []


def test_cut_connection_goes_on_where_it_ended(pulling: Pulling) -> None:
    pulling.hub.faults["GET /storage/"] = [Fault(cut_after=1000), Fault(cut_after=5000)]
    path = pulling()
    assert (path / "model.safetensors").read_bytes() == WEIGHTS
    ranges = [request.headers.get("Range") for request in pulling.hub.seen("GET", "/storage/")]
    assert ranges == [None, "bytes=1000-", "bytes=6000-"]


def test_next_pull_goes_on_too(pulling: Pulling) -> None:
    pulling.hub.faults["GET /storage/"] = [Fault(cut_after=1000)]
    with pytest.raises(DownloadFailed, match="ended after 1000 of 256000 bytes"):
        pulling(max_tries=1)
    pulling.check_invisible()
    path = pulling()
    assert pulling.hub.seen("GET", "/storage/")[-1].headers["Range"] == "bytes=1000-"
    assert (path / "model.safetensors").read_bytes() == WEIGHTS
    assert not [name for name in pulling.blobs() if name.endswith(".incomplete")]


def test_a_server_that_ignores_ranges(pulling: Pulling) -> None:
    whole = Fault(status=200, headers={"Content-Type": "x"}, body=WEIGHTS)
    pulling.hub.faults["GET /storage/"] = [Fault(cut_after=1000), whole]
    assert (pulling() / "model.safetensors").read_bytes() == WEIGHTS


@pytest.mark.parametrize("length", [10, len(WEIGHTS), len(WEIGHTS) + 5])
def test_partial_file_of_something_else(pulling: Pulling, length: int) -> None:
    blobs = pulling.repo / "blobs"
    blobs.mkdir(parents=True)
    partial = blobs / f"{pulling.hub.etag('model.safetensors')}.incomplete"
    partial.write_bytes(b"x" * length)
    assert (pulling() / "model.safetensors").read_bytes() == WEIGHTS


def test_partial_file_that_is_a_link_is_not_followed(pulling: Pulling, tmp_path: Path) -> None:
    blobs = pulling.repo / "blobs"
    blobs.mkdir(parents=True)
    outside = tmp_path / "outside"
    outside.write_bytes(b"mine")
    (blobs / f"{pulling.hub.etag('model.safetensors')}.incomplete").symlink_to(outside)
    with pytest.raises(DownloadFailed):
        pulling()
    assert outside.read_bytes() == b"mine"


@pytest.mark.parametrize("name", ["model.safetensors", "config.json"])
def test_wrong_hash(pulling: Pulling, name: str) -> None:
    right = pulling.hub.files[name]
    wrong = Fault(body=right[:-1] + b"?")
    pulling.hub.faults[f"GET {name}"] = [wrong]
    pulling.hub.large.discard(name)  # the fault is in the file's own answer
    with pytest.raises(DownloadFailed, match=f"{name} arrived with another hash"):
        pulling()
    assert not [each for each in pulling.blobs() if pulling.hub.etag(name) in each]
    pulling.check_invisible()


def test_truncated_each_time(pulling: Pulling) -> None:
    pulling.hub.faults["GET /storage/"] = [Fault(cut_after=10)] * 100
    with pytest.raises(DownloadFailed, match="ended after 40 of 256000 bytes"):
        pulling()
    pulling.check_invisible()


def test_more_bytes_than_announced(pulling: Pulling) -> None:
    pulling.hub.faults["GET /storage/"] = [Fault(endless=True)]
    with pytest.raises(DownloadFailed, match="more than the 256000 bytes"):
        pulling()
    pulling.check_invisible()


def test_file_larger_than_the_disk(pulling: Pulling) -> None:
    size = {"X-Linked-Etag": "a" * 64, "X-Linked-Size": str(10**17)}
    pulling.hub.faults["HEAD /model.safetensors"] = [Fault(status=302, headers=size)]
    with pytest.raises(DownloadFailed, match="do not fit"):
        pulling()
    pulling.check_invisible()


HOSTILE_FILES = [
    "../model.safetensors",
    "../../../../tmp/model.safetensors",
    "/etc/model.safetensors",
    "..\\model.safetensors",
    "C:\\model.safetensors",
    "C:model.safetensors",
    "%2e%2e/model.safetensors",
    "..%2fmodel.safetensors",
    "a/../../model.safetensors",
    "a//model.safetensors",
    "./model.safetensors",
    ".git/config.json",
    "．．/model.safetensors",
    "a\0/model.safetensors",
    "\nmodel.safetensors",
    "x" * 300 + ".safetensors",
    "~/tokenizer.json",
]


@pytest.mark.parametrize("name", HOSTILE_FILES)
def test_s_90_hostile_file_names(pulling: Pulling, tmp_path: Path, name: str) -> None:
    pulling.hub.listed = ["config.json", "model.safetensors", name]
    with pytest.raises(DownloadFailed, match="that we do not name"):
        pulling()
    assert sorted(os.listdir(tmp_path)) == []


@pytest.mark.parametrize(
    "digest",
    ["../../../x", "a" * 63, "A" * 64, "a" * 65, "", "a" * 32, "a" * 63 + "/", "..", "\u0661" * 64],
)
def test_s_90_hostile_digests(pulling: Pulling, tmp_path: Path, digest: str) -> None:
    head = {"X-Linked-Etag": digest.encode().decode("latin-1"), "X-Linked-Size": "3"}
    pulling.hub.faults["HEAD /config.json"] = [Fault(status=302, headers=head)]
    with pytest.raises(DownloadFailed, match="no hash to verify"):
        pulling()
    assert sorted(os.listdir(tmp_path)) == []


@pytest.mark.parametrize("commit", ["../../x", "main", "A" * 40, "", "a" * 41])
def test_s_90_hostile_commits(pulling: Pulling, tmp_path: Path, commit: str) -> None:
    pulling.hub.commit = commit
    with pytest.raises(DownloadFailed, match="names a commit"):
        pulling()
    assert sorted(os.listdir(tmp_path)) == []


@pytest.mark.parametrize(
    "body", [b"<html>", b"[]", b"{}", b'{"sha": 1, "siblings": []}', b"[" * 100_000]
)
def test_answers_that_are_none(pulling: Pulling, body: bytes) -> None:
    pulling.hub.faults["GET /api/"] = [Fault(status=200, body=body)]
    with pytest.raises(DownloadFailed):
        pulling()


def test_list_of_files_with_another_kind_of_entry(pulling: Pulling) -> None:
    pulling.hub.listed = ["config.json", 7]
    with pytest.raises(DownloadFailed, match="list of files"):
        pulling()


@pytest.mark.parametrize(
    "location", ["file:///etc/passwd", "ftp://127.0.0.1/x", "http://[", "http://h:x/", ""]
)
def test_redirect_to_what_is_no_http(pulling: Pulling, location: str) -> None:
    pulling.hub.faults["GET /api/"] = [Fault(status=302, headers={"Location": location})]
    with pytest.raises(DownloadFailed):
        pulling()


def test_redirects_in_a_circle(pulling: Pulling) -> None:
    here = Fault(status=307, headers={"Location": "/api/models/org/tiny/revision/main"})
    pulling.hub.faults["GET /api/"] = [here] * 100
    with pytest.raises(DownloadFailed, match="more than 5 redirects"):
        pulling()


def test_redirect_of_a_renamed_model_is_followed(pulling: Pulling) -> None:
    there = Fault(status=307, headers={"Location": "/api/models/org/tiny/revision/main"})
    pulling.hub.faults["GET /api/"] = [there]
    assert pulling().is_dir()


def test_commit_of_a_file_is_the_models(pulling: Pulling) -> None:
    head = {"ETag": f'"{"a" * 40}"', "X-Repo-Commit": "b" * 40}
    pulling.hub.faults["HEAD /config.json"] = [Fault(status=200, headers=head)]
    with pytest.raises(DownloadFailed, match="another commit"):
        pulling()


def sharded(hub: HubServer, names: dict[str, str]) -> None:
    index = json.dumps({"weight_map": names}).encode()
    hub.files = {
        "config.json": b"{}",
        "model.safetensors.index.json": index,
        "model-00001-of-00002.safetensors": b"one",
        "model-00002-of-00002.safetensors": b"two",
        "consolidated.safetensors": b"the same again",
    }
    hub.large = {name for name in hub.files if name.endswith(".safetensors")}


def test_load_5_only_the_shards_of_the_index(pulling: Pulling) -> None:
    shards = {
        "a": "model-00001-of-00002.safetensors",
        "b": "model-00002-of-00002.safetensors",
    }
    sharded(pulling.hub, shards)
    path = pulling()
    assert sorted(os.listdir(path)) == [
        "config.json",
        *sorted(shards.values()),
        "model.safetensors.index.json",
    ]


@pytest.mark.parametrize(
    "shard", ["model-00003-of-00003.safetensors", "../x.safetensors", "a/b.safetensors"]
)
def test_load_4_s_8_index_names_what_is_not_there(pulling: Pulling, shard: str) -> None:
    sharded(pulling.hub, {"a": "model-00001-of-00002.safetensors", "b": shard})
    with pytest.raises((DownloadFailed, CheckpointError), match=r"names|plain name"):
        pulling()
    pulling.check_invisible()


def test_interrupted_pull_is_invisible_and_goes_on(pulling: Pulling) -> None:
    def interrupt(event: PullProgress) -> None:
        if event.file == "model.safetensors" and event.stage == "downloading":
            raise KeyboardInterrupt

    with pytest.raises(KeyboardInterrupt):
        pull_hub(TINY, pulling.env, interrupt, pulling.client())
    pulling.check_invisible()
    assert pulling().is_dir()


def test_interrupted_while_linking(pulling: Pulling, monkeypatch: pytest.MonkeyPatch) -> None:
    made: list[Path] = []

    def stop_at_second(self: Path, target: str) -> None:
        made.append(self)
        if len(made) == 2:
            raise KeyboardInterrupt
        os.symlink(target, self)

    with monkeypatch.context() as patch:
        patch.setattr(Path, "symlink_to", stop_at_second)
        with pytest.raises(KeyboardInterrupt):
            pulling()
    pulling.check_invisible()
    assert pulling().is_dir()


def test_two_pulls_at_once(pulling: Pulling) -> None:
    """Both end well, and the large file is fetched by one of them only."""
    ends: list[object] = []

    def one() -> None:
        try:
            ends.append(pull_hub(TINY, pulling.env, lambda event: None, pulling.client()))
        except FirsthandError as error:
            ends.append(error)

    threads = [threading.Thread(target=one) for _ in range(4)]
    for thread in threads:
        thread.start()
    for thread in threads:
        thread.join(timeout=20)
    assert ends == [pulling.repo / "snapshots" / COMMIT] * 4
    assert len(pulling.hub.seen("GET", "/storage/")) == 1
    assert os.listdir(pulling.repo / "snapshots") == [COMMIT]
    assert (pulling.repo / "snapshots" / COMMIT / "model.safetensors").read_bytes() == WEIGHTS


CHILD = """
import sys
from pathlib import Path
from firsthand.config import Environment
from firsthand.weights.hub import pull_hub
from firsthand.weights.model_names import HubId

home, cache, endpoint = sys.argv[1:]
env = Environment(home=Path(home), hf_cache=Path(cache), hf_endpoint=endpoint)
print(pull_hub(HubId("org", "tiny"), env, lambda event: print(event.stage, flush=True)))
"""


def started(pulling: Pulling) -> subprocess.Popen[str]:
    env = pulling.env
    given = [str(env.home), str(env.hf_cache), env.hf_endpoint]
    return subprocess.Popen(
        [sys.executable, "-c", CHILD, *given],
        stdout=subprocess.PIPE,
        text=True,
        env=child_environment({"no_proxy": "*"}),
    )


@pytest.mark.process
def test_two_processes_at_once(pulling: Pulling) -> None:
    """One of them fetches the large file, and both have the model."""
    both = [started(pulling) for _ in range(2)]
    ends = [process.communicate(timeout=60)[0].splitlines()[-1] for process in both]
    assert ends == [str(pulling.repo / "snapshots" / COMMIT)] * 2
    assert len(pulling.hub.seen("GET", "/storage/")) == 1
    assert os.listdir(pulling.repo / "snapshots") == [COMMIT]


@pytest.mark.process
def test_a_process_that_dies_while_another_waits(pulling: Pulling) -> None:
    """The other goes on where the first one ended; the system has let go of its lock."""
    pulling.hub.faults["GET /storage/"] = [Fault(cut_after=100_000, hang=True)]
    first = started(pulling)
    partial = pulling.repo / "blobs" / f"{pulling.hub.etag('model.safetensors')}.incomplete"
    until = time.monotonic() + 60
    while not (partial.exists() and partial.stat().st_size) and time.monotonic() < until:
        time.sleep(0.01)
    second = started(pulling)
    assert second.stdout is not None
    assert any(line.startswith("waiting") for line in second.stdout), "it did not wait"
    pulling.check_invisible()
    first.kill()
    first.communicate()
    end = second.communicate(timeout=60)[0].splitlines()[-1]
    assert end == str(pulling.repo / "snapshots" / COMMIT)
    assert (Path(end) / "model.safetensors").read_bytes() == WEIGHTS
    fetched = pulling.hub.seen("GET", "/storage/")
    assert len(fetched) == 2
    assert fetched[1].headers["Range"].startswith("bytes=")
    assert not partial.exists()


def test_copies_where_links_are_impossible(
    pulling: Pulling, monkeypatch: pytest.MonkeyPatch
) -> None:
    def refuse(self: Path, target: str) -> None:
        raise OSError("no links here")

    monkeypatch.setattr(Path, "symlink_to", refuse)
    path = pulling()
    assert not (path / "model.safetensors").is_symlink()
    assert (path / "model.safetensors").read_bytes() == WEIGHTS


def test_revisions(pulling: Pulling) -> None:
    pulling(replace(TINY, revision="refs/pr/1"))
    assert (pulling.repo / "refs" / "refs" / "pr" / "1").read_text() == COMMIT
    assert pulling.hub.requests[0].path == "/api/models/org/tiny/revision/refs/pr/1"
    pulling(replace(TINY, revision=COMMIT))
    assert os.listdir(pulling.repo / "refs") == ["refs"]  # a commit needs no name
    assert resolve(f"org/tiny@{COMMIT}", pulling.env).revision == COMMIT


def test_gguf_by_name_then_another(pulling: Pulling) -> None:
    pulling.hub.files = {"config.json": b"{}", "a.gguf": b"GGUFa", "q4/b.gguf": b"GGUFb"}
    pulling.hub.large = {"a.gguf", "q4/b.gguf"}
    first = pull("org/tiny:a.gguf", pulling.env, pulling.events.append)
    second = pull("org/tiny:q4/b.gguf", pulling.env, pulling.events.append)
    assert [first.path.read_bytes(), second.path.read_bytes()] == [b"GGUFa", b"GGUFb"]
    assert second.path == pulling.repo / "snapshots" / COMMIT / "q4" / "b.gguf"
    assert first.path.is_file()
    assert not (pulling.repo / "snapshots" / COMMIT / "config.json").exists()


def test_gguf_in_parts(pulling: Pulling) -> None:
    """All come, whichever is named."""
    names = [f"q4/b-{number:05}-of-00002.gguf" for number in (1, 2)]
    pulling.hub.files = {"a.gguf": b"GGUFa", names[0]: b"GGUFb", names[1]: b"GGUFc"}
    pulling.hub.large = {*names}
    found = pull(f"org/tiny:{names[1]}", pulling.env, pulling.events.append)
    snapshot = pulling.repo / "snapshots" / COMMIT
    assert found.path == snapshot / names[0]
    assert [(snapshot / name).read_bytes() for name in names] == [b"GGUFb", b"GGUFc"]
    assert not (snapshot / "a.gguf").exists()
    size = hub_bytes(replace(TINY, file=names[0]), pulling.env, pulling.client())
    assert size == 10


def test_choice_of_files() -> None:
    def choose(*names: str, file: str | None = None) -> list[str]:
        return choose_files(list(names), replace(TINY, file=file))

    assert choose("a.gguf", "config.json", "README.md") == ["a.gguf"]
    usual = ["tokenizer.model", "model.safetensors"]
    assert choose("x.safetensors", "a.gguf", *usual) == usual
    assert choose("a.gguf", "b.gguf", file="b.gguf") == ["b.gguf"]
    with pytest.raises(InvalidRequest, match=r"org/tiny:a\.gguf, org/tiny:b\.gguf"):
        choose("a.gguf", "b.gguf")
    with pytest.raises(InvalidRequest, match=r"org/tiny:q4/a\.gguf"):
        choose("q4/a.gguf")
    with pytest.raises(ModelNotFound, match=r"has no c\.gguf; it has org/tiny:a\.gguf"):
        choose("a.gguf", file="c.gguf")
    with pytest.raises(UnsupportedModel, match=r"pytorch_model\.bin.*firsthand convert"):
        choose("config.json", "pytorch_model.bin")
    with pytest.raises(UnsupportedModel, match=r"no model\.safetensors"):
        choose("config.json", "adapter.safetensors", "flax_model.msgpack")
