"""The store: releases by number, one current, the way back, and what a clean-up may take."""

from __future__ import annotations

import errno
import os
import shutil
from dataclasses import replace
from datetime import UTC, datetime, timedelta
from pathlib import Path
from typing import Any

import pytest

from firsthand.cli.micro_model import write_micro_model
from firsthand.errors import (
    BadHash,
    CapacityExceeded,
    CheckpointError,
    InvalidRequest,
    ModelNotFound,
    ReleaseRefused,
)
from firsthand.observe.alert_settings import AlertSettings
from firsthand.release.drill import Drill
from firsthand.release.drill_age import DAY_S, LONGEST_S
from firsthand.release.drill_report import Report, write_report
from firsthand.release.history import History, now
from firsthand.release.record import read_release, verify_release
from firsthand.release.staging import Staged, stage
from firsthand.release.store import Store
from firsthand.release.switching import Switch
from firsthand.weights.manifest_writing import Told, make_manifest, write_manifest
from tests.release.conftest import SUMS, Stage


def switch(store: Store) -> Switch:
    return Switch(store, None, None, SUMS)


def test_the_same_content_is_one_release_and_lies_there_once(store: Store, staged: Stage) -> None:
    first, again, other = staged(1), staged(1), staged(2)
    assert (first.number, again.number, other.number) == (1, 1, 2)
    assert first.id != other.id
    assert read_release(store.folder(2)) == other
    objects = {path.name for path in (store.root / "objects").glob("*/*")}
    assert len(objects) == 5  # both weights, and three files that are equal
    config = store.folder(1) / "model" / "config.json"
    assert os.path.samefile(config, store.folder(2) / "model" / "config.json")
    assert config.stat().st_mode & 0o222 == 0


def test_vers_4_the_latest_is_the_largest_number_and_junk_is_named(store: Store) -> None:
    for name in ("9", "10", "2", "tmp", "10.bak", "007"):
        (store.releases / name).mkdir(parents=True)
        (store.releases / name / "release.json").write_text("{}")
    assert store.numbers() == [2, 9, 10]
    assert store.junk() == ["007", "10.bak", "tmp"]
    with pytest.raises(CheckpointError, match=r"10/release\.json"):
        store.find("latest")


def test_a_release_is_found_by_number_word_and_hash(store: Store, staged: Stage) -> None:
    first, second = staged(1), staged(2)
    switch(store).promote("1")
    found = [store.find(word) for word in ("2", "latest", "current", first.id[:8])]
    assert found == [second, second, first, first]
    for word in ("3", "abcdefgh", "0", "../1"):
        with pytest.raises(ModelNotFound, match="there are: 1, 2"):
            store.find(word)


def test_a_changed_record_is_refused(store: Store, staged: Stage) -> None:
    staged(1)
    path = store.folder(1) / "release.json"
    path.write_bytes(path.read_bytes().replace(b'"threads":1', b'"threads":2'))
    with pytest.raises(CheckpointError, match="is not as it was written"):
        store.find("1")


def test_promotion_asks_for_a_drill_and_force_is_written_down(store: Store, staged: Stage) -> None:
    staged(1), staged(2)
    assert switch(store).promote("1")["before"] is None  # the first has nothing to return to
    with pytest.raises(ReleaseRefused, match="it has had no drill"):
        switch(store).promote("2")
    line = switch(store).promote("2", force=True)
    assert (line["before"], line["forced"]) == (1, "it has had no drill")
    assert os.readlink(store.root / "current") == "releases/2"
    assert [line["event"] for line in store.history.lines()] == [
        *("stage", "stage", "promote_begun", "promote", "promote_begun", "promote")
    ]


def test_the_way_back_leads_past_no_release_twice(store: Store, staged: Stage) -> None:
    for seed in (1, 2, 3):
        staged(seed)
        switch(store).promote("latest", force=True)
    assert store.previous() == 2
    assert switch(store).rollback()["release"] == 2
    assert (store.current(), store.previous()) == (2, 1)
    switch(store).rollback()
    assert (store.current(), store.previous()) == (1, None)
    with pytest.raises(ReleaseRefused, match="no earlier release"):
        switch(store).rollback()


