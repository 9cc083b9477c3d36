"""Loading: the match of slots and tensors, ties, the report, memory, and the real file."""

from __future__ import annotations

import subprocess
import sys
from collections.abc import Mapping
from dataclasses import dataclass, field, replace
from pathlib import Path
from typing import Any, Literal

import numpy as np
import pytest
from numpy.typing import NDArray

from firsthand.errors import CheckpointError, UnsupportedModel
from firsthand.models.llama import GGUF_LAYOUT as LAYOUT
from firsthand.quant import round as rounding
from firsthand.quant.formats import Format, WeightSource, decode, row_blocks
from firsthand.weights.checkpoint import FileIdentity, Slot, TensorInfo
from firsthand.weights.loading import LoadReport, load

EMBED = "model.embed_tokens.weight"
HEAD = "lm_head.weight"
NORM = "model.norm.weight"
QUERY = "model.layers.0.self_attn.q_proj"


@dataclass
class FakeCheckpoint:
    """A checkpoint in memory. `share` gives the bytes of a tensor a second name."""

    form: Literal["safetensors", "gguf"] = "safetensors"
    metadata: Mapping[str, Any] = field(default_factory=dict)
    config: Mapping[str, Any] = field(default_factory=dict)
    path: str = "fake"
    tensors: dict[str, TensorInfo] = field(default_factory=dict)
    released: list[str] = field(default_factory=list)
    reads: list[str] = field(default_factory=list)
    contents: dict[int, NDArray[np.uint8]] = field(default_factory=dict)
    files: tuple[FileIdentity, ...] = ()

    def add(self, name: str, values: NDArray[Any], kind: str = "F32") -> None:
        data = np.ascontiguousarray(values).view(np.uint8).reshape(-1)
        offset = sum(part.size for part in self.contents.values())
        self.contents[offset] = data
        self.tensors[name] = TensorInfo(name, values.shape, kind, data.size, self.path, offset)

    def share(self, name: str, other: str) -> None:
        one = self.tensors[other]
        info = TensorInfo(name, one.shape, one.kind, one.num_bytes, one.file, one.offset)
        self.tensors[name] = info

    def raw(self, name: str) -> NDArray[np.uint8]:
        self.reads.append(name)
        return self.contents[self.tensors[name].offset]

    def release(self, name: str) -> None:
        self.released.append(name)

    def close(self) -> None: ...


@dataclass
class RecordingSink:
    """Keeps what it was given."""

    matrices: dict[str, NDArray[np.float32]] = field(default_factory=dict)
    formats: dict[str, Format] = field(default_factory=dict)
    vectors: dict[str, NDArray[np.float32]] = field(default_factory=dict)
    aliases: dict[str, str] = field(default_factory=dict)

    def load_weight(self, source: WeightSource) -> None:
        blocks = [decode(source.rows(a, b)) for a, b in row_blocks(*source.shape)]
        self.matrices[source.name] = np.concatenate(blocks)
        self.formats[source.name] = source.format
        source.release()

    def load_vector(self, name: str, values: NDArray[np.float32]) -> None:
        self.vectors[name] = values

    def alias(self, name: str, target: str) -> None:
        assert target in self.matrices or target in self.vectors, "aliases come last"
        self.aliases[name] = target


def normal(*shape: int, seed: int = 0) -> NDArray[np.float32]:
    return np.random.default_rng(seed).normal(0, 0.05, shape).astype(np.float32)


def small() -> tuple[FakeCheckpoint, list[Slot]]:
    """Embedding, one query projection with a bias, a norm, and a head of its own."""
    slots = [
        Slot(EMBED, (10, 8)),
        Slot(f"{QUERY}.weight", (8, 8), rope_heads=2),
        Slot(f"{QUERY}.bias", (8,), rope_heads=2),
        Slot(NORM, (8,)),
        Slot(HEAD, (10, 8)),
    ]
    checkpoint = FakeCheckpoint()
    for seed, slot in enumerate(slots):
        checkpoint.add(slot.name, normal(*slot.shape, seed=seed))
    return checkpoint, slots


