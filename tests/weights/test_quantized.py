"""Other tools' checkpoints: every value as the format's own library, or its formula, has it.

Owns: GPTQ, AWQ, compressed-tensors and float8 from a file to values, and what is refused.
GPTQ's library cannot be installed without a GPU, so its layout is written here bit by bit from its
description; the other two are compared with the library that owns the format.
May not know: models. Read next: `quantized_files.py`.
"""

from __future__ import annotations

from pathlib import Path
from typing import Any, Literal

import numpy as np
import pytest
from numpy.typing import NDArray

from firsthand.errors import CheckpointError, UnsupportedModel
from firsthand.quant.formats import ChannelFormat, FloatFormat, GroupedFormat, decode
from firsthand.weights.checkpoint import Checkpoint
from firsthand.weights.open import open_checkpoint
from firsthand.weights.sources import FileSource, held_format, wished_format
from tests.weights import quantized_files as files

STEM = "model.layers.0.mlp.up_proj"
Array = NDArray[Any]


def source(checkpoint: Checkpoint, name: str = f"{STEM}.weight") -> FileSource:
    info = checkpoint.tensors[name]
    n, k = info.shape
    return FileSource(checkpoint, info, name, (n, k), held_format(info))


def read(checkpoint: Checkpoint, name: str = f"{STEM}.weight") -> Array:
    """In two pieces, the second at an odd row."""
    matrix = source(checkpoint, name)
    n = matrix.shape[0]
    cuts = [(0, 3), (3, n)]
    return np.concatenate([decode(matrix.rows(a, b)) for a, b in cuts])


@pytest.mark.parametrize("bits", [2, 3, 4, 8])
@pytest.mark.parametrize(("form", "minus"), [("gptq", 1), ("gptq_v2", 0)])
@pytest.mark.parametrize(("k", "group"), [(128, 32), (160, 64), (96, 96)])
def test_gptq_is_its_formula(
    tmp_path: Path, bits: int, form: str, minus: int, k: int, group: int
) -> None:
    codes, scales, zeros = files.made(16, k, group, bits)
    zeros = np.minimum(zeros, (1 << bits) - 1)
    groups = np.arange(k) // group
    tensors = files.gptq(STEM, codes, scales, zeros, groups, bits, minus)
    setting = {"quant_method": "gptq", "bits": bits, "group_size": group, "checkpoint_format": form}
    checkpoint = open_checkpoint(files.write_folder(tmp_path, tensors, setting))
    assert list(checkpoint.tensors) == [f"{STEM}.weight"]
    exact = files.values_of(codes, scales, zeros, groups)
    assert np.array_equal(read(checkpoint).astype(np.float64), exact)
    assert source(checkpoint).format == GroupedFormat(8 if bits == 8 else 4, group, "float32", True)


