"""Which reader for which file: told by content, never by the name.

Owns: the choice of reader.
May not know: how any form is laid out, beyond its first bytes.
Read next: `safetensors.py`, `gguf.py`; `quantized.py`, where the tensors are parts of others.
"""

from __future__ import annotations

import os
from pathlib import Path

from firsthand.errors import CheckpointError, ModelNotFound
from firsthand.files import read_start
from firsthand.weights.checkpoint import Checkpoint
from firsthand.weights.gguf import open_gguf
from firsthand.weights.quantized import understood
from firsthand.weights.safetensors import open_safetensors
from firsthand.weights.signatures import describe_start


def open_checkpoint(path: Path) -> Checkpoint:
    """Open a folder with safetensors, or a GGUF file.

    Raises ModelNotFound for no such path, CheckpointError or UnsupportedModel as the readers do,
    and CheckpointError with the first bytes found for anything else. Legacy PyTorch files are
    for `firsthand convert`; the message says so.
    """
    if not os.path.exists(path):
        raise ModelNotFound(f"{path}: no such file or folder")
    if os.path.isdir(path):
        return understood(open_safetensors(path))
    head = read_start(path, 64)
    if head[:4] == b"GGUF":
        return open_gguf(path)
    if head[8:9] == b"{":
        raise CheckpointError(str(path), "is safetensors: weights alone; open its folder instead")
    raise CheckpointError(str(path), f"is neither GGUF nor safetensors: {describe_start(head)}")
