"""A tiny model of each family with random weights, made by transformers and saved as it saves them.

Owns: the configurations, the folders, and what transformers itself computes with them.
May not know: how Firsthand reads them. Read next: `test_family_oracle.py`.
"""

from __future__ import annotations

from collections.abc import Sequence
from pathlib import Path
from typing import Any

import numpy as np
import torch
from numpy.typing import NDArray
from torch.overrides import TorchFunctionMode

from firsthand.cli.micro_model import VOCAB_SIZE, write_micro_model
from firsthand.models.spec import ModelSpec

COMMON: dict[str, Any] = {
    "vocab_size": VOCAB_SIZE,
    "hidden_size": 48,
    "intermediate_size": 40,
    "num_hidden_layers": 3,
    "num_attention_heads": 6,
    "num_key_value_heads": 2,
    "max_position_embeddings": 256,
    "bos_token_id": None,
    "eos_token_id": VOCAB_SIZE - 1,
    "pad_token_id": None,
}
LONGROPE = {
    "rope_type": "longrope",
    "rope_theta": 10000.0,
    "short_factor": [1.0, 1.1, 1.2, 1.3],
    "long_factor": [1.0, 2.0, 3.0, 4.0],
    "original_max_position_embeddings": 128,
}
LINEAR = {
    "full_attention": {"rope_type": "linear", "factor": 8.0, "rope_theta": 1e6},
    "sliding_attention": {"rope_type": "default", "rope_theta": 1e4},
}
EXPERTS = {"num_experts": 6, "num_experts_per_tok": 2, "moe_intermediate_size": 24}
GEMMA = {"head_dim": 16, "sliding_window": 20}
# The name of the transformers classes without Config and ForCausalLM, and what differs.
CONFIGS: dict[str, tuple[str, dict[str, Any]]] = {
    "llama": ("Llama", {}),
    "mistral": ("Mistral", {"sliding_window": 70, "head_dim": 8}),
    "mistral without a window": ("Mistral", {"sliding_window": None}),
    "qwen2": ("Qwen2", {"tie_word_embeddings": True}),
    "qwen2 with windows": (
        "Qwen2",
        {"use_sliding_window": True, "sliding_window": 9, "max_window_layers": 1},
    ),
    "qwen3": ("Qwen3", {"head_dim": 16}),
    "gemma2": ("Gemma2", GEMMA | {"query_pre_attn_scalar": 24, "final_logit_softcapping": 2.0}),
    "gemma3": ("Gemma3", GEMMA | {"query_pre_attn_scalar": 8, "sliding_window_pattern": 2}),
    "gemma3, its whole contexts stretched": (
        "Gemma3",
        GEMMA | {"query_pre_attn_scalar": 16, "rope_parameters": LINEAR, "num_hidden_layers": 6},
    ),
    "phi3": ("Phi3", {"sliding_window": 33}),
    "phi3 with longrope": (
        "Phi3",
        {
            "rope_parameters": LONGROPE | {"partial_rotary_factor": 1.0},
            "original_max_position_embeddings": 128,
        },
    ),
    "mixtral": ("Mixtral", {"num_local_experts": 4, "num_experts_per_tok": 2}),
    "qwen2 moe": (
        "Qwen2Moe",
        EXPERTS | {"shared_expert_intermediate_size": 32, "mlp_only_layers": [1]},
    ),
    "qwen3 moe": ("Qwen3Moe", EXPERTS | {"head_dim": 16, "norm_topk_prob": True}),
}
CLASSES = {"Gemma3": "Gemma3TextConfig"}


def build(name: str, folder: Path) -> Any:
    """The model, saved into the folder beside a tokenizer with one token per byte."""
    import transformers

    kind, changes = CONFIGS[name]
    config_class = getattr(transformers, CLASSES.get(kind, f"{kind}Config"))
    written = config_class(**COMMON | changes, attn_implementation="eager")
    torch.manual_seed(7)
    model = getattr(transformers, f"{kind}ForCausalLM")(written).eval()
    with torch.no_grad():
        for parameter_name, values in model.named_parameters():
            spread = 0.3 if values.dim() == 1 else 1.5 * values.shape[-1] ** -0.5
            is_gain = parameter_name.endswith("norm.weight") and "Gemma" not in kind
            values.normal_(1.0 if is_gain else 0.0, spread)
    write_micro_model(folder)
    (folder / "model.safetensors").unlink()
    model.save_pretrained(folder)
    return model


class _Double(TorchFunctionMode):  # type: ignore[misc]
    """Where the library asks for float32, it gets float64."""

    def __torch_function__(
        self, func: Any, types: Any, args: Any = (), kwargs: dict[str, Any] | None = None
    ) -> Any:
        def swap(value: Any) -> Any:
            return torch.float64 if value is torch.float32 else value

        func = torch.Tensor.double if func is torch.Tensor.float else func
        return func(*map(swap, args), **{k: swap(v) for k, v in (kwargs or {}).items()})


def oracle(
    model: Any, spec: ModelSpec, token_ids: Sequence[int]
) -> tuple[NDArray[np.float64], NDArray[np.float64]]:
    """(T, V) its logits in float32, and in float64. There the angles are their formula again, of
    frequencies that it would have rounded to float32."""
    import copy

    ids = torch.tensor([token_ids])
    with torch.inference_mode():
        single = model(ids).logits[0].double().numpy()
        wide = copy.deepcopy(model).double()
        if hasattr(wide.config, "num_experts_per_tok"):
            wide.set_experts_implementation("eager")  # the fast one has no float64
        wide.model.rotary_emb.forward = _turn(spec)
        if hasattr(wide.model.embed_tokens, "scalar_embed_scale"):  # kept in float32
            scale = wide.model.embed_tokens.scalar_embed_scale
            wide.model.embed_tokens.embed_scale = torch.tensor(scale, dtype=torch.float64)
        with _Double():
            double = wide(ids).logits[0].numpy()
    return single, double


def _turn(spec: ModelSpec) -> Any:
    def forward(x: Any, position_ids: Any, layer_type: str | None = None) -> Any:
        is_local = layer_type == "sliding_attention" and spec.local_rope is not None
        rope = spec.local_rope if is_local and spec.local_rope else spec.rope
        frequencies = torch.tensor(rope.inverse_frequencies, dtype=torch.float64)
        angles = position_ids[..., None].double() * frequencies
        both = torch.cat((angles, angles), dim=-1)
        return both.cos() * rope.attention_factor, both.sin() * rope.attention_factor

    return forward


def greedy(model: Any, token_ids: Sequence[int], count: int) -> list[int]:
    """What `generate` of transformers appends, whatever the end token."""
    ids = torch.tensor([token_ids])
    with torch.inference_mode():
        found = model.generate(
            ids,
            attention_mask=torch.ones_like(ids),
            do_sample=False,
            max_new_tokens=count,
            eos_token_id=None,
            pad_token_id=0,
        )
    return [int(token) for token in found[0, len(token_ids) :]]
