"""Families whose operators differ, and a whole `LLM`, through the kernels.

Owns: head norms, windows, caps, two tables of frequencies, experts, each against the torch
executor; and a text generated end to end.
May not know: how a kernel computes.
Read next: `../../models/test_family_oracle.py`, where the reference is compared with transformers.
"""

from __future__ import annotations

from pathlib import Path
from typing import Any

import numpy as np
import pytest

from firsthand.cli.micro_model import write_micro_model
from firsthand.compute.batch import FlatBatch
from firsthand.generation.llm import LLM
from firsthand.generation.load_options import LoadOptions
from firsthand.generation.loading import LoadedModel, load_model
from tests.compute.triton.device import DEVICE
from tests.models.tiny_families import build

WAYS: tuple[tuple[Any, str], ...] = (("torch", "cpu"), ("triton", DEVICE))
OPTIONS: dict[str, Any] = {
    "quantization": "none",
    "kv_dtype": "float32",
    "max_context": 64,
    "max_sequences": 2,
    "max_step_tokens": 32,
    "max_logit_rows": 32,
}
FAMILIES = ["qwen3", "gemma2", "gemma3", "mixtral", "qwen2 moe"]
IDS = np.random.default_rng(1).integers(0, 256, 5).astype(np.int32)


def step(loaded: LoadedModel, start: int, stop: int) -> Any:
    """Logits of every row of a part of `IDS`, in the first blocks of the store."""
    rows = np.arange(stop - start, dtype=np.int32)
    batch = FlatBatch(
        token_ids=IDS[start:stop],
        positions=rows + np.int32(start),
        row_starts=np.array([0, stop - start], np.int32),
        block_starts=np.array([[0, 16]], np.int64),
        block_size=loaded.store.block_size,
        logit_rows=rows,
    )
    return loaded.executor.run(batch, loaded.store).copy()


@pytest.mark.parametrize("name", FAMILIES)
def test_a_family_is_that_of_the_torch_executor(name: str, tmp_path: Path) -> None:
    pytest.importorskip("transformers")
    build(name, tmp_path)
    found = {}
    for executor, device in WAYS:
        loaded = load_model(tmp_path, LoadOptions(executor=executor, device=device, **OPTIONS))
        if executor == "triton":
            assert loaded.executor.name == "triton"
        found[executor] = np.concatenate([step(loaded, 0, 4), step(loaded, 4, 5)])
    error = np.linalg.norm(found["triton"] - found["torch"]) / np.linalg.norm(found["torch"])
    assert error <= (1e-5 if DEVICE == "cpu" else 3e-2)  # bfloat16 between layers on a card


def test_a_text_is_that_of_the_torch_executor(tmp_path: Path) -> None:
    """From a folder to a text: the engine, the scheduler and the sampler are those of the CPU."""
    write_micro_model(tmp_path)
    texts = []
    for executor, device in WAYS:
        with LLM(tmp_path, executor=executor, device=device, **OPTIONS) as llm:
            done = llm.generate("abc", max_tokens=2, temperature=0.0, ignore_end=True)
            texts.append(done.token_ids)
    assert texts[0] == texts[1]
