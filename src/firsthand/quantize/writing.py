"""A quantised model as a folder that other engines load: compressed-tensors in safetensors.

Owns: which tensors a rounded layer becomes, `quantization_config`, and the files beside it.
May not know: how anything was rounded or judged.
Read next: `weights/writing.py` (the writer), `weights/parts.py` (the reader of the same form).

A matrix that the model's file holds in one is written as one, stacked experts as single ones.
Weights alone are `pack-quantized`: codes as packed words, scales, and zero points where there are
any. With activations they are `int-quantized`: plain int8, one scale per row. What is not rounded
stays in the file's own type; blocks of a GGUF file, which no such folder can hold, become float16
where they fit. The source's names are kept. Source: the package compressed-tensors, 0.20.
"""

from __future__ import annotations

import json
from collections.abc import Iterator, Mapping, Sequence
from pathlib import Path
from typing import Any, Final

import numpy as np
from numpy.typing import NDArray

from firsthand.quant import bits as packing
from firsthand.quant.formats import FloatFormat, FloatWeight, WeightSource, decode, row_blocks
from firsthand.quant.grid import Grid, Rounded
from firsthand.weights.sources import ConvertedSource
from firsthand.weights.writing import TensorToWrite, write_files, write_new

KINDS: Final = {"float32": "F32", "float16": "F16", "bfloat16": "BF16"}


def with_joined(
    rounded: Mapping[str, Rounded], joined: Mapping[str, Sequence[str]]
) -> dict[str, Rounded]:
    """What lies in one matrix of the file, as one again: its rows, one part after another."""
    parts = {name for names in joined.values() for name in names}
    found = {name: one for name, one in rounded.items() if name not in parts}
    for whole, names in joined.items():
        pieces = [rounded[name] for name in names]
        found[whole] = Rounded(
            pieces[0].grid,
            np.concatenate([one.codes for one in pieces]),
            np.concatenate([one.scales for one in pieces]),
            np.concatenate([one.zeros for one in pieces]),
        )
    return found


def tensors_of(
    floats: Mapping[str, WeightSource],
    vectors: Mapping[str, NDArray[np.float32]],
    rounded: Mapping[str, Rounded],
    *,
    as_int8: bool,
) -> list[TensorToWrite]:
    """`floats` are the matrices that were not rounded."""
    found: list[TensorToWrite] = []
    for name, one in rounded.items():
        stem = _module(name)
        found += _plain(stem, one) if as_int8 else _packed(stem, one)
    found += [_float(name, source) for name, source in floats.items()]
    found += [_array(name, "F32", values) for name, values in vectors.items()]
    return found


def planned_bytes(sources: Mapping[str, WeightSource], bits: Mapping[str, float]) -> int:
    """What the matrices will take, before anything is rounded: `bits` per weight of those that will
    be. What a file decodes to is taken as float16."""
    total = 0.0
    for name, source in sources.items():
        n, k = source.shape
        as_floats = _kept_format(source) or FloatFormat("float16")
        total += bits[name] * n * k / 8 if name in bits else as_floats.num_bytes(n, k)
    return round(total)


def _packed(stem: str, rounded: Rounded) -> list[TensorToWrite]:
    grid = rounded.grid
    shape = np.array(rounded.codes.shape, np.int64)
    words = packing.pack(rounded.codes, grid.bits)
    found = [
        _array(f"{stem}.weight_packed", "I32", words),
        _array(f"{stem}.weight_shape", "I64", shape),
        _array(f"{stem}.weight_scale", KINDS[str(rounded.scales.dtype)], rounded.scales),
    ]
    if not grid.symmetric:
        zeros = packing.pack(np.ascontiguousarray(rounded.zeros.T), grid.bits).T
        found.append(_array(f"{stem}.weight_zero_point", "I32", zeros))
    return found


