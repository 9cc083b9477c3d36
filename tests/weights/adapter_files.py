"""Adapters for the micro model, written by hand.

Owns: their files. May not know: how they are read. Read next: `test_adapters.py`.
"""

from __future__ import annotations

import json
from pathlib import Path
from typing import Any

import numpy as np
from numpy.typing import NDArray
from safetensors.numpy import save_file

from firsthand.cli.micro_model import FFN_WIDTH, WIDTH

RANK = 4
Tensors = dict[str, NDArray[Any]]
PREFIX = "base_model.model.model.layers.0"


def tensors(seed: int = 0, rank: int = RANK) -> Tensors:
    """Of the first layer's q_proj and down_proj."""
    random = np.random.default_rng(seed)
    found: Tensors = {}
    for module, n, k in (("self_attn.q_proj", WIDTH, WIDTH), ("mlp.down_proj", WIDTH, FFN_WIDTH)):
        for part, shape in (("A", (rank, k)), ("B", (n, rank))):
            values = random.normal(0, shape[1] ** -0.5, shape).astype(np.float32)
            found[f"{PREFIX}.{module}.lora_{part}.weight"] = values
    return found


def write_adapter(
    folder: Path, weights: Tensors | None = None, *, seed: int = 0, **config: Any
) -> Path:
    """Into `folder`, which is made; `config` over what is plain."""
    folder.mkdir(parents=True, exist_ok=True)
    plain = {"peft_type": "LORA", "r": RANK, "lora_alpha": 2 * RANK, "bias": "none"}
    (folder / "adapter_config.json").write_text(json.dumps(plain | config))
    save_file(tensors(seed) if weights is None else weights, folder / "adapter_model.safetensors")
    return folder
