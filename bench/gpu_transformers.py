"""A model of a shape in transformers, with its own random weights, that generates.

Owns: how transformers is asked. May not know: how long anything takes.
Read next: `gpu.py`.
"""

from __future__ import annotations

from collections.abc import Callable

import torch
from transformers import LlamaConfig, LlamaForCausalLM

from bench.gpu_models import Shape


def generation(
    shape: Shape, device: str, requests: int, prompt: int, new: int
) -> Callable[[], None]:
    """So many requests at once, greedy, each with so many new tokens. The model lives as long as
    what is returned."""
    config = LlamaConfig(
        vocab_size=shape.vocab_size,
        hidden_size=shape.width,
        intermediate_size=shape.ffn_width,
        num_hidden_layers=shape.num_layers,
        num_attention_heads=shape.num_heads,
        num_key_value_heads=shape.num_kv_heads,
        head_dim=shape.head_size,
        tie_word_embeddings=False,
        bos_token_id=None,
        eos_token_id=None,
        pad_token_id=0,
    )
    with torch.device(device):
        model = LlamaForCausalLM(config).to(torch.float32 if device == "cpu" else torch.float16)
        ids = torch.arange(requests * prompt).view(requests, prompt) % shape.vocab_size
    model.eval()

    def generate() -> None:
        with torch.inference_mode():
            model.generate(
                ids,
                attention_mask=torch.ones_like(ids),
                max_new_tokens=new,
                min_new_tokens=new,
                do_sample=False,
            )

    return generate
