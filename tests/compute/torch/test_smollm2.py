"""A real model from its file to its logits, beside two libraries that know neither of us.

Owns: the proof that reader, loader, spec and executor fit together.
May not know: text, the engine. Read next: `test_executor.py`, the same at tiny size.
"""

from __future__ import annotations

from contextlib import closing
from pathlib import Path
from typing import Any

import numpy as np
import pytest

pytest.importorskip("torch")
pytest.importorskip("transformers")
import torch

from firsthand.compute.batch import FlatBatch
from firsthand.compute.torch.executor import TorchExecutor
from firsthand.generation.reading import read_spec
from firsthand.kvcache.contiguous import ContiguousStore
from firsthand.models import families
from firsthand.weights.loading import load
from firsthand.weights.open import open_checkpoint
from tests.compute.torch.tiny import prompt

pytestmark = [pytest.mark.torch, pytest.mark.oracle, pytest.mark.model]

LENGTH = 48
NAMES = {
    "attn_norm": "input_layernorm",
    "attn_q": "self_attn.q_proj",
    "attn_k": "self_attn.k_proj",
    "attn_v": "self_attn.v_proj",
    "attn_output": "self_attn.o_proj",
    "ffn_norm": "post_attention_layernorm",
    "ffn_gate": "mlp.gate_proj",
    "ffn_up": "mlp.up_proj",
    "ffn_down": "mlp.down_proj",
}


def theirs(path: Path, token_ids: list[int]) -> Any:
    """(n, V): the `gguf` library decodes, transformers computes."""
    gguf = pytest.importorskip("gguf")
    from transformers import LlamaConfig, LlamaForCausalLM

    state = {}
    for tensor in gguf.GGUFReader(str(path)).tensors:
        values = torch.tensor(gguf.dequantize(tensor.data, tensor.tensor_type))
        parts = tensor.name.split(".")
        if parts[0] != "blk":
            name = {"token_embd": "embed_tokens", "output_norm": "norm"}[parts[0]]
            state[f"model.{name}.weight"] = values
            continue
        heads = {"attn_q": 9, "attn_k": 3}.get(parts[2])
        if heads is not None:  # rows of a head are stored pairwise
            values = values.reshape(heads, 32, 2, 576).transpose(1, 2).reshape(values.shape)
        state[f"model.layers.{parts[1]}.{NAMES[parts[2]]}.weight"] = values
    config = LlamaConfig(
        vocab_size=49152,
        hidden_size=576,
        intermediate_size=1536,
        num_hidden_layers=30,
        num_attention_heads=9,
        num_key_value_heads=3,
        max_position_embeddings=8192,
        rms_norm_eps=1e-5,
        rope_parameters={"rope_type": "default", "rope_theta": 100000.0},
        tie_word_embeddings=True,
        attn_implementation="eager",
    )
    model = LlamaForCausalLM(config).eval()
    model.load_state_dict(state, strict=False)
    model.tie_weights()
    with torch.inference_mode():
        return model(torch.tensor([token_ids])).logits[0].numpy()


def test_a_real_model_has_the_logits_of_transformers(smollm2_path: Path) -> None:
    """Both are float32: root mean square 2e-5 beside logits of 30; the best token is the same."""
    token_ids = prompt(LENGTH)
    executor = TorchExecutor()
    with closing(open_checkpoint(smollm2_path)) as checkpoint:
        spec = read_spec(checkpoint)
        load(checkpoint, families.slots(spec), families.family(spec).gguf_layout, executor)
    executor.prepare(families.program(spec), LENGTH, LENGTH)
    store = ContiguousStore(
        spec.num_layers,
        spec.num_kv_heads,
        spec.head_size,
        num_slots=LENGTH,
        max_tokens=LENGTH,
        kv_dtype="float32",
    )
    rows = np.arange(LENGTH, dtype=np.int32)
    batch = FlatBatch(
        token_ids=np.asarray(token_ids, np.int32),
        positions=rows,
        row_starts=np.array([0, LENGTH], np.int32),
        block_starts=np.array([[store.block_start(0)]], np.int64),
        block_size=store.block_size,
        logit_rows=rows,
    )
    logits, wanted = executor.run(batch, store), theirs(smollm2_path, token_ids)
    assert float(np.sqrt(np.mean((logits - wanted) ** 2))) < 1e-4
    np.testing.assert_array_equal(logits.argmax(axis=1), wanted.argmax(axis=1))
