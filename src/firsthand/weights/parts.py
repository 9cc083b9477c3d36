"""The parts of quantised matrices, found by name, checked, and joined: one function per method.

Owns: what each method's tensors are called, their shapes, and the options that change a layout.
May not know: models, who reads the result.
Read next: `bundles.py` (from parts to values), `quantized.py` (the methods' table).
"""

from __future__ import annotations

from collections.abc import Iterator, Mapping
from functools import partial
from typing import Any, Literal

import numpy as np
from numpy.typing import NDArray

from firsthand.checks import is_integer
from firsthand.errors import CheckpointError, UnsupportedModel
from firsthand.quant import bits as packing
from firsthand.quant import ggml
from firsthand.quant.formats import decode
from firsthand.values import dataclass
from firsthand.weights.bundles import Float8Matrix, IntegerMatrix, integer_matrix
from firsthand.weights.checkpoint import Checkpoint, Matrix, TensorInfo

Setting = Mapping[str, Any]
MAX_GROUP = 1 << 24


@dataclass(frozen=True, slots=True)
class Parts:
    """One matrix: `names` are its parts, the codes first; `unused` go with it and are not read."""

    name: str
    shape: tuple[int, int]
    kind: str
    names: tuple[str, ...]
    unused: tuple[str, ...]
    matrix: Matrix


