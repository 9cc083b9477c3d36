"""Checkpoints that other tools quantised: which tensors make a matrix together, and how.

Owns: what a `quantization_config` may say, and the view in which each set of parts is one tensor.
May not know: models, how parts become values (`bundles.py`).
Read next: `bundles.py`; `loading.py`, which sees no difference.

    method               parts of a matrix `X.weight`
    gptq                 X.qweight  X.scales  X.qzeros  [X.g_idx]
    awq                  X.qweight  X.scales  X.qzeros            (the `gemm` form)
    compressed-tensors   X.weight_packed  X.weight_shape  X.weight_scale  [X.weight_zero_point]
                         [X.weight_g_idx]; or X.weight in int8 or float8 with X.weight_scale
    fp8                  X.weight in float8 with X.weight_scale or X.weight_scale_inv

The view takes `quantization_config` out of the configuration: it has been understood. What is not
understood is refused by its name. Scales of activations are left out: ours are rounded per row
when they are there. Sources: the packages auto-gptq, autoawq and compressed-tensors.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import replace
from types import MappingProxyType
from typing import Any, Final

import numpy as np
from numpy.typing import NDArray

from firsthand.errors import CheckpointError, UnsupportedModel
from firsthand.weights.checkpoint import Checkpoint, FileIdentity, TensorInfo
from firsthand.weights.parts import Parts, awq, compressed, float8, gptq

CONFIG_KEYS: Final = ("quantization_config", "compression_config")
METHODS: Final = MappingProxyType(
    {"gptq": gptq, "awq": awq, "compressed-tensors": compressed, "fp8": float8}
)


class QuantizedCheckpoint:
    """A `Checkpoint` over another, with one tensor where that one has the parts of a matrix."""

    def __init__(self, held: Checkpoint, setting: Mapping[str, Any], method: str) -> None:
        self._held = held
        self.path, self.form = held.path, held.form
        self.metadata: Mapping[str, Any] = held.metadata
        self.config = {k: v for k, v in held.config.items() if k not in CONFIG_KEYS}
        self._parts: dict[str, tuple[str, ...]] = {}
        tensors = dict(held.tensors)
        for found in METHODS[method](held, setting):
            self._add(tensors, found)
        self.tensors: Mapping[str, TensorInfo] = MappingProxyType(tensors)

    def _add(self, tensors: dict[str, TensorInfo], found: Parts) -> None:
        for name in (*found.names, *found.unused):
            tensors.pop(name, None)
        first = self._held.tensors[found.names[0]]
        if found.name in tensors:
            raise CheckpointError(first.file, "is there plain and in parts", found.name)
        self._parts[found.name] = found.names
        num_bytes = sum(self._held.tensors[name].num_bytes for name in found.names)
        tensors[found.name] = replace(
            first,
            name=found.name,
            shape=found.shape,
            kind=found.kind,
            num_bytes=num_bytes,
            matrix=found.matrix,
        )

    @property
    def files(self) -> Sequence[FileIdentity]:
        return self._held.files

    def raw(self, name: str) -> NDArray[np.uint8]:
        return self._held.raw(self._parts.get(name, (name,))[0])

    def release(self, name: str) -> None:
        for part in self._parts.get(name, (name,)):
            self._held.release(part)

    def close(self) -> None:
        self._held.close()


def understood(checkpoint: Checkpoint) -> Checkpoint:
    """The checkpoint itself, or its view where the configuration says that it is quantised.

    Raises UnsupportedModel for a method or layout that we do not read, CheckpointError for parts
    that do not fit together; the checkpoint is then closed.
    """
    setting = next((checkpoint.config[k] for k in CONFIG_KEYS if checkpoint.config.get(k)), None)
    if setting is None:
        return checkpoint
    try:
        if not isinstance(setting, Mapping):
            raise CheckpointError(checkpoint.path, "quantization_config is not an object")
        method = setting.get("quant_method")
        if not isinstance(method, str) or method not in METHODS:
            known = ", ".join(METHODS)
            raise UnsupportedModel(
                f"{checkpoint.path}: quant_method {str(method)[:40]!r} is not read; these: {known}"
            )
        return QuantizedCheckpoint(checkpoint, setting, method)
    except BaseException:
        checkpoint.close()
        raise