def _plain(stem: str, rounded: Rounded) -> list[TensorToWrite]:
    return [
        _array(f"{stem}.weight", "I8", rounded.codes ^ np.uint8(128)),
        _array(f"{stem}.weight_scale", KINDS[str(rounded.scales.dtype)], rounded.scales),
    ]


def _array(name: str, kind: str, values: NDArray[Any]) -> TensorToWrite:
    content = np.ascontiguousarray(values)
    return TensorToWrite(name, kind, values.shape, [content.reshape(-1).view(np.uint8).data])


def _float(name: str, source: WeightSource) -> TensorToWrite:
    dtype = _float_type(source)
    return TensorToWrite(name, KINDS[dtype], source.shape, _chunks(source, dtype))


def _float_type(source: WeightSource) -> str:
    """The file's own, or float16 for what was decoded, where every value is in its range."""
    kept = _kept_format(source)
    if kept is not None:
        return kept.dtype
    largest = max(
        float(np.abs(decode(source.rows(a, b))).max()) for a, b in row_blocks(*source.shape)
    )
    return "float16" if largest <= 65_504 else "float32"


def _kept_format(source: WeightSource) -> FloatFormat | None:
    """None for what is no float in the file."""
    found = source.format
    return (
        found
        if isinstance(found, FloatFormat) and not isinstance(source, ConvertedSource)
        else None
    )


def _chunks(source: WeightSource, dtype: str) -> Iterator[memoryview]:
    for start, stop in row_blocks(*source.shape):
        weight = source.rows(start, stop)
        if isinstance(weight, FloatWeight) and weight.format.dtype == dtype:
            values: NDArray[Any] = weight.values
        else:
            values = decode(weight).astype(dtype)
        yield np.ascontiguousarray(values).reshape(-1).view(np.uint8).data
    source.release()


def quantization_config(
    rounded: Mapping[str, Rounded],
    untouched: Sequence[str],
    heads: Sequence[str] = (),
    *,
    rounds_activations: bool,
) -> dict[str, Any]:
    """`untouched` are the layers that stayed floats; `heads`, where they were rounded, have no
    activations to round, and their class is not that of the layers."""
    form = "int-quantized" if rounds_activations else "pack-quantized"
    by_grid: dict[tuple[Grid, bool], list[str]] = {}
    for name, one in rounded.items():
        by_grid.setdefault((one.grid, name in heads), []).append(_module(name))
    activations = None
    if rounds_activations:
        activations = _arguments(8, True, "token", None) | {"dynamic": True}
    of_layers = sum(not is_head for _, is_head in by_grid)
    groups = {
        f"group_{number}": {
            "targets": names if is_head or of_layers > 1 else ["Linear"],
            "weights": _weight_arguments(grid),
            "input_activations": None if is_head else activations,
            "output_activations": None,
            "format": form,
        }
        for number, ((grid, is_head), names) in enumerate(by_grid.items())
    }
    return {
        "quant_method": "compressed-tensors",
        "format": form,
        "quantization_status": "compressed",
        "config_groups": groups,
        "ignore": [_module(name) for name in untouched],
        "kv_cache_scheme": None,
    }


def _module(name: str) -> str:
    return name.removesuffix(".weight")


def _weight_arguments(grid: Grid) -> dict[str, Any]:
    strategy = "channel" if grid.group is None else "group"
    return _arguments(grid.bits, grid.symmetric, strategy, grid.group)


def _arguments(
    num_bits: int, symmetric: bool, strategy: str, group_size: int | None
) -> dict[str, Any]:
    return {
        "num_bits": num_bits,
        "type": "int",
        "symmetric": symmetric,
        "strategy": strategy,
        "group_size": group_size,
        "dynamic": False,
    }


def write_model(folder: Path, tensors: list[TensorToWrite], config: Mapping[str, Any]) -> None:
    """The weights and their config.json; the folder is there."""
    write_files(folder, tensors)
    write_new(folder / "config.json", [json.dumps(config, indent=2).encode()])
