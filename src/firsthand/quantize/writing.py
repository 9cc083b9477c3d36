"""A quantised model as a folder that other engines load: compressed-tensors in safetensors.

Owns: which tensors a rounded layer becomes, `quantization_config`, and the files beside it.
May not know: how anything was rounded or judged.
Read next: `weights/convert.py` (the writer), `weights/parts.py` (the reader of the same form).

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
from firsthand.weights.convert import TensorToWrite, write_new, write_shards
from firsthand.weights.sources import ConvertedSource

KINDS: Final = {"float32": "F32", "float16": "F16", "bfloat16": "BF16"}


def tensors_of(
    sources: Mapping[str, WeightSource],
    vectors: Mapping[str, NDArray[np.float32]],
    rounded: Mapping[str, Rounded],
    *,
    as_int8: bool,
) -> list[TensorToWrite]:
    found: list[TensorToWrite] = []
    for name, source in sources.items():
        if name in rounded:
            stem = name.removesuffix(".weight")
            found += _plain(stem, rounded[name]) if as_int8 else _packed(stem, rounded[name])
        else:
            found.append(_float(name, source))
    for name, values in vectors.items():
        found.append(_array(name, "F32", values))
    return found


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
    if isinstance(source.format, FloatFormat) and not isinstance(source, ConvertedSource):
        return source.format.dtype
    largest = max(
        float(np.abs(decode(source.rows(a, b))).max()) for a, b in row_blocks(*source.shape)
    )
    return "float16" if largest <= 65_504 else "float32"


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
    rounded: Mapping[str, Rounded], untouched: Sequence[str], *, rounds_activations: bool
) -> dict[str, Any]:
    """`untouched` are the layers that stayed floats."""
    form = "int-quantized" if rounds_activations else "pack-quantized"
    by_grid: dict[Grid, list[str]] = {}
    for name, one in rounded.items():
        by_grid.setdefault(one.grid, []).append(name.removesuffix(".weight"))
    activations = None
    if rounds_activations:
        activations = _arguments(8, True, "token", None) | {"dynamic": True}
    groups = {
        f"group_{number}": {
            "targets": ["Linear"] if len(by_grid) == 1 else names,
            "weights": _weight_arguments(grid),
            "input_activations": activations,
            "output_activations": None,
            "format": form,
        }
        for number, (grid, names) in enumerate(by_grid.items())
    }
    return {
        "quant_method": "compressed-tensors",
        "format": form,
        "quantization_status": "compressed",
        "config_groups": groups,
        "ignore": list(untouched),
        "kv_cache_scheme": None,
    }


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
    write_shards(folder, tensors)
    write_new(folder / "config.json", [json.dumps(config, indent=2).encode()])
