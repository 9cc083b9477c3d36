"""Releases in a real server, under traffic: no request is lost (VERS-3, D-9, S113, F60)."""

from __future__ import annotations

import os
from collections.abc import Iterator
from contextlib import contextmanager
from dataclasses import replace
from pathlib import Path

import httpx
import pytest

from firsthand.cli.admin import ask_admin
from firsthand.errors import BadHash, ModelNotFound, ReleaseRefused
from firsthand.generation.load_options import LoadOptions
from firsthand.generation.loading import plan_model
from firsthand.release.drill import Drill
from firsthand.release.record import Release
from firsthand.release.sockets import AdminSocket
from firsthand.release.store import Store
from firsthand.release.switching import Switch
from tests.release.conftest import SUMS, stage_micro
from tests.release.traffic import Traffic
from tests.server.processes import Server, launched

pytestmark = pytest.mark.native


@pytest.fixture(scope="module")
def golden_store(tmp_path_factory: pytest.TempPathFactory, models: Path) -> Store:
    """Three releases; the third says other golden tokens than it gives."""
    store = Store(tmp_path_factory.mktemp("golden") / "store")
    for seed in (1, 2):
        stage_micro(store, models / f"model-{seed}", seed, golden=True)
    third = stage_micro(store, models / "model-3", 3, golden=False)
    third = replace(third, golden=store.read(1).golden)
    (store.folder(3) / "release.json").write_bytes(third.content())
    stage_micro(store, models / "model-4", 4, golden=False)
    return store


@contextmanager
def served(folder: Path, store: Store, *flags: str) -> Iterator[tuple[Server, Switch]]:
    admin = folder / "admin"
    arguments = (str(store.root / "current"), "--admin-socket", str(admin), *flags)
    with launched(folder, *arguments) as server:
        server.wait_ready(300)
        yield server, Switch(store, AdminSocket(admin), None, SUMS)


def test_vers_3_d_9_promote_and_roll_back_lose_no_request(
    golden_store: Store, tmp_path: Path
) -> None:
    store = golden_store
    first, second = store.read(1), store.read(2)
    Switch(store, None, None, SUMS).promote("1")
    with served(tmp_path, store) as (server, switch), Traffic(server) as traffic:
        traffic.wait(first)
        line = switch.promote("2", force=True)
        assert line["server"]["how"] == "beside"
        traffic.wait(second)
        check_says(server, second)
        line = switch.rollback()
        assert line["seconds"] < 10
        traffic.wait(first)
        with pytest.raises(ModelNotFound, match="release 9 is not in"):
            switch.promote("9", force=True)
        with pytest.raises(ReleaseRefused, match="does not answer as it was staged"):
            switch.promote("3", force=True)
        weights = store.folder(4) / "model" / "model.safetensors"
        os.chmod(weights, 0o644)
        content = bytearray(weights.read_bytes())
        content[1000] ^= 1
        weights.write_bytes(content)
        with pytest.raises(BadHash, match="its hash is"):
            switch.promote("4", force=True)
        with pytest.raises(ReleaseRefused, match="its hash is"):  # the server looks for itself
            AdminSocket(tmp_path / "admin").release(store.folder(4).resolve(), None)
        traffic.wait(first)
        check_says(server, first)
    assert traffic.failed == []
    assert store.current() == 1


def test_one_that_sleeps_is_tried_before_it_is_taken_for_good(
    golden_store: Store, tmp_path: Path
) -> None:
    """Only what answers becomes current, though nobody asks it now."""
    store = golden_store
    Switch(store, None, None, SUMS).promote("1", force=True)
    with served(tmp_path, store) as (server, switch):
        ask_admin(tmp_path / "admin", "sleep", {})
        with pytest.raises(ReleaseRefused, match="does not answer as it was staged"):
            switch.promote("3", force=True)
        assert store.current() == 1
        assert switch.promote("2", force=True)["server"]["how"] == "after"
        (one,) = ask_admin(tmp_path / "admin", "ps", {})["models"]
        assert (one["status"], one["release"]) == ("asleep", store.read(2).id)
        with Traffic(server) as traffic:
            traffic.wait(store.read(2))
        assert traffic.failed == []
        switch.rollback()


def check_says(server: Server, release: Release) -> None:
    """The service says what it serves, everywhere."""
    (card,) = httpx.get(server.url + "/v1/models").json()["data"]
    assert card["firsthand_manifest_sha256"] == release.manifest_sha256
    assert card["firsthand_release"] == release.id
    metrics = httpx.get(server.url + "/metrics").text
    series = [line for line in metrics.splitlines() if line.startswith("firsthand_model_info{")]
    assert len(series) == 1
    assert f'manifest="{release.manifest_sha256}"' in series[0]
    checks = httpx.get(server.url + "/readyz?verbose=1").json()["checks"]
    assert {name for name in checks if name.startswith(("engine:", "golden"))} == {
        "engine:micro",
        "golden_tokens:micro",
    }


def test_where_memory_is_short_the_old_one_leaves_first_and_requests_wait(
    golden_store: Store, tmp_path: Path
) -> None:
    store = golden_store
    model = store.folder(1) / "model"
    need = plan_model(model, LoadOptions(memory_limit="4GiB"))[1].shared_bytes
    config = tmp_path / "serve.toml"
    config.write_text(
        f'memory-limit = "{need * 3 // 2}"\nadmin-socket = "{tmp_path / "admin"}"\nthreads = 1\n'
        f'[[model]]\npath = "{store.folder(1)}"\nname = "one"\n'
        f'[[model]]\npath = "{model}"\nname = "two"\nload = "lazy"\n'
    )
    with launched(tmp_path, "--config", str(config)) as server:
        server.wait_ready(300)
        admin = AdminSocket(tmp_path / "admin")
        with Traffic(server, "one") as traffic:
            traffic.wait(store.read(1))
            assert admin.release(store.folder(2).resolve(), "one")["how"] == "after"
            traffic.wait(store.read(2))
            with pytest.raises(ReleaseRefused, match="does not answer as it was staged"):
                admin.release(store.folder(3).resolve(), "one")
        assert httpx.get(server.url + "/readyz").status_code in (200, 503)


def test_s_113_a_drill_goes_there_and_back(golden_store: Store) -> None:
    store = golden_store
    if store.current() is None:
        Switch(store, None, None, SUMS).promote("1")
    said: list[str] = []
    report = Drill(store, lambda _: None, said.append).run("2")
    assert report.passed, said
    assert report.num_failed == 0
    assert report.recovery_s is not None
    assert Switch(store, None, None, SUMS).promote("2")["before"] == 1
    Switch(store, None, None, SUMS).rollback()
