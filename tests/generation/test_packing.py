"""The packed form of a model in a load: equal bits, shared, never trusted."""

from __future__ import annotations

import os
import shutil
import signal
import subprocess
import sys
import threading
from collections.abc import Iterator
from pathlib import Path

import pytest

from firsthand.config import child_environment
from firsthand.errors import InvalidRequest
from firsthand.generation import packing
from firsthand.generation.llm import LLM
from firsthand.generation.load_options import LoadOptions
from firsthand.generation.loading import LoadedModel, load_model, pack_model
from firsthand.weights.sources import Quantization

pytestmark = pytest.mark.native


@pytest.fixture(autouse=True)
def home(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Iterator[Path]:
    monkeypatch.setenv("FIRSTHAND_HOME", str(tmp_path / "home"))
    monkeypatch.setenv("FIRSTHAND_PACK_CACHE", "1")
    monkeypatch.setattr(packing, "LEAST_BYTES", 0)
    monkeypatch.setattr("firsthand.weights.packed_cache._TICK_NS", 0)
    monkeypatch.setattr("firsthand.weights.packed_cache.SPARE_DISK_BYTES", 0)
    yield tmp_path / "home"
    for thread in threading.enumerate():
        if thread.name == "pack-writer":
            thread.join()


def loaded(model: Path, quantization: Quantization = "auto", *, cache: bool = True) -> LoadedModel:
    done = load_model(model, LoadOptions(quantization=quantization, pack_cache=cache))
    if done.pack_writer is not None:
        done.pack_writer.join()
    return done


def packed_files(home: Path) -> list[Path]:
    return sorted((home / "packed").glob("*.packed"))


def answer(model: LoadedModel) -> tuple[object, ...]:
    with LLM(model) as llm:
        done = llm.generate([1, 2, 3], max_tokens=12, temperature=0, ignore_end=True, logprobs=3)
        return done.token_ids, done.logprobs


@pytest.mark.parametrize("quantization", ["auto", "none", "int8", "int4"])
def test_equal_bits_with_and_without(
    micro_folder: Path, home: Path, quantization: Quantization
) -> None:
    first = loaded(micro_folder, quantization)
    assert first.pack_writer is not None
    assert len(packed_files(home)) == 1
    second = loaded(micro_folder, quantization)
    assert second.pack_writer is None  # it was there
    assert first.weights == second.weights
    assert first.executor.memory().weights_bytes == second.executor.memory().weights_bytes
    plain = loaded(micro_folder, quantization, cache=False)
    assert answer(first) == answer(second) == answer(plain)


def test_off_writes_and_reads_nothing(
    micro_folder: Path, home: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    assert loaded(micro_folder, cache=False).pack_writer is None
    monkeypatch.setenv("FIRSTHAND_PACK_CACHE", "0")
    assert loaded(micro_folder).pack_writer is None
    assert not home.exists()
    with pytest.raises(InvalidRequest, match="pack_cache"):
        LoadOptions(executor="torch", pack_cache=False)


def test_a_small_model_is_not_kept_unless_asked(
    micro_folder: Path, home: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(packing, "LEAST_BYTES", 16 << 20)
    assert loaded(micro_folder).pack_writer is None
    assert not home.exists()
    pack_model(micro_folder, "auto")
    assert len(packed_files(home)) == 1


def test_a_changed_model_is_packed_again(micro_folder: Path, home: Path, tmp_path: Path) -> None:
    folder = tmp_path / "model"
    shutil.copytree(micro_folder, folder)
    before = answer(loaded(folder))
    (old,) = packed_files(home)
    weights = folder / "model.safetensors"
    content = bytearray(weights.read_bytes())
    times = weights.stat()
    content[-4000:] = bytes(4000)
    weights.write_bytes(content)
    os.utime(weights, ns=(times.st_atime_ns, times.st_mtime_ns))  # as if it had not changed
    changed = loaded(folder)
    assert changed.pack_writer is not None
    assert answer(changed) == answer(loaded(folder, cache=False)) != before
    (new,) = packed_files(home)
    assert new != old  # which has gone


DAMAGES = (
    "cut",
    "empty",
    "magic",
    "header",
    "longer",
    "bit of the first weight",
    "last bit",
)


def damage(path: Path, how: str) -> None:
    content = bytearray(path.read_bytes())
    match how:
        case "cut":
            content = content[:-1]
        case "empty":
            content = bytearray()
        case "magic":
            content[0] ^= 1
        case "header":
            content[60] ^= 1
        case "longer":
            content += bytes(4096)
        case "bit of the first weight":
            content[-(-(44 + int.from_bytes(content[8:12], "little")) // 4096) * 4096] ^= 1
        case "last bit":
            content[-1] ^= 128
    path.unlink()
    path.write_bytes(content)


@pytest.mark.parametrize("how", DAMAGES)
def test_a_damaged_file_is_passed_over_and_written_anew(
    micro_folder: Path, home: Path, how: str
) -> None:
    first = loaded(micro_folder)
    (path,) = packed_files(home)
    whole = path.read_bytes()
    damage(path, how)
    with pytest.warns(RuntimeWarning, match="is not used, and written anew"):
        second = loaded(micro_folder)
    assert answer(second) == answer(first)
    assert path.read_bytes() == whole


def test_a_file_under_the_name_of_another_is_passed_over(micro_folder: Path, home: Path) -> None:
    loaded(micro_folder, "int8")
    (int8,) = packed_files(home)
    first = loaded(micro_folder, "none")
    (none,) = [path for path in packed_files(home) if path != int8]
    shutil.copy(int8, none)
    with pytest.warns(RuntimeWarning, match="of something else"):
        second = loaded(micro_folder, "none")
    assert answer(first) == answer(second)


def test_matrices_of_another_shape_are_passed_over(
    micro_folder: Path, home: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    first = loaded(micro_folder)
    monkeypatch.setattr(packing.TakenForm, "_found", lambda self: {"lm_head.weight": ((1, 2), "")})
    with pytest.warns(RuntimeWarning, match="not those of the model"):
        second = loaded(micro_folder)
    assert answer(first) == answer(second)


def test_pack_reads_all_and_mends(micro_folder: Path, home: Path) -> None:
    pack_model(micro_folder, "auto")
    (path,) = packed_files(home)
    content = path.read_bytes()
    assert pack_model(micro_folder, "auto").name == str(path)
    path.unlink()
    path.write_bytes(content[:-1] + bytes([content[-1] ^ 1]))
    with pytest.warns(RuntimeWarning, match="differ from their sums"):
        pack_model(micro_folder, "auto")
    assert path.read_bytes() == content


def test_a_folder_that_cannot_be_written_is_a_warning(
    micro_folder: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    (tmp_path / "file").write_bytes(b"")
    monkeypatch.setenv("FIRSTHAND_HOME", str(tmp_path / "file"))
    with pytest.warns(RuntimeWarning, match=r"cannot be kept, .* again: .*file"):
        writer = loaded(micro_folder).pack_writer
        assert writer is not None
        writer.join()


SETUP = """
import os, signal, sys
from pathlib import Path
from firsthand.generation import packing
from firsthand.generation.loading import pack_model
from firsthand.weights import packed_cache
packed_cache._TICK_NS = packed_cache.SPARE_DISK_BYTES = 0
"""
PACK = SETUP + "print(pack_model(sys.argv[1], 'auto').name)"
KILLED = (
    SETUP
    + """
def half(path, *_):
    Path(path).write_bytes(b"half")
    os.kill(os.getpid(), signal.SIGKILL)
packing.write_packed = half
pack_model(sys.argv[1], 'auto')
"""
)


def start(program: str, *arguments: str) -> subprocess.Popen[str]:
    command = [sys.executable, "-c", program, *arguments]
    return subprocess.Popen(
        command,
        stdin=subprocess.PIPE,
        stdout=subprocess.PIPE,
        text=True,
        env=child_environment({}),
    )


def test_two_processes_at_once_leave_one_whole_file(micro_folder: Path, home: Path) -> None:
    both = [start(PACK, str(micro_folder)) for _ in range(2)]
    names = {process.communicate(timeout=60)[0].strip() for process in both}
    assert [process.returncode for process in both] == [0, 0]
    assert names == {str(path) for path in packed_files(home)}
    assert loaded(micro_folder).pack_writer is None


def test_a_writer_that_is_killed_leaves_nothing_to_be_seen(micro_folder: Path, home: Path) -> None:
    process = start(KILLED, str(micro_folder))
    process.communicate(timeout=60)
    assert process.returncode == -signal.SIGKILL
    assert packed_files(home) == []
    assert list((home / "packed").glob(".*.partial"))
    pack_model(micro_folder, "auto")
    assert len(packed_files(home)) == 1
    assert not list((home / "packed").glob(".*.partial"))


HOLD = """
import sys
from pathlib import Path
from firsthand import LLM
with LLM(sys.argv[1]) as llm:
    llm.generate([1, 2, 3], max_tokens=2)
    print("ready", flush=True)
    sys.stdin.readline()
    sizes, inside = {}, False
    for line in open("/proc/self/smaps"):
        if "-" in line.split()[0]:
            inside = line.rstrip().endswith(".packed")
        elif inside and line.startswith(("Rss:", "Pss:")):
            key, size, _ = line.split()
            sizes[key] = sizes.get(key, 0) + int(size)
    print(sizes["Rss:"], sizes["Pss:"], flush=True)
    sys.stdin.readline()
"""


@pytest.mark.model
@pytest.mark.skipif(not Path("/proc/self/smaps").exists(), reason="reads Linux's smaps")
def test_two_processes_share_the_pages(smollm2_path: Path, home: Path) -> None:
    pack_model(smollm2_path, "auto")
    (path,) = packed_files(home)
    both = [start(HOLD, str(smollm2_path)) for _ in range(2)]
    for process in both:
        assert process.stdout is not None
        assert process.stdout.readline() == "ready\n"
    sizes = []
    for process in both:
        assert process.stdin is not None
        assert process.stdout is not None
        process.stdin.write("\n")
        process.stdin.flush()
        sizes.append([int(word) for word in process.stdout.readline().split()])
    for process in both:
        process.communicate("\n", timeout=60)
    for rss_kib, pss_kib in sizes:
        assert rss_kib * 1024 > 0.8 * path.stat().st_size
        assert pss_kib < 0.6 * rss_kib
