"""Weights that come and go with the steps: equal bits, a bound that holds, conditions by name."""

from __future__ import annotations

import json
import os
import re
import signal
import subprocess
import sys
import threading
from collections.abc import Iterator
from contextlib import suppress
from pathlib import Path
from typing import Any

import pytest

from firsthand.cli.micro_model import VOCAB_SIZE, write_micro_model
from firsthand.compute.native import shards
from firsthand.config import child_environment
from firsthand.errors import CapacityExceeded, InvalidRequest
from firsthand.generation import packing, planning
from firsthand.generation.llm import LLM
from firsthand.generation.load_options import LoadOptions
from firsthand.generation.loading import LoadedModel, load_model, pack_model, plan_model
from firsthand.weights.sources import Quantization

pytestmark = pytest.mark.native


@pytest.fixture(autouse=True)
def home(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Iterator[Path]:
    monkeypatch.setenv("FIRSTHAND_HOME", str(tmp_path / "home"))
    monkeypatch.setenv("FIRSTHAND_PACK_CACHE", "1")
    monkeypatch.setattr(packing, "LEAST_BYTES", 0)
    monkeypatch.setattr(shards, "LEAST_BYTES", 4096)
    monkeypatch.setattr("firsthand.weights.packed_cache._TICK_NS", 0)
    monkeypatch.setattr("firsthand.weights.packed_cache.SPARE_DISK_BYTES", 0)
    yield tmp_path / "home"


def in_shards(
    model: Path, room: int | None, monkeypatch: pytest.MonkeyPatch, quantization: Quantization
) -> LoadedModel:
    monkeypatch.setattr(planning, "weights_room", lambda *_: room)
    return load_model(model, LoadOptions(quantization=quantization, load="shards"))


def answers(model: LoadedModel) -> list[tuple[object, ...]]:
    prompts = [[1, 2, 3], [*range(5, 60)], [7]]
    with LLM(model) as llm:
        done = llm.generate(prompts, max_tokens=8, temperature=0, ignore_end=True, logprobs=3)
        return [(one.token_ids, one.logprobs) for one in done]


@pytest.mark.parametrize("quantization", ["auto", "none", "int4"])
def test_s84_equal_bits_whole_and_in_shards(
    micro_folder: Path, monkeypatch: pytest.MonkeyPatch, quantization: Quantization
) -> None:
    whole = load_model(micro_folder, LoadOptions(quantization=quantization, pack_cache=False))
    wanted = answers(whole)
    weights = whole.executor.memory().weights_bytes
    for room in (None, 10 * weights, weights * 4 // 5):
        loaded = in_shards(micro_folder, room, monkeypatch, quantization)
        assert answers(loaded) == wanted
        facts = loaded.swapping
        assert facts is not None
        swaps = room is not None and room < weights
        assert (facts.num_swapped > 0) == swaps
        assert (facts.read_bytes > 0) == swaps
        if swaps:
            held = loaded.executor.memory().weights_bytes
            assert held == loaded.budget.fixed.weights_bytes
            assert held <= weights * 4 // 5
            steps = facts.read_bytes // facts.step_bytes
            assert steps >= 8, "each step reads its shards once"


def write_model(folder: Path, width: int, ffn_width: int, num_layers: int) -> Path:
    """A llama whose layers are alike, in float16."""
    import numpy as np
    from safetensors.numpy import save_file

    rng = np.random.default_rng(0)
    shapes = {
        "self_attn.q_proj": (width, width),
        "self_attn.k_proj": (width, width),
        "self_attn.v_proj": (width, width),
        "self_attn.o_proj": (width, width),
        "mlp.gate_proj": (ffn_width, width),
        "mlp.up_proj": (ffn_width, width),
        "mlp.down_proj": (width, ffn_width),
    }

    def matrix(shape: tuple[int, int]) -> Any:
        return (rng.standard_normal(shape, dtype=np.float32) / 16).astype(np.float16)

    layer = {name: matrix(shape) for name, shape in shapes.items()}
    ones = np.ones(width, np.float16)
    tensors = {"model.embed_tokens.weight": matrix((VOCAB_SIZE, width)), "model.norm.weight": ones}
    for index in range(num_layers):
        for name, values in layer.items():
            tensors[f"model.layers.{index}.{name}.weight"] = values
        for name in ("input_layernorm", "post_attention_layernorm"):
            tensors[f"model.layers.{index}.{name}.weight"] = ones
    folder.mkdir()
    write_micro_model(folder)
    config = json.loads((folder / "config.json").read_text())
    config |= {
        "hidden_size": width,
        "intermediate_size": ffn_width,
        "num_hidden_layers": num_layers,
        "num_attention_heads": width // 64,
        "num_key_value_heads": width // 64,
        "head_dim": 64,
        "max_position_embeddings": 256,
    }
    (folder / "config.json").write_text(json.dumps(config))
    save_file(tensors, folder / "model.safetensors")
    return folder


def resident_of_map() -> int:
    """Pages of packed files that lie in this process's map, in bytes."""
    found = re.findall(r"\.packed\nSize:.*?\nRss:\s+(\d+) kB", _smaps(), re.DOTALL)
    return 1024 * sum(int(kib) for kib in found)


def _smaps() -> str:
    text = Path("/proc/self/smaps").read_text()
    # One entry of a map: its line, then its numbers.
    return re.sub(r"\nKernelPageSize:.*\nMMUPageSize:.*", "", text)


def test_the_pages_of_the_file_never_take_more_than_was_said(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    model = write_model(tmp_path / "model", 128, 384, 12)
    whole = load_model(model, LoadOptions(quantization="none", pack_cache=False))
    weights = whole.executor.memory().weights_bytes
    wanted = answers(whole)
    loaded = in_shards(model, weights // 3, monkeypatch, "none")
    assert loaded.swapping is not None
    held, most, ended = loaded.swapping.held_bytes, 0, threading.Event()

    def watch() -> None:
        nonlocal most
        while not ended.wait(0.002):
            most = max(most, resident_of_map())

    watcher = threading.Thread(target=watch)
    watcher.start()
    try:
        assert answers(loaded) == wanted
    finally:
        ended.set()
        watcher.join()
    # Around a page that is read the system maps up to 16 that it has: 64 KiB at a place.
    assert 0 < max(most, resident_of_map()) <= held + (128 << 10)
    assert held <= weights // 3


def test_a_first_load_in_shards_writes_the_packed_form_of_all_loads(
    micro_folder: Path, home: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    in_shards(micro_folder, None, monkeypatch, "auto")
    (made,) = (home / "packed").glob("*.packed")
    content = made.read_bytes()
    made.unlink()
    whole = load_model(micro_folder, LoadOptions())
    assert whole.pack_writer is not None
    whole.pack_writer.join()
    assert made.read_bytes() == content, "the same file, whoever wrote it"
    made.unlink()
    assert pack_model(micro_folder, "auto").name == str(made)
    assert made.read_bytes() == content


def test_conditions_by_name(micro_folder: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    with pytest.raises(InvalidRequest, match=r"load.*native"):
        LoadOptions(executor="torch", load="shards")
    with pytest.raises(InvalidRequest, match=r"load.*pack_cache is off"):
        LoadOptions(load="shards", pack_cache=False)
    with pytest.raises(InvalidRequest, match="load"):
        LoadOptions(load="lazy")  # type: ignore[arg-type]
    with pytest.raises(CapacityExceeded, match=r"room for .* of weights"):
        in_shards(micro_folder, 1, monkeypatch, "auto")
    monkeypatch.setenv("FIRSTHAND_PACK_CACHE", "0")
    with pytest.raises(InvalidRequest, match="FIRSTHAND_PACK_CACHE is 0"):
        load_model(micro_folder, LoadOptions(load="shards"))


def test_a_plan_in_shards_needs_less(tmp_path: Path) -> None:
    model = write_model(tmp_path / "model", 256, 768, 48)
    limit = 104 << 20
    with pytest.raises(CapacityExceeded, match="weights 78"):
        plan_model(model, LoadOptions(quantization="none", memory_limit=limit, threads=1))
    options = LoadOptions(quantization="none", memory_limit=limit, threads=1, load="shards")
    _, budget = plan_model(model, options)
    assert budget.num_bytes <= limit


CHILD = """
import json, re, sys, threading
from pathlib import Path
from firsthand.generation.llm import LLM
from firsthand.generation.load_options import LoadOptions
from firsthand.generation.loading import load_model

def resident():
    text = Path("/proc/self/smaps_rollup").read_text()
    return 1024 * int(re.search(r"Rss:\\s+(\\d+) kB", text)[1])

model, load, limit = sys.argv[1], sys.argv[2], sys.argv[3]
options = LoadOptions(quantization="none", load=load, memory_limit=limit, max_sequences=1,
                      max_step_tokens=64, threads=2)
loaded = load_model(model, options)
with LLM(loaded) as llm:
    done = llm.generate([1, 2, 3, 4], max_tokens=6, temperature=0, ignore_end=True, logprobs=2)
peak = 1024 * int(re.search(r"VmHWM:\\s+(\\d+) kB", Path("/proc/self/status").read_text())[1])
facts = loaded.swapping
print(json.dumps({
    "ids": done.token_ids, "logprobs": repr(done.logprobs), "peak": peak,
    "weights": loaded.weights.held_bytes, "swapped": None if facts is None else facts.num_swapped,
}))
"""


LIMIT = 140 << 20
GREEDY = "held = b'x' * (200 << 20)"
ENTER = "open({!r}, 'w').write('0')  # the group's list of processes; 0 is who writes\n"


def run_child(
    model: Path, load: str, limit: int, group: Path | None = None, code: str = CHILD
) -> subprocess.CompletedProcess[str]:
    enter = "" if group is None else ENTER.format(str(group / "cgroup.procs"))
    return subprocess.run(
        [sys.executable, "-c", enter + code, str(model), load, str(limit)],
        capture_output=True,
        text=True,
        timeout=600,
        check=False,
        env=child_environment({}),
    )


def ran(*given: Any) -> dict[str, Any]:
    done = run_child(*given)
    assert done.returncode == 0, done.stderr[-3000:]
    found: dict[str, Any] = json.loads(done.stdout.splitlines()[-1])
    return found


@pytest.mark.slow
@pytest.mark.process
def test_s84_a_model_of_three_times_the_allowed_memory_runs(tmp_path: Path) -> None:
    """The highest mark of all that was resident in the process, pages of files counted in, from its
    start over the first load, which packs, to the last token."""
    model = write_model(tmp_path / "model", 768, 2304, 29)
    swapped = ran(model, "shards", LIMIT)
    assert swapped["weights"] >= 3 * LIMIT
    assert swapped["swapped"] > 0
    assert swapped["peak"] <= LIMIT
    again = ran(model, "shards", LIMIT)  # from the packed form
    assert again["peak"] <= LIMIT
    whole = ran(model, "whole", 4 << 30)
    assert whole["peak"] >= 3 * LIMIT
    assert whole["ids"] == swapped["ids"] == again["ids"]
    assert whole["logprobs"] == swapped["logprobs"] == again["logprobs"]


@pytest.fixture
def group() -> Iterator[Path]:
    """A control group that allows its processes `LIMIT` bytes, pages of files counted in."""
    for mount, name in (("/sys/fs/cgroup/memory", "limit_in_bytes"), ("/sys/fs/cgroup", "max")):
        folder = Path(mount) / f"firsthand-test-{os.getpid()}"
        with suppress(OSError):
            folder.mkdir()
            try:
                if (folder / f"memory.{name}").exists():
                    (folder / f"memory.{name}").write_text(str(LIMIT))
                    for swap in (folder / "memory.swappiness", folder / "memory.swap.max"):
                        if swap.exists():
                            swap.write_text("0")
                    yield folder
                    return
            finally:
                folder.rmdir()
    pytest.skip("no control group can be made here")


@pytest.mark.slow
@pytest.mark.process
def test_s84_the_system_itself_allows_a_third_of_the_model(tmp_path: Path, group: Path) -> None:
    """Whoever holds more is ended by the system; in shards the model is packed, runs, and says the
    same as whole and without a limit."""
    model = write_model(tmp_path / "model", 768, 2304, 29)
    assert run_child(model, "whole", LIMIT, group, GREEDY).returncode == -signal.SIGKILL
    swapped = ran(model, "shards", LIMIT, group)
    assert swapped["weights"] >= 3 * LIMIT
    assert swapped["peak"] <= LIMIT
    whole = ran(model, "whole", 4 << 30)
    assert whole["ids"] == swapped["ids"]
    assert whole["logprobs"] == swapped["logprobs"]


LOAD_CHILD = """
import json, re, sys
from pathlib import Path
import firsthand.compute.native.executor
from firsthand.generation.load_options import LoadOptions
from firsthand.generation.loading import load_model

def mark(name, where="status"):
    text = Path(f"/proc/self/{where}").read_text()
    return 1024 * int(re.search(name + r":\\s+(\\d+) kB", text)[1])

before = mark("VmRSS")
loaded = load_model(sys.argv[1], LoadOptions(pack_cache=False), late_text=True)
sizes = [tensor.held_bytes for tensor in loaded.weights.tensors]
print(json.dumps({"grown": mark("VmHWM") - before, "held": sum(sizes), "largest": max(sizes)}))
"""


@pytest.mark.model
@pytest.mark.process
def test_s8_s88_a_load_holds_the_packed_model_and_one_tensor(smollm2_path: Path) -> None:
    """The peak of a load ≤ the packed size + the largest tensor + 64 MB, measured."""
    done = subprocess.run(
        [sys.executable, "-c", LOAD_CHILD, str(smollm2_path)],
        capture_output=True,
        text=True,
        timeout=600,
        check=True,
        env=child_environment({}),
    )
    found = json.loads(done.stdout)
    assert found["held"] <= found["grown"] <= found["held"] + found["largest"] + 64_000_000