def as_gguf(checkpoint: FakeCheckpoint) -> FakeCheckpoint:
    """The same tensors under GGUF names; the rows are left as they are."""
    names = {
        EMBED: "token_embd.weight",
        f"{QUERY}.weight": "blk.0.attn_q.weight",
        f"{QUERY}.bias": "blk.0.attn_q.bias",
        NORM: "output_norm.weight",
        HEAD: "output.weight",
    }
    renamed = FakeCheckpoint(form="gguf")
    for name, info in checkpoint.tensors.items():
        values = checkpoint.contents[info.offset].view(np.float32).reshape(info.shape)
        renamed.add(names[name], values)
    return renamed


def refusal(checkpoint: FakeCheckpoint, slots: list[Slot]) -> str:
    sink = RecordingSink()
    with pytest.raises(CheckpointError) as caught:
        load(checkpoint, slots, LAYOUT, sink)
    assert not sink.matrices and not sink.vectors, "nothing is handed over before the check"
    assert not checkpoint.reads
    return str(caught.value)


def test_every_tensor_arrives_once() -> None:
    checkpoint, slots = small()
    sink = RecordingSink()
    steps: list[tuple[int, int]] = []
    report = load(
        checkpoint, slots, LAYOUT, sink, "none", lambda done, total: steps.append((done, total))
    )
    for seed, slot in enumerate(slots):
        got = sink.matrices if len(slot.shape) == 2 else sink.vectors
        assert np.array_equal(got[slot.name], normal(*slot.shape, seed=seed)), slot.name
    assert sum(len(found) for found in (sink.matrices, sink.vectors)) == len(slots)
    assert not sink.aliases
    assert {slot.name for slot in slots} <= set(checkpoint.released)
    total = sum(info.num_bytes for info in checkpoint.tensors.values())
    assert report.file_bytes == report.held_bytes == total
    assert steps[-1] == (total, total) and [s[0] for s in steps] == sorted(s[0] for s in steps)


def test_the_report_says_what_is_held() -> None:
    checkpoint, slots = small()
    report = load(checkpoint, slots, LAYOUT, RecordingSink(), "int8")
    query = next(tensor for tensor in report.tensors if tensor.name == f"{QUERY}.weight")
    assert (query.kind, query.format, query.file_bytes) == ("F32", "int8/channel", 256)
    assert query.held_bytes == 64 + 4 * 8
    norm = next(tensor for tensor in report.tensors if tensor.name == NORM)
    assert (norm.format, norm.held_bytes) == ("float32", 32)


def test_gguf_rows_come_in_our_order() -> None:
    """Two heads of four rows: the file's (i, half) becomes (half, i), for the bias too."""
    plain, slots = small()
    sink = RecordingSink()
    load(as_gguf(plain), slots, LAYOUT, sink, "none")
    order = [0, 2, 1, 3, 4, 6, 5, 7]
    assert np.array_equal(sink.matrices[f"{QUERY}.weight"], normal(8, 8, seed=1)[order])
    assert np.array_equal(sink.vectors[f"{QUERY}.bias"], normal(8, seed=2)[order])
    assert np.array_equal(sink.matrices[EMBED], normal(10, 8, seed=0))


def test_rows_stay_where_the_layout_says_that_they_are_not_interleaved() -> None:
    plain, slots = small()
    sink = RecordingSink()
    load(as_gguf(plain), slots, replace(LAYOUT, interleaved=False), sink, "none")
    assert np.array_equal(sink.matrices[f"{QUERY}.weight"], normal(8, 8, seed=1))


def test_load_4_missing_tensors_are_all_named() -> None:
    checkpoint, slots = small()
    del checkpoint.tensors[NORM], checkpoint.tensors[f"{QUERY}.weight"]
    message = refusal(checkpoint, slots)
    assert f"'{NORM}' is missing" in message
    assert f"'{QUERY}.weight' is missing" in message
    assert "2 tensors" in message


def test_load_4_missing_in_gguf_is_named_in_both_words() -> None:
    plain, slots = small()
    checkpoint = as_gguf(plain)
    del checkpoint.tensors["output_norm.weight"]
    assert f"'{NORM}' is missing ('output_norm.weight' in GGUF)" in refusal(checkpoint, slots)


