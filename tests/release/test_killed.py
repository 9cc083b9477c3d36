"""kill -9 at any moment of a promotion, a rollback, a staging or a clean-up: the current release
and the one behind it stay whole (S114, D-9)."""

from __future__ import annotations

import os
import shutil
import signal
import subprocess
import sys
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest

from firsthand.cli.main import run_command
from firsthand.release.record import verify_release
from firsthand.release.store import Store
from firsthand.release.switching import Switch
from tests.release.conftest import SUMS, Stage

CHANGES = ("rename", "replace", "unlink", "rmdir", "link", "symlink", "fsync", "mkdir")


def until(last: int, words: list[str]) -> int:
    """The command in a process of its own, which is killed before its `last`-th change to the disk
    (0: never). How it ended."""
    pid = os.fork()
    if pid == 0:
        try:
            silence()
            count = [0]
            for name in CHANGES:
                setattr(os, name, _dies(getattr(os, name), last, count))
            os._exit(run_command(words))
        finally:
            os._exit(99)
    return os.waitstatus_to_exitcode(os.waitpid(pid, 0)[1])


def silence() -> None:
    sys.stdout = sys.stderr = open(os.devnull, "w")  # noqa: SIM115  # until the process ends


def _dies(real: Callable[..., Any], last: int, count: list[int]) -> Callable[..., Any]:
    def call(*given: Any, **more: Any) -> Any:
        count[0] += 1
        if count[0] == last:
            os.kill(os.getpid(), signal.SIGKILL)
        return real(*given, **more)

    return call


@pytest.mark.slow
@pytest.mark.process
@pytest.mark.parametrize(
    "words",
    [
        ("gc", "{store}", "--keep", "1"),
        ("rollback", "{store}"),
        ("promote", "{store}", "4", "--force"),
        pytest.param(("stage", "{store}", "{model}", "--no-golden"), marks=pytest.mark.soak),
    ],
    ids=lambda words: str(words[0]),
)
def test_s_114_a_kill_anywhere_leaves_the_way_back(
    words: tuple[str, ...], store: Store, staged: Stage, models: Path, tmp_path: Path
) -> None:
    for seed in range(1, 5):
        staged(seed)
    for number in (2, 1, 3):
        Switch(store, None, None, SUMS).promote(str(number), force=True)
    model = tmp_path / "another"
    shutil.copytree(models / "model-1", model)
    (model / "notes.txt").write_text("new")
    before = tmp_path / "before"
    copy(store.root, before)
    command = ["release", *(word.format(store=store.root, model=model) for word in words)]
    for last in range(1, 500):
        shutil.rmtree(store.root)
        copy(before, store.root)
        code = until(last, command)
        check_whole(store)
        if code == 0:
            assert last > 3
            return
        assert code == -signal.SIGKILL
        goal = {"rollback": 1, "promote": 4}.get(words[0], 3)
        if words[0] == "rollback" and store.current() == goal and store.history.begun() is None:
            continue  # it was killed behind its last word: again would go one further
        assert until(0, command) == 0
        check_whole(store)
        assert store.current() == goal
    pytest.fail("it does not come to an end")


def copy(source: Path, target: Path) -> None:
    """With its links: what is one file stays one."""
    subprocess.run(["cp", "-a", source, target], check=True)


def check_whole(store: Store) -> None:
    """What is served, and what a rollback returns to, are there with every byte."""
    current, previous = store.current(), store.previous()
    assert current is not None
    for number in {current, previous} - {None}:
        assert number is not None
        verify_release(store.folder(number), store.read(number), SUMS)
