"""Who has this machine's cluster, and what dead processes have left. No Ray."""

from __future__ import annotations

import os
import signal
import socket
import subprocess
import sys
import tempfile
import threading
from collections.abc import Iterator
from contextlib import closing, contextmanager
from pathlib import Path

import pytest

from firsthand.cli.main import run_command
from firsthand.cluster import owned
from firsthand.cluster.owned import LOCK, NOTE, PREFIX, Note, claim, end, found, own_folder
from firsthand.cluster.session import CONNECT_S, Session, check_answers
from firsthand.errors import EngineUnavailable, InvalidRequest

OWNER = """
import os, signal, sys
from pathlib import Path
from firsthand.cluster.owned import Note, claim
signals = []
signal.signal(signal.SIGTERM, lambda *_: signals.append(1))
owner = claim(Path(sys.argv[1]))
owner.tell(Note("127.0.0.1:1", os.getpid(), float(sys.argv[2]), 2))
print("here", flush=True)
if len(sys.argv) > 3:  # at once
    os.kill(os.getpid(), signal.SIGKILL)
sys.stdin.read(1)  # until what is under way has ended
owner.release()
sys.exit(len(signals))
"""


@pytest.fixture
def home(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    monkeypatch.setenv("FIRSTHAND_HOME", str(tmp_path))
    return tmp_path


@contextmanager
def owner(home: Path, *words: str) -> Iterator[subprocess.Popen[str]]:
    command = [sys.executable, "-c", OWNER, str(home), *words]
    pipes = {"stdin": subprocess.PIPE, "stdout": subprocess.PIPE}
    with subprocess.Popen(command, text=True, **pipes) as process:  # type: ignore[call-overload]
        assert process.stdout.readline() == "here\n"
        yield process
        process.kill()


def test_one_cluster_on_a_machine_and_the_other_is_named(
    home: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    with owner(home, "5") as process:
        with pytest.raises(InvalidRequest, match=f"127.0.0.1:1, by {process.pid}"):
            claim(home)
        assert found(home) == Note("127.0.0.1:1", process.pid, 5.0, 2)
        assert run_command(["cluster", "scale", "3"]) == 2
        assert "room for 2" in capsys.readouterr().err


def test_while_it_starts_there_is_nothing_to_ask(
    home: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    """Nor is it said that there is no cluster, or that `stop` would end it."""
    claimed = claim(home)
    with pytest.raises(InvalidRequest, match="is being started"):
        claim(home)
    for words in (["status"], ["stop"], ["scale", "2"]):
        assert run_command(["cluster", *words]) == 1
        assert "is being started" in capsys.readouterr().err
    claimed.release()
    assert run_command(["cluster", "stop"]) == 2


@pytest.mark.parametrize("pid", [-1, 0, 1])
def test_a_note_that_names_no_single_process_is_none(home: Path, pid: int) -> None:
    """SIGTERM to −1 would end everything."""
    claimed = claim(home)
    claimed.tell(Note("127.0.0.1:1", pid, 1.0, 1))
    assert found(home) is None
    claimed.release()


def test_what_an_owner_that_was_killed_has_left_is_no_cluster(
    home: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    with owner(home, "5", "killed") as process:
        process.wait()
    assert (home / NOTE).exists()
    assert run_command(["cluster", "stop"]) == 2
    assert "no cluster runs on this machine" in capsys.readouterr().err
    assert not (home / NOTE).exists()
    again = claim(home)
    again.tell(Note("127.0.0.1:2", os.getpid(), 1.0, 1))
    assert (home / LOCK).stat().st_mode & 0o777 == 0o600
    again.release()
    assert found(home) is None


def test_a_stop_waits_for_what_is_under_way_and_a_second_one_hurries_nobody(home: Path) -> None:
    """A second SIGTERM would end it at once."""
    with owner(home, "60") as process:
        note = found(home)
        assert note is not None and process.stdin is not None
        told: list[str] = []
        stops = [threading.Thread(target=end, args=(home, note, told.append)) for _ in range(2)]
        for stop in stops:
            stop.start()
        stops[0].join(0.5)
        assert all(stop.is_alive() for stop in stops) and "60 s at most" in told[0]
        process.stdin.write("x")
        process.stdin.flush()
        for stop in stops:
            stop.join()
        assert process.wait() == 1, "one signal"


def test_a_stop_has_an_end(home: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(owned, "SPARE_S", 0.2)
    with owner(home, "0") as process:
        note = found(home)
        assert note is not None
        with pytest.raises(EngineUnavailable, match=f"not ended: its process is {process.pid}"):
            end(home, note, lambda text: None)


def test_a_start_that_ends_while_ray_is_loaded_leaves_nothing(
    home: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Nor does it load Ray to end it: half of it is there, and raises."""
    monkeypatch.setattr(tempfile, "tempdir", str(tmp_path))
    monkeypatch.setitem(sys.modules, "ray", None)
    folder, lock = own_folder()
    Session("", folder, lock, claim(home)).end()
    assert not folder.exists()
    claim(home).release()


def test_folders_of_dead_processes_are_removed_and_others_are_not(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(tempfile, "tempdir", str(tmp_path))
    (strange := tmp_path / f"{PREFIX}strange").mkdir()
    mine, lock = own_folder()
    assert mine.stat().st_mode & 0o777 == 0o700
    other, other_lock = own_folder()
    assert mine.exists()
    os.close(lock)  # as its process's end does
    third, third_lock = own_folder()
    assert set(tmp_path.iterdir()) == {strange, other, third}
    os.utime(strange, (0, 0))
    (link := tmp_path / f"{PREFIX}link").symlink_to(tmp_path)
    fourth, fourth_lock = own_folder()
    assert set(tmp_path.iterdir()) == {link, other, third, fourth}, "an old one without a lock"
    os.close(fourth_lock)
    os.close(other_lock)
    os.close(third_lock)


def test_the_parts_of_a_start_that_failed_are_ended_and_no_other_child(tmp_path: Path) -> None:
    waits = [sys.executable, "-c", "import time; time.sleep(60)"]
    part = subprocess.Popen([*waits, f"--log_dir={tmp_path}/r/logs"])
    other = subprocess.Popen(waits)
    try:
        owned.end_parts(tmp_path)
        assert part.wait(20) == -signal.SIGKILL
        assert other.poll() is None
    finally:
        for one in (part, other):
            one.kill()
            one.wait()


def test_a_cluster_that_is_gone_is_told_within_seconds(capsys: pytest.CaptureFixture[str]) -> None:
    with closing(socket.create_server(("127.0.0.1", 0))) as server:
        address = f"127.0.0.1:{server.getsockname()[1]}"
        check_answers(address)
        check_answers(f"ray://{address}")
    with pytest.raises(EngineUnavailable, match=f"the cluster at {address} does not answer"):
        check_answers(address)
    assert CONNECT_S <= 5.0
    for wrong in ("nowhere", "host:", ":x"):
        with pytest.raises(InvalidRequest, match="HOST:PORT"):
            check_answers(wrong)
    for words in (["status"], ["stop"], ["scale", "2"]):
        assert run_command(["cluster", *words, "--address", address]) not in (0, 2)
        assert f"the cluster at {address} does not answer" in capsys.readouterr().err