def test_model_7_extra_tensors_are_refused_unless_listed() -> None:
    checkpoint, slots = small()
    checkpoint.add("model.layers.0.self_attn.rotary_emb.inv_freq", normal(2))
    report = load(checkpoint, slots, LAYOUT, RecordingSink())
    assert report.ignored == ("model.layers.0.self_attn.rotary_emb.inv_freq",)
    checkpoint.reads.clear()
    checkpoint.add(f"{QUERY.replace('q_proj', 'q_norm')}.weight", normal(8))
    assert "q_norm.weight' is extra" in refusal(checkpoint, slots)


def test_misshapen_tensors_are_named_with_both_shapes() -> None:
    checkpoint, slots = small()
    slots[0] = Slot(EMBED, (8, 10))
    message = refusal(checkpoint, slots)
    assert f"'{EMBED}' is (10, 8), not (8, 10)" in message


def test_all_kinds_of_problems_come_together() -> None:
    checkpoint, slots = small()
    del checkpoint.tensors[NORM]
    slots[0] = Slot(EMBED, (11, 8))
    checkpoint.add("mystery", normal(3))
    message = refusal(checkpoint, slots)
    assert all(word in message for word in ("missing", "extra", "not (11, 8)", "3 tensors"))


def test_a_tensor_under_two_names_is_refused() -> None:
    plain, slots = small()
    checkpoint = as_gguf(plain)
    checkpoint.add(EMBED, normal(10, 8))
    assert f"'{EMBED}' is there 2 times: token_embd.weight, {EMBED}" in refusal(checkpoint, slots)


def test_a_long_list_of_problems_is_cut_and_counted() -> None:
    checkpoint, slots = small()
    for index in range(50):
        checkpoint.add(f"x{index}." + "y" * 10_000, normal(1))
    message = refusal(checkpoint, slots)
    assert "50 tensors" in message and "and 30 more" in message
    assert len(message) < 8000


@pytest.mark.parametrize("kind", ["F64", "I32", "IQ4_XS", "F8_E4M3"])
def test_unsupported_kinds_are_refused_by_name(kind: str) -> None:
    checkpoint, slots = small()
    checkpoint.add(NORM, normal(8), kind)
    with pytest.raises(UnsupportedModel, match=f"'{NORM}' is {kind}"):
        load(checkpoint, slots, LAYOUT, RecordingSink())


def test_width_that_is_no_whole_block_is_refused_by_name() -> None:
    checkpoint, slots = small()
    checkpoint.add(EMBED, normal(10, 8), "Q4_1")
    with pytest.raises(CheckpointError, match=f"{EMBED}.*8 .* 32 of Q4_1"):
        load(checkpoint, slots, LAYOUT, RecordingSink())


def test_bytes_that_do_not_fit_the_shape_are_refused_by_name() -> None:
    checkpoint, slots = small()
    checkpoint.add(EMBED, normal(10, 8), "F16")
    with pytest.raises(CheckpointError, match=f"{EMBED}.*320 bytes.*takes 160"):
        load(checkpoint, slots, LAYOUT, RecordingSink())


def test_optional_tensors_may_be_absent() -> None:
    checkpoint, slots = small()
    del checkpoint.tensors[f"{QUERY}.bias"]
    slots[2] = Slot(f"{QUERY}.bias", (8,), optional=True)
    report = load(checkpoint, slots, LAYOUT, RecordingSink())
    assert f"{QUERY}.bias" not in {tensor.name for tensor in report.tensors}


def tied(checkpoint: FakeCheckpoint, slots: list[Slot]) -> tuple[RecordingSink, LoadReport]:
    sink = RecordingSink()
    slots = [*slots[:-1], Slot(HEAD, (10, 8), tied_to=EMBED)]
    return sink, load(checkpoint, [slots[-1], *slots[:-1]], LAYOUT, sink)