@pytest.mark.parametrize("bits", [4, 8])
def test_symmetric_gptq_needs_no_minimum(tmp_path: Path, bits: Literal[4, 8]) -> None:
    codes, scales, zeros = files.made(16, 128, 64, bits)
    zeros[:] = 1 << bits - 1
    tensors = files.gptq(STEM, codes, scales, zeros, np.arange(128) // 64, bits, 1)
    setting = {"quant_method": "gptq", "bits": bits, "group_size": 64, "sym": True}
    checkpoint = open_checkpoint(files.write_folder(tmp_path, tensors, setting))
    zero = 8 if bits == 4 else 0
    assert source(checkpoint).format == GroupedFormat(bits, 64, "float16", False, zero=zero)
    exact = files.values_of(codes, scales, zeros, np.arange(128) // 64)
    assert np.array_equal(read(checkpoint).astype(np.float64), exact)


@pytest.mark.parametrize("bits", [4, 8])
def test_a_scale_for_a_whole_row(tmp_path: Path, bits: int) -> None:
    """As int8 per channel where that is what it is, else in groups that repeat the scale."""
    codes, scales, zeros = files.made(16, 160, 160, bits)
    zeros[:] = 1 << bits - 1
    tensors = files.gptq(STEM, codes, scales, zeros, np.zeros(160), bits, 1)
    setting = {"quant_method": "gptq", "bits": bits, "group_size": -1}
    checkpoint = open_checkpoint(files.write_folder(tmp_path, tensors, setting))
    cut = GroupedFormat(4, 128, "float16", False, zero=8)
    assert source(checkpoint).format == (ChannelFormat() if bits == 8 else cut)
    exact = files.values_of(codes, scales, zeros, np.zeros(160, np.int64))
    assert np.array_equal(read(checkpoint).astype(np.float64), exact)


def test_act_order_is_exact_and_is_not_rounded_again(tmp_path: Path) -> None:
    codes, scales, zeros = files.made(16, 128, 32, 4)
    groups = np.random.default_rng(1).permutation(np.arange(128) // 32)
    tensors = files.gptq(STEM, codes, scales, zeros, groups, 4, 1)
    setting = {"quant_method": "gptq", "bits": 4, "group_size": 32, "desc_act": True}
    checkpoint = open_checkpoint(files.write_folder(tmp_path, tensors, setting))
    exact = files.values_of(codes, scales, zeros, groups)
    assert np.array_equal(read(checkpoint).astype(np.float64), exact)
    info = checkpoint.tensors[f"{STEM}.weight"]
    assert wished_format(info, "auto") == FloatFormat("float32")
    assert wished_format(info, "int8") == ChannelFormat()


def test_act_order_that_changes_nothing_stays_in_groups(tmp_path: Path) -> None:
    codes, scales, zeros = files.made(16, 128, 32, 4)
    tensors = files.gptq(STEM, codes, scales, zeros, np.arange(128) // 32, 4, 1)
    setting = {"quant_method": "gptq", "bits": 4, "group_size": 32, "desc_act": True}
    checkpoint = open_checkpoint(files.write_folder(tmp_path, tensors, setting))
    assert isinstance(source(checkpoint).format, GroupedFormat)


def test_a_long_group_is_cut_and_a_crooked_one_refused(tmp_path: Path) -> None:
    for group, k in ((512, 1024), (24, 96)):
        codes, scales, zeros = files.made(8, k, group, 4)
        tensors = files.gptq(STEM, codes, scales, zeros, np.arange(k) // group, 4, 1)
        setting = {"quant_method": "gptq", "bits": 4, "group_size": group}
        folder = files.write_folder(tmp_path / str(group), tensors, setting)
        if group == 24:
            with pytest.raises(UnsupportedModel, match="groups of 24 columns"):
                open_checkpoint(folder)
        else:
            checkpoint = open_checkpoint(folder)
            assert source(checkpoint).format == GroupedFormat(4, 128, "float32", True)
            exact = files.values_of(codes, scales, zeros, np.arange(k) // group)
            assert np.array_equal(read(checkpoint).astype(np.float64), exact)


@pytest.mark.oracle
@pytest.mark.parametrize("with_zeros", [True, False])
def test_awq_is_what_compressed_tensors_makes_of_it(tmp_path: Path, with_zeros: bool) -> None:
    """Their converter, packer and unpacker, in float32, give every value that ours gives."""
    torch = pytest.importorskip("torch")
    convert = pytest.importorskip("compressed_tensors.entrypoints.convert.converters.autoawq")
    codes, scales, zeros = files.made(16, 128, 64, 4)
    tensors = files.awq(STEM, codes, scales, zeros)
    if not with_zeros:
        zeros[:] = 8
        del tensors[f"{STEM}.qzeros"]
    setting = {"quant_method": "awq", "bits": 4, "group_size": 64, "zero_point": with_zeros}
    ours = read(open_checkpoint(files.write_folder(tmp_path / "awq", tensors, setting)))
    assert np.array_equal(
        ours.astype(np.float64), files.values_of(codes, scales, zeros, np.arange(128) // 64)
    )
    converter = convert.AutoAWQConverter(4, 64, zero_point=with_zeros, ignore=())
    theirs = converter.process({name: torch.from_numpy(v) for name, v in tensors.items()})
    converted = {name: value.numpy() for name, value in theirs.items()}
    group = {"weights": {"num_bits": 4, "type": "int"}, "format": "pack-quantized"}
    setting = {"quant_method": "compressed-tensors", "config_groups": {"group_0": group}}
    again = read(open_checkpoint(files.write_folder(tmp_path / "ct", converted, setting)))
    assert np.array_equal(again, ours)


SCHEMES = [
    ("pack-quantized", 4, True, "group", 32),
    ("pack-quantized", 4, False, "group", 64),
    ("pack-quantized", 3, False, "group", 32),
    ("pack-quantized", 8, False, "channel", None),
    ("pack-quantized", 8, True, "channel", None),
    ("int-quantized", 8, True, "channel", None),
    ("naive-quantized", 8, False, "channel", None),
    ("naive-quantized", 8, True, "group", 32),
    ("int-quantized", 8, True, "tensor", None),
    ("float-quantized", 8, True, "channel", None),
    ("float-quantized", 8, True, "tensor", None),
]


@pytest.mark.oracle
@pytest.mark.parametrize(("form", "bits", "symmetric", "strategy", "group"), SCHEMES)
def test_compressed_tensors_is_its_librarys_own_reading(
    tmp_path: Path, form: str, bits: int, symmetric: bool, strategy: str, group: int | None
) -> None:
    torch = pytest.importorskip("torch")
    library = pytest.importorskip("compressed_tensors.compressors")
    quantization = pytest.importorskip("compressed_tensors.quantization")
    n, k = 16, 128
    kind = "float" if form == "float-quantized" else "int"
    weights = quantization.QuantizationArgs(
        num_bits=bits, type=kind, symmetric=symmetric, strategy=strategy, group_size=group
    )
    scheme = quantization.QuantizationScheme(targets=["Linear"], weights=weights, format=form)
    shape = {"tensor": (1,), "channel": (n, 1), "group": (n, k // (group or k))}[strategy]
    draw = np.random.default_rng(bits)
    state = {
        "weight": torch.from_numpy(draw.normal(0, 0.05, (n, k)).astype(np.float32)),
        "weight_scale": torch.from_numpy(draw.uniform(0.004, 0.02, shape).astype(np.float32)),
    }
    if not symmetric:
        zeros = draw.integers(-(1 << bits - 1), 1 << bits - 1, shape).astype(np.int8)
        state["weight_zero_point"] = torch.from_numpy(zeros)
    compressor = library.BaseCompressor.get_value_from_registry(form)
    stored = compressor.compress(state, scheme)
    theirs = compressor.decompress(stored, scheme)["weight"].float().numpy()
    tensors = {f"{STEM}.{part}": _numpy(torch, value) for part, value in stored.items()}
    args = {"num_bits": bits, "type": kind, "strategy": strategy}
    config: dict[str, object] = {"quant_method": "compressed-tensors", "format": form}
    config |= {"config_groups": {"group_0": {"weights": args, "targets": ["Linear"]}}}
    checkpoint = open_checkpoint(files.write_folder(tmp_path, tensors, config))
    assert list(checkpoint.tensors) == [f"{STEM}.weight"]
    ours = read(checkpoint)
    # With zeros ours is scale · code rounded, plus the minimum rounded; theirs rounds once. With
    # scales of 11 bits, as files have them, both are exact; these have 24.
    assert np.allclose(ours, theirs, rtol=0, atol=2e-7 if not symmetric else 0)


def _numpy(torch: Any, value: Any) -> Array:
    is_float8 = value.dtype == torch.float8_e4m3fn
    return np.asarray((value.view(torch.uint8) if is_float8 else value).contiguous().numpy())


def test_float8_in_blocks(tmp_path: Path) -> None:
    raw = np.random.default_rng(0).integers(0, 126, (20, 96), dtype=np.uint8)
    scales = np.random.default_rng(1).uniform(0.001, 0.1, (3, 2)).astype(np.float32)
    tensors: dict[str, Array] = {
        f"{STEM}.weight": raw,
        f"{STEM}.weight_scale_inv": scales,
    }
    setting = {"quant_method": "fp8", "weight_block_size": [8, 64]}
    checkpoint = open_checkpoint(files.write_folder(tmp_path, tensors, setting))
    from firsthand.quant.bits import float8_to_float32

    expected = float8_to_float32(raw) * scales[np.arange(20) // 8][:, np.arange(96) // 64]
    assert np.array_equal(read(checkpoint), expected)
    assert wished_format(checkpoint.tensors[f"{STEM}.weight"], "auto") == ChannelFormat()


GOOD = {"quant_method": "gptq", "bits": 4, "group_size": 32}


@pytest.mark.parametrize(
    ("change", "message"),
    [
        ({"quant_method": "hqq"}, "'hqq' is not read; these: gptq, awq"),
        ({"quant_method": ["gptq"]}, "is not read"),
        ({"bits": 5}, "bits '5'"),
        ({"bits": True}, "bits 'True'"),
        ({"checkpoint_format": "marlin"}, "checkpoint_format 'marlin'"),
        ({"dynamic": {"x": {}}}, "dynamic is not read"),
        ({"group_size": 0}, "group_size '0' is not a size"),
        ({"group_size": 64}, r"is \(4, 8\), not \(2, 8\)"),
    ],
)
def test_what_is_not_understood_is_refused_by_name(
    tmp_path: Path, change: dict[str, object], message: str
) -> None:
    codes, scales, zeros = files.made(8, 128, 32, 4)
    tensors = files.gptq(STEM, codes, scales, zeros, np.arange(128) // 32, 4, 1)
    folder = files.write_folder(tmp_path, tensors, GOOD | change)
    with pytest.raises((UnsupportedModel, CheckpointError), match=message):
        open_checkpoint(folder)


@pytest.mark.parametrize("part", ["qzeros", "scales"])
def test_a_missing_part_is_named(tmp_path: Path, part: str) -> None:
    codes, scales, zeros = files.made(8, 128, 32, 4)
    tensors = files.gptq(STEM, codes, scales, zeros, np.arange(128) // 32, 4, 1)
    del tensors[f"{STEM}.{part}"]
    with pytest.raises(CheckpointError, match=f"{part} is missing"):
        open_checkpoint(files.write_folder(tmp_path, tensors, GOOD))


def test_parts_that_lie_are_refused(tmp_path: Path) -> None:
    codes, scales, zeros = files.made(8, 128, 32, 4)
    good = files.gptq(STEM, codes, scales, zeros, np.arange(128) // 32, 4, 1)
    wild = np.full(128, 7, np.int32)
    endless = np.full_like(good[f"{STEM}.scales"], np.inf)
    for name, value, message in (
        ("g_idx", wild, "a group is not 0 … 3"),
        ("scales", endless, "a NaN or an infinity"),
        ("weight", np.zeros((8, 128), np.float32), "plain and in parts"),
    ):
        folder = files.write_folder(tmp_path / name, good | {f"{STEM}.{name}": value}, GOOD)
        with pytest.raises(CheckpointError, match=message):
            open_checkpoint(folder)


def test_the_zero_that_programs_read_differently_is_refused(tmp_path: Path) -> None:
    codes, scales, zeros = files.made(8, 128, 32, 4)
    zeros[2, 1] = 16
    tensors = files.gptq(STEM, codes, scales, zeros, np.arange(128) // 32, 4, 1)
    with pytest.raises(UnsupportedModel, match=r"a zero point of 2\^4"):
        open_checkpoint(files.write_folder(tmp_path, tensors, GOOD))