def test_vers_1_a_release_that_was_changed_is_not_served(store: Store, staged: Stage) -> None:
    for seed in (1, 2):
        staged(seed)
        switch(store).promote("latest", force=True)
    path = store.folder(1) / "model" / "tokenizer.json"
    os.chmod(path, 0o644)
    path.write_bytes(path.read_bytes().replace(b"BPE", b"BQE"))
    with pytest.raises(BadHash, match=r"tokenizer\.json: its hash is .* the manifest says"):
        switch(store).rollback()
    assert store.current() == 2
    failed = store.history.last("rollback_failed")
    assert failed is not None
    assert "tokenizer.json" in failed["error"]


def test_d_9_a_switch_that_is_cut_leaves_one_whole_release(
    store: Store, staged: Stage, monkeypatch: pytest.MonkeyPatch
) -> None:
    staged(1), staged(2)
    switch(store).promote("1")

    def cut(*_: object, **__: object) -> None:
        raise KeyboardInterrupt

    with monkeypatch.context() as patched, pytest.raises(KeyboardInterrupt):
        patched.setattr(os, "replace", cut)
        switch(store).promote("2", force=True)
    assert store.current() == 1
    add = History.add

    def cut_at_the_end(history: History, event: str, *given: Any, **facts: Any) -> Any:
        return cut() if event in ("promote", "rollback") else add(history, event, *given, **facts)

    with monkeypatch.context() as patched, pytest.raises(KeyboardInterrupt):
        patched.setattr(History, "add", cut_at_the_end)
        switch(store).promote("2", force=True)
    assert (store.current(), store.previous()) == (2, 1)  # though the history does not know it yet
    with monkeypatch.context() as patched, pytest.raises(KeyboardInterrupt):
        patched.setattr(History, "add", cut_at_the_end)
        switch(store).rollback()
    assert store.current() == 1
    assert switch(store).rollback()["release"] == 1  # the same again ends it, and goes no further
    assert store.previous() is None


def test_a_torn_line_of_the_history_stays_alone(store: Store, staged: Stage) -> None:
    staged(1)
    with open(store.history.path, "ab") as file:
        file.write(b'{"event":"promo')
    staged(2)
    assert [line["release"] for line in store.history.lines()] == [1, 2]


def test_s_114_a_clean_up_never_takes_the_way_back(store: Store, staged: Stage) -> None:
    for seed in range(1, 6):
        staged(seed)
    for number in (2, 1, 4):
        switch(store).promote(str(number), force=True)
    gone, freed_bytes = store.collect(1)
    assert gone == [2, 3]
    assert freed_bytes > 2 * 300_000
    assert store.numbers() == [1, 4, 5]
    for number in (1, 4, 5):
        verify_release(store.folder(number), store.read(number), SUMS)
    assert switch(store).rollback()["release"] == 1
    assert staged(2).number == 6  # a number is never used again


def test_only_one_command_at_a_time(store: Store, staged: Stage) -> None:
    staged(1)
    with store.changing(), pytest.raises(InvalidRequest, match="another command is changing it"):
        switch(store).promote("1")


def test_another_engine_is_refused_by_its_version(store: Store, staged: Stage) -> None:
    release = replace(staged(1), engine_version="0.0.1")
    (store.folder(1) / "release.json").write_bytes(release.content())
    with pytest.raises(ReleaseRefused, match=r"engine 0\.0\.1 is known"):
        switch(store).promote("1")


def test_s_114_the_drill_fails_where_old_weights_are_gone(store: Store, staged: Stage) -> None:
    staged(1), staged(2)
    switch(store).promote("1")
    (store.folder(1) / "model" / "model.safetensors").unlink()
    said: list[str] = []
    report = Drill(store, lambda _: None, said.append).run("2")
    assert not report.passed
    (failed, golden) = [one for one in report.findings if not one.passed]
    assert failed.check == "files of 1"
    assert "model.safetensors is not there" in failed.detail
    assert golden.check == "golden tokens on record"
    assert "**failed**" in (store.drills / "2.md").read_text()
    with pytest.raises(ReleaseRefused, match="its last drill failed"):
        switch(store).promote("2")