@pytest.mark.parametrize("how", ["absent", "same place", "same bytes"])
def test_tied_tensors_are_held_once(how: str) -> None:
    checkpoint, slots = small()
    del checkpoint.tensors[HEAD]
    if how == "same place":
        checkpoint.share(HEAD, EMBED)
    elif how == "same bytes":
        checkpoint.add(HEAD, normal(10, 8, seed=0))
    sink, report = tied(checkpoint, slots)
    assert (HEAD in checkpoint.reads) == (how == "same bytes")
    assert sink.aliases == {HEAD: EMBED}
    assert HEAD not in sink.matrices
    assert [(a.name, a.target) for a in report.aliases] == [(HEAD, EMBED)]
    assert report.saved_bytes == 10 * 8 + 4 * 10
    assert HEAD not in {tensor.name for tensor in report.tensors}


def test_a_head_of_its_own_is_kept() -> None:
    checkpoint, slots = small()
    values = normal(10, 8, seed=0)
    values[9, 7] += np.float32(1e-6)
    checkpoint.add(HEAD, values)
    sink, report = tied(checkpoint, slots)
    assert not sink.aliases and not report.aliases
    assert HEAD in sink.matrices


def test_s_9_a_damaged_tensor_is_refused_by_name() -> None:
    checkpoint, slots = small()
    values = normal(8)
    values[3] = np.nan
    checkpoint.add(NORM, values)
    with pytest.raises(CheckpointError, match=f"'{NORM}': holds a NaN"):
        load(checkpoint, slots, LAYOUT, RecordingSink())


def test_scales_are_computed_once_per_row_at_load(monkeypatch: pytest.MonkeyPatch) -> None:
    """Every scale comes from two functions: wrapped, they count what a load computes."""
    rows: list[int] = []
    original = rounding.channel_scales

    def counting(values: NDArray[np.float32]) -> NDArray[np.float32]:
        rows.append(len(values))
        return original(values)

    monkeypatch.setattr(rounding, "channel_scales", counting)
    checkpoint, slots = small()
    load(checkpoint, slots, LAYOUT, RecordingSink(), "int8")
    assert sum(rows) == 10 + 8 + 10
    rows.clear()
    load(checkpoint, slots, LAYOUT, RecordingSink(), "none")
    assert not rows


PEAK = """
import sys
from pathlib import Path
import numpy as np
from firsthand.quant.formats import row_blocks
from firsthand.weights.checkpoint import GgufLayout, Slot
from firsthand.weights.loading import load
from firsthand.weights.safetensors import open_safetensors

class Packing:
    held = {}
    def load_weight(self, source):
        codes = self.held[source.name] = np.empty(source.shape, np.int8)
        for a, b in row_blocks(*source.shape):
            codes[a:b] = source.rows(a, b).codes
        source.release()

def status(key):
    lines = Path("/proc/self/status").read_text().splitlines()
    return next(int(line.split()[1]) for line in lines if line.startswith(key)) * 1024

checkpoint = open_safetensors(Path(sys.argv[1]))
slots = [Slot(f"model.{i}.weight", (2048, 2048)) for i in range(8)]
before = status("VmRSS:")
report = load(checkpoint, slots, GgufLayout({}, False), Packing(), "int8")
print(status("VmHWM:") - before, report.held_bytes)
"""


@pytest.mark.oracle
@pytest.mark.skipif(not sys.platform.startswith("linux"), reason="reads Linux's own counters")
def test_peak_memory_stays_near_the_packed_size(tmp_path: Path) -> None:
    """64 MB of float16 become 32 MB: the file's pages must go as fast as the codes come."""
    from safetensors.numpy import save_file

    values = np.random.default_rng(0).integers(-99, 99, (2048, 2048)).astype(np.float16)
    tensors = {f"model.{index}.weight": values for index in range(8)}
    save_file(tensors, tmp_path / "model.safetensors")
    (tmp_path / "config.json").write_text('{"model_type": "llama"}')
    command = [sys.executable, "-c", PEAK, str(tmp_path)]
    result = subprocess.run(command, capture_output=True, text=True, check=True, timeout=60)
    peak_bytes, held_bytes = map(int, result.stdout.split())
    assert held_bytes == 8 * (2048 * 2048 + 4 * 2048)
    assert peak_bytes < 1.3 * held_bytes + 24e6


