"""kill -9 at any moment of a promotion, a rollback, a staging or a clean-up: the current release
and the one behind it stay whole (S114, D-9)."""

from __future__ import annotations

import shutil
import signal
import subprocess
import sys
from pathlib import Path

import pytest

from firsthand.release.record import verify_release
from firsthand.release.store import Store
from firsthand.release.switching import Switch
from tests.release.conftest import SUMS, Stage

# Every call that changes the store ends the process, one after the other: before it is done.
PROGRAM = """
import os, signal, sys
calls = 0
def dies(name):
    real = getattr(os, name)
    def call(*given, **more):
        global calls
        calls += 1
        if calls == int(sys.argv[1]):
            os.kill(os.getpid(), signal.SIGKILL)
        return real(*given, **more)
    setattr(os, name, call)
for name in ("rename", "replace", "unlink", "rmdir", "link", "symlink", "fsync", "mkdir"):
    dies(name)
from firsthand.cli.main import run_command
sys.exit(run_command(sys.argv[2:]))
"""


@pytest.mark.slow
@pytest.mark.process
@pytest.mark.parametrize(
    "words",
    [
        ("gc", "{store}", "--keep", "1"),
        ("rollback", "{store}"),
        ("promote", "{store}", "5", "--force"),
        ("stage", "{store}", "{model}", "--no-golden"),
    ],
    ids=lambda words: words[0],
)
def test_s_114_a_kill_anywhere_leaves_the_way_back(
    words: tuple[str, ...], store: Store, staged: Stage, models: Path, tmp_path: Path
) -> None:
    for seed in range(1, 6):
        staged(seed)
    for number in (2, 1, 4):
        Switch(store, None, None, SUMS).promote(str(number), force=True)
    model = tmp_path / "another"
    shutil.copytree(models / "model-1", model)
    (model / "notes.txt").write_text("new")
    before = tmp_path / "before"
    copy(store.root, before)
    for call in range(1, 1000):
        shutil.rmtree(store.root)
        copy(before, store.root)
        arguments = [word.format(store=store.root, model=model) for word in words]
        command = [sys.executable, "-c", PROGRAM, str(call), "release", *arguments]
        ended = subprocess.run(command, capture_output=True, text=True, check=False)
        check_whole(store)
        if ended.returncode == 0:
            assert call > 3
            return
        assert ended.returncode == -signal.SIGKILL, ended.stderr
        again = [sys.executable, "-c", PROGRAM, "0", "release", *arguments]
        done = subprocess.run(again, capture_output=True, text=True, check=False)
        assert done.returncode == 0, done.stderr
        check_whole(store)
        assert store.current() == {"rollback": 1, "promote": 5}.get(words[0], 4)
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