class _Module:
    """The tensors of one layer, each taken by its short name, with its checks."""

    def __init__(self, checkpoint: Checkpoint, stem: str) -> None:
        self.checkpoint, self.stem = checkpoint, stem
        self.taken: list[str] = []

    def find(self, part: str) -> TensorInfo | None:
        return self.checkpoint.tensors.get(f"{self.stem}.{part}")

    def take(self, part: str, kinds: tuple[str, ...], rank: int) -> TensorInfo:
        info = self.find(part)
        if info is None:
            where = next(iter(self.checkpoint.tensors.values())).file
            raise CheckpointError(where, f"{part} is missing", self.stem)
        if info.kind not in kinds or len(info.shape) != rank or 0 in info.shape:
            raise CheckpointError(
                info.file,
                f"is {info.kind} {info.shape}, not {' or '.join(kinds)} of rank {rank}",
                info.name,
            )
        self.taken.append(info.name)
        return info

    def expect(self, info: TensorInfo, shape: tuple[int, ...]) -> None:
        if info.shape != shape:
            raise CheckpointError(info.file, f"is {info.shape}, not {shape}", info.name)

    def words(self, info: TensorInfo) -> NDArray[np.uint32]:
        return self.checkpoint.raw(info.name).view("<u4").reshape(info.shape)

    def floats(self, info: TensorInfo) -> NDArray[np.float32]:
        """Scales, finite; a vector as a column."""
        raw = self.checkpoint.raw(info.name)
        width = info.shape[1] if len(info.shape) == 2 else 1
        rows = raw.reshape(info.num_elements // width, ggml.bytes_per_row(info.kind, width))
        values = decode(ggml.read_rows(info.kind, rows, width))
        if not np.isfinite(values).all():
            raise CheckpointError(info.file, "holds a NaN or an infinity", info.name)
        return values

    def order(self, part: str, k: int, num_groups: int) -> NDArray[np.int64] | None:
        """The group of each column, where the file has it."""
        if self.find(part) is None:
            return None
        info = self.take(part, ("I32", "I64"), 1)
        self.expect(info, (k,))
        dtype = "<i4" if info.kind == "I32" else "<i8"
        groups = self.checkpoint.raw(info.name).view(dtype).astype(np.int64)
        if groups.min() < 0 or groups.max() >= num_groups:
            raise CheckpointError(info.file, f"a group is not 0 … {num_groups - 1}", info.name)
        return groups

    def parts(self, matrix: Matrix, shape: tuple[int, int], kind: str, *unused: str) -> Parts:
        names = tuple(f"{self.stem}.{part}" for part in unused)
        return Parts(f"{self.stem}.weight", shape, kind, tuple(self.taken), names, matrix)


_SCALES = ("F16", "BF16", "F32")


def gptq(checkpoint: Checkpoint, setting: Setting) -> Iterator[Parts]:
    """Columns of codes along K: qweight (K · bits / 32, N). The first version of the form stores
    each zero less one; 'gptq_v2' stores it as it is."""
    bits, group = _integer_options(checkpoint, setting, "bits", (2, 3, 4, 8))
    form = setting.get("checkpoint_format", setting.get("format")) or "gptq"
    _one_of(checkpoint, "checkpoint_format", form, ("gptq", "gptq_v2"))
    _unset(checkpoint, setting, ("dynamic", "is_marlin_format", "meta.dynamic"))
    one = 1 if form == "gptq" else 0
    for module in _modules(checkpoint, ".qweight"):
        packed = module.take("qweight", ("I32",), 2)
        k, n = packed.shape[0] * packing.WORD_BITS // bits, packed.shape[1]
        groups = 1 if group is None else -(-k // group)
        scale_info = module.take("scales", _SCALES, 2)
        module.expect(scale_info, (groups, n))
        zero_info = module.take("qzeros", ("I32",), 2)
        module.expect(zero_info, (groups, packing.num_words(n, bits)))
        zeros = packing.unpack(module.words(zero_info), bits, n)
        if one and (zeros == (1 << bits) - 1).any():
            # Programs differ: 2^bits, or 0 again.
            raise UnsupportedModel(
                f"{zero_info.file}: {zero_info.name!r} has a zero point of 2^{bits}, which this "
                "form cannot say; write the model as gptq_v2"
            )
        order = module.order("g_idx", k, groups)
        matrix = integer_matrix(
            bits,
            group,
            (n, k),
            partial(_columns, module.words(packed), bits, k),
            np.ascontiguousarray(module.floats(scale_info).T),
            np.ascontiguousarray((zeros + np.uint8(one)).T),
            order,
            _scale_dtype(scale_info),
        )
        yield module.parts(matrix, (n, k), f"GPTQ{bits}")


def _columns(
    words: NDArray[np.uint32], bits: int, k: int, start: int, stop: int
) -> NDArray[np.uint8]:
    return packing.unpack(np.ascontiguousarray(words[:, start:stop].T), bits, k)


def awq(checkpoint: Checkpoint, setting: Setting) -> Iterator[Parts]:
    """Eight outputs in a word: qweight (K, N / 8)."""
    _, group = _integer_options(checkpoint, setting, "bits", (4,))
    version = str(setting.get("version", "gemm")).lower()
    _one_of(checkpoint, "version", version, ("gemm",))
    for module in _modules(checkpoint, ".qweight"):
        packed = module.take("qweight", ("I32",), 2)
        k, n = packed.shape[0], packed.shape[1] * 8
        groups = 1 if group is None else -(-k // group)
        scale_info = module.take("scales", _SCALES, 2)
        module.expect(scale_info, (groups, n))
        zeros = np.full((groups, n), 8, np.uint8)
        if setting.get("zero_point", True):
            zero_info = module.take("qzeros", ("I32",), 2)
            module.expect(zero_info, (groups, n // 8))
            zeros = packing.unpack_awq(module.words(zero_info))
        matrix = integer_matrix(
            4,
            group,
            (n, k),
            partial(_awq_rows, module.words(packed)),
            np.ascontiguousarray(module.floats(scale_info).T),
            np.ascontiguousarray(zeros.T),
            None,
            _scale_dtype(scale_info),
        )
        yield module.parts(matrix, (n, k), "AWQ4")


def _awq_rows(words: NDArray[np.uint32], start: int, stop: int) -> NDArray[np.uint8]:
    first = start // 8
    columns = packing.unpack_awq(words[:, first : -(-stop // 8)])
    return np.ascontiguousarray(columns[:, start - 8 * first : stop - 8 * first].T)


def compressed(checkpoint: Checkpoint, setting: Setting) -> Iterator[Parts]:
    """Rows of packed codes, or a plain tensor in int8 or float8, with scales beside it. What the
    tensors are says more than the configuration: a layer has one of a few forms."""
    bits = _compressed_bits(checkpoint, setting)
    for module in _modules(checkpoint, ".weight_packed"):
        yield _compressed_packed(module, bits)
    for module in _modules(checkpoint, ".weight_scale"):
        info = module.find("weight")
        if info is None:
            continue
        yield _float8(module, None) if info.kind in _FLOAT8 else _compressed_int8(module)


def _compressed_bits(checkpoint: Checkpoint, setting: Setting) -> tuple[int, ...]:
    """The widths that the configuration's groups name, of the packed integer ones."""
    found: list[int] = []
    groups = setting.get("config_groups")
    if not isinstance(groups, Mapping):
        raise CheckpointError(checkpoint.path, "quantization_config has no config_groups")
    for name, scheme in groups.items():
        weights = scheme.get("weights") if isinstance(scheme, Mapping) else None
        if not isinstance(weights, Mapping):
            continue
        where = f"config_groups.{str(name)[:40]}"
        form = scheme.get("format") or setting.get("format")
        known = ("pack-quantized", "int-quantized", "naive-quantized", "float-quantized", "dense")
        _one_of(checkpoint, f"{where}.format", form, (*known, None))
        _one_of(checkpoint, f"{where}.type", weights.get("type", "int"), ("int", "float"))
        _one_of(checkpoint, f"{where}.num_bits", weights.get("num_bits"), (2, 3, 4, 8))
        found.append(weights["num_bits"])
    _unset(checkpoint, setting, ("sparsity_config", "transform_config"))
    return tuple(found)


def _compressed_packed(module: _Module, widths: tuple[int, ...]) -> Parts:
    packed = module.take("weight_packed", ("I32",), 2)
    shape_info = module.take("weight_shape", ("I64", "I32"), 1)
    dtype = "<i8" if shape_info.kind == "I64" else "<i4"
    stated = module.checkpoint.raw(shape_info.name).view(dtype).tolist()
    n, k = packed.shape[0], stated[-1]
    fitting = [b for b in sorted(set(widths)) if packing.num_words(max(k, 0), b) == packed.shape[1]]
    if len(stated) != 2 or stated[0] != n or k < 1 or len(fitting) != 1:
        raise CheckpointError(
            packed.file,
            f"{packed.shape} words are not {stated} codes of {widths} bits",
            packed.name,
        )
    bits = fitting[0]
    scale_info = _scale_info(module, n)
    groups = 1 if len(scale_info.shape) == 1 else scale_info.shape[1]
    scales = np.ascontiguousarray(np.broadcast_to(module.floats(scale_info), (n, groups)))
    zeros = np.full((n, groups), 1 << bits - 1, np.uint8)
    if module.find("weight_zero_point") is not None:
        zero_info = module.take("weight_zero_point", ("I32",), 2)
        module.expect(zero_info, (packing.num_words(n, bits), groups))
        zeros = packing.unpack(np.ascontiguousarray(module.words(zero_info).T), bits, n).T.copy()
    codes = partial(_packed_rows, module.words(packed), bits, k)
    order = module.order("weight_g_idx", k, groups)
    matrix = _in_groups(module, scale_info, bits, (n, k), codes, scales, zeros, order)
    return module.parts(matrix, (n, k), f"PACKED{bits}", *_ACTIVATION_PARTS)


def _packed_rows(
    words: NDArray[np.uint32], bits: int, k: int, start: int, stop: int
) -> NDArray[np.uint8]:
    return packing.unpack(words[start:stop], bits, k)


_ACTIVATION_PARTS = ("input_scale", "input_zero_point", "output_scale", "output_zero_point")


def _compressed_int8(module: _Module) -> Parts:
    info = module.take("weight", ("I8",), 2)
    n, k = info.shape
    scale_info = _scale_info(module, n)
    groups = 1 if len(scale_info.shape) == 1 else scale_info.shape[1]
    scales = np.ascontiguousarray(np.broadcast_to(module.floats(scale_info), (n, groups)))
    zeros = np.full((n, groups), 128, np.uint8)
    if module.find("weight_zero_point") is not None:
        zero_info = module.take("weight_zero_point", ("I8",), len(scale_info.shape))
        module.expect(zero_info, scale_info.shape)
        signed = module.checkpoint.raw(zero_info.name).reshape(-1, groups)
        zeros = np.broadcast_to(signed ^ np.uint8(128), (n, groups)).copy()
    raw = module.checkpoint.raw(info.name).reshape(n, k)
    matrix = _in_groups(
        module, scale_info, 8, (n, k), partial(_offset_rows, raw), scales, zeros, None
    )
    return module.parts(matrix, (n, k), "I8", *_ACTIVATION_PARTS)


def _offset_rows(raw: NDArray[np.uint8], start: int, stop: int) -> NDArray[np.uint8]:
    return raw[start:stop] ^ np.uint8(128)


def _scale_info(module: _Module, n: int) -> TensorInfo:
    """One scale, one for each row, or one for each group of each row."""
    info = module.find("weight_scale")
    rank = 2 if info is None else max(1, len(info.shape))
    info = module.take("weight_scale", _SCALES, rank)
    if rank > 2 or info.shape[0] not in (1, n):
        raise CheckpointError(info.file, f"is {info.shape} for {n} rows", info.name)
    return info


def _in_groups(
    module: _Module,
    scale_info: TensorInfo,
    bits: int,
    shape: tuple[int, int],
    codes: Any,
    scales: NDArray[np.float32],
    zeros: NDArray[np.uint8],
    order: NDArray[np.int64] | None,
) -> IntegerMatrix:
    groups, k = scales.shape[1], shape[1]
    if k % groups:
        raise CheckpointError(
            scale_info.file, f"{groups} groups do not divide {k} columns", scale_info.name
        )
    group = None if groups == 1 else k // groups
    dtype = _scale_dtype(scale_info)
    return integer_matrix(bits, group, shape, codes, scales, zeros, order, dtype)


_FLOAT8 = ("F8_E4M3", "F8_E5M2")


def float8(checkpoint: Checkpoint, setting: Setting) -> Iterator[Parts]:
    """e4m3 or e5m2 with a scale for the tensor, for each row, or for each block."""
    block = setting.get("weight_block_size")
    if block is not None and not (
        isinstance(block, list) and len(block) == 2 and all(is_integer(b) and b > 0 for b in block)
    ):
        raise CheckpointError(checkpoint.path, "weight_block_size is not two whole numbers")
    for suffix in (".weight_scale_inv", ".weight_scale"):
        for module in _modules(checkpoint, suffix):
            info = module.find("weight")
            if info is not None and info.kind in _FLOAT8:
                yield _float8(module, None if block is None else (block[0], block[1]))


def _float8(module: _Module, block: tuple[int, int] | None) -> Parts:
    info = module.take("weight", _FLOAT8, 2)
    n, k = info.shape
    part = "weight_scale_inv" if module.find("weight_scale_inv") is not None else "weight_scale"
    found = module.find(part)
    scale_info = module.take(part, _SCALES, 0 if found is None else len(found.shape))
    scales = module.floats(scale_info)
    if block is None:
        high = n if scales.shape[0] == 1 else 1
        wide = -(-k // scales.shape[1])
        block = (high, wide)
    if scales.shape != (-(-n // block[0]), -(-k // block[1])):
        raise CheckpointError(
            scale_info.file, f"is {scale_info.shape} for {info.shape} in {block}", scale_info.name
        )
    raw = module.checkpoint.raw(info.name).reshape(n, k)
    exponent_bits = 4 if info.kind == "F8_E4M3" else 5
    matrix = Float8Matrix(partial(_float8_rows, raw, exponent_bits), scales, block)
    return module.parts(matrix, (n, k), info.kind, *_ACTIVATION_PARTS)


def _float8_rows(
    raw: NDArray[np.uint8], exponent_bits: int, start: int, stop: int
) -> NDArray[np.float32]:
    return packing.float8_to_float32(raw[start:stop], exponent_bits=exponent_bits)


def _modules(checkpoint: Checkpoint, suffix: str) -> Iterator[_Module]:
    for name in checkpoint.tensors:
        if name.endswith(suffix):
            yield _Module(checkpoint, name.removesuffix(suffix))


def _integer_options(
    checkpoint: Checkpoint, setting: Setting, key: str, widths: tuple[int, ...]
) -> tuple[int, int | None]:
    """Bits, and columns of a group; None: a whole row."""
    bits, group = setting.get(key), setting.get("group_size", -1)
    _one_of(checkpoint, key, bits, widths)
    if group == -1 or group is None:
        return int(bits or 0), None
    if not is_integer(group) or not 1 <= group <= MAX_GROUP:
        raise CheckpointError(checkpoint.path, f"group_size {str(group)[:40]!r} is not a size")
    return int(bits or 0), int(group)


def _one_of(checkpoint: Checkpoint, key: str, value: object, known: tuple[object, ...]) -> None:
    if value not in known or isinstance(value, bool):
        words = ", ".join(str(one) for one in known if one is not None)
        raise UnsupportedModel(
            f"{checkpoint.path}: quantization_config: {key} {str(value)[:40]!r} is not read; "
            f"these: {words}"
        )


def _unset(checkpoint: Checkpoint, setting: Setting, keys: tuple[str, ...]) -> None:
    for key in keys:
        if setting.get(key):
            raise UnsupportedModel(f"{checkpoint.path}: quantization_config: {key} is not read")


def _scale_dtype(info: TensorInfo) -> Literal["float16", "float32"]:
    return "float16" if info.kind == "F16" else "float32"