def test_a_drill_counts_for_a_month_or_as_long_as_is_said(store: Store, staged: Stage) -> None:
    """As long as the alert says; the way back may be gone by then."""
    assert AlertSettings().drill_age == LONGEST_S
    old, new = staged(1), staged(2)
    switch(store).promote("1")
    write_report(store, Report(2, new.id, 1, old.id, now(), (), 8, 0, 1.0, 1.0, 2.0))

    def later(days: float) -> Switch:
        return replace(switch(store), now=lambda: datetime.now(UTC) + timedelta(days=days))

    why = "its last drill is 31.0 days old, and one counts for 30"
    with pytest.raises(ReleaseRefused, match=f"release 2: {why}; firsthand release drill, or"):
        later(31).promote("2")
    with pytest.raises(ReleaseRefused, match="one counts for 1;"):
        replace(later(2), drill_counts_s=DAY_S).promote("2")
    with pytest.raises(ReleaseRefused, match=why):
        later(31).canary("2", "5%", "request")
    assert later(29).promote("2")["before"] == 1


def test_a_configuration_that_this_engine_cannot_read_fails_the_drill(
    store: Store, staged: Stage
) -> None:
    staged(1), staged(2)
    switch(store).promote("1")

    def read(folder: Path) -> None:
        if folder.name == "1":
            raise InvalidRequest("threads", "has another meaning now")

    report = Drill(store, read, lambda _: None).run("2")
    assert "configuration of 1" in [one.check for one in report.findings if not one.passed]


def test_golden_tokens_that_are_none_are_refused_by_name(store: Store, staged: Stage) -> None:
    for golden in (
        {},
        {"prompt": "x", "tokens": 5},
        {"prompt": [1], "tokens": []},
        {"prompt": [1]},
    ):
        release = replace(staged(1), golden=golden)
        (store.folder(1) / "release.json").write_bytes(release.content())
        with pytest.raises(CheckpointError, match="golden: has the token ids"):
            store.find("1")
        shutil.rmtree(store.root)


def test_words_that_are_no_release_and_places_that_are_no_store(
    store: Store, staged: Stage
) -> None:
    staged(1)
    with pytest.raises(ModelNotFound, match="is no release of"):
        store.find("9" * 5000)
    with (
        pytest.raises(InvalidRequest, match=r"store: /proc/x: No such file"),
        Store(Path("/proc/x")).changing(),
    ):
        pass


def test_a_full_disk_is_told_as_that(
    store: Store, staged: Stage, monkeypatch: pytest.MonkeyPatch
) -> None:
    def full(*_: object) -> None:
        raise OSError(errno.ENOSPC, "No space left on device")

    monkeypatch.setattr(shutil, "copyfile", full)
    with pytest.raises(CapacityExceeded, match="no room on the disk for"):
        staged(1)
    assert store.numbers() == []


@pytest.mark.native
def test_staged_again_it_gets_the_golden_tokens_that_it_lacks(store: Store, staged: Stage) -> None:
    assert staged(1).golden is None
    assert staged(1, golden=True).golden is not None
    assert store.read(1).golden is not None


def test_a_version_that_goes_back_is_refused(store: Store, tmp_path: Path) -> None:
    """D-8: an old model has a signature that is right."""
    for number, (version, refused) in enumerate((("1.9", False), ("1.10", False), ("1.9", True))):
        folder = tmp_path / str(number) / "micro"
        folder.mkdir(parents=True)
        write_micro_model(folder, number)
        write_manifest(folder, make_manifest(folder, Told("micro", version), SUMS))
        wanted = Staged("micro", {}, None, None)
        if not refused:
            stage(store, folder, wanted, SUMS)
            continue
        with pytest.raises(ReleaseRefused, match=r"micro 1\.9 is older than release 2, 1\.10"):
            stage(store, folder, wanted, SUMS)
        stage(store, folder, replace(wanted, allow_older=True), SUMS)
    assert store.numbers() == [1, 2, 3]


def test_a_contract_may_be_new_and_another_one_is_asked_about(
    store: Store, models: Path, staged: Stage
) -> None:
    staged(1)
    for contract in ("aa" * 32, "bb" * 32):
        stage(store, models / "model-1", Staged("micro", {}, contract, None), SUMS)

    def contract_of(number: int, *, new_contract: bool = False) -> Any:
        report = Drill(store, lambda _: None, lambda _: None, new_contract).run(str(number))
        return next(one for one in report.findings if one.check == "contract of the data")

    switch(store).promote("1")
    assert contract_of(2).passed
    assert contract_of(2).detail == f"{'aa' * 32} instead of none"
    switch(store).promote("2", force=True)
    assert not contract_of(3).passed
    assert "--new-contract" in contract_of(3).detail
    assert contract_of(3, new_contract=True).passed