def smollm2_slots() -> list[Slot]:
    m, f, kv, v = 576, 1536, 192, 49152
    slots = [Slot(EMBED, (v, m)), Slot(NORM, (m,)), Slot(HEAD, (v, m), tied_to=EMBED)]
    for layer in range(30):
        p = f"model.layers.{layer}"
        slots += [
            Slot(f"{p}.input_layernorm.weight", (m,)),
            Slot(f"{p}.self_attn.q_proj.weight", (m, m), rope_heads=9),
            Slot(f"{p}.self_attn.k_proj.weight", (kv, m), rope_heads=3),
            Slot(f"{p}.self_attn.v_proj.weight", (kv, m)),
            Slot(f"{p}.self_attn.o_proj.weight", (m, m)),
            Slot(f"{p}.post_attention_layernorm.weight", (m,)),
            Slot(f"{p}.mlp.gate_proj.weight", (f, m)),
            Slot(f"{p}.mlp.up_proj.weight", (f, m)),
            Slot(f"{p}.mlp.down_proj.weight", (m, f)),
        ]
    return slots


@dataclass
class CountingSink:
    """Reads everything, keeps shapes only."""

    matrices: dict[str, tuple[int, int]] = field(default_factory=dict)
    vectors: dict[str, int] = field(default_factory=dict)
    aliases: dict[str, str] = field(default_factory=dict)

    def load_weight(self, source: WeightSource) -> None:
        for start, stop in row_blocks(*source.shape):
            source.rows(start, stop)
        self.matrices[source.name] = source.shape
        source.release()

    def load_vector(self, name: str, values: NDArray[np.float32]) -> None:
        self.vectors[name] = len(values)

    def alias(self, name: str, target: str) -> None:
        self.aliases[name] = target


@pytest.mark.oracle
@pytest.mark.parametrize("kind", ["F16", "BF16", "Q8_0", "Q4_0", "Q4_1", "Q5_0", "Q5_1"])
def test_a_file_of_the_public_writer(kind: str, tmp_path: Path) -> None:
    """Written by the library that owns the format, rows interleaved as its converter does."""
    import gguf

    from firsthand.weights.gguf import open_gguf

    type_ = gguf.GGMLQuantizationType[kind]
    query, embedding = normal(64, 64), normal(96, 64, seed=1)
    stored = query.reshape(2, 2, 16, 64).swapaxes(1, 2).reshape(64, 64)
    writer = gguf.GGUFWriter(tmp_path / "m.gguf", "llama")
    for name, values in (("token_embd.weight", embedding), ("blk.0.attn_q.weight", stored)):
        raw = gguf.quants.quantize(values, type_)
        writer.add_tensor(name, raw, raw_dtype=type_)
    writer.write_header_to_file()
    writer.write_kv_data_to_file()
    writer.write_tensors_to_file()
    writer.close()
    sink = RecordingSink()
    slots = [Slot(EMBED, (96, 64)), Slot(f"{QUERY}.weight", (64, 64), rope_heads=2)]
    checkpoint = open_gguf(tmp_path / "m.gguf")
    load(checkpoint, slots, LAYOUT, sink, "none")
    checkpoint.close()
    for name, values in ((EMBED, embedding), (f"{QUERY}.weight", query)):
        expected = gguf.quants.dequantize(gguf.quants.quantize(values, type_), type_)
        assert np.array_equal(sink.matrices[name], expected), name


@pytest.mark.model
def test_the_real_file_loads(smollm2_path: Path) -> None:
    from firsthand.weights.gguf import open_gguf

    sink = CountingSink()
    checkpoint = open_gguf(smollm2_path)
    report = load(checkpoint, smollm2_slots(), LAYOUT, sink)
    checkpoint.close()
    assert (len(sink.matrices), len(sink.vectors)) == (211, 61)
    assert sink.aliases == {HEAD: EMBED}
    assert report.saved_bytes == 49152 * 612
    kinds = {(tensor.kind, tensor.format) for tensor in report.tensors}
    assert kinds == {("F32", "float32"), ("Q4_1", "int4/32+min"), ("Q8_0", "int8/32")}
    assert report.held_bytes == report.file_bytes
