"""A model small enough to be made on the spot: random weights, and one token per byte.

Owns: the three files of a complete checkpoint (config, tokenizer, tensors), from a seed.
May not know: how they are read back; it writes by the formats' own words, with the standard
library alone, so that the readers are tested by something that is not theirs.
Read next: `selftest.py`, which runs it.
"""

from __future__ import annotations

import json
import random
import struct
from pathlib import Path

END_TOKEN = "<|end|>"
WIDTH, FFN_WIDTH, NUM_LAYERS, NUM_HEADS, NUM_KV_HEADS, HEAD_SIZE = 64, 96, 2, 4, 2, 16
CONTEXT_LENGTH = 512
VOCAB_SIZE = 257  # one token per byte, and the end

TEMPLATE = (
    "{% for message in messages %}{{ message.role }}: {{ message.content }}\n{% endfor %}"
    "{% if add_generation_prompt %}assistant: {% endif %}"
)


def write_micro_model(
    folder: Path,
    seed: int = 0,
    context_length: int = CONTEXT_LENGTH,
    num_layers: int = NUM_LAYERS,
) -> Path:
    """Write the checkpoint into `folder` (it exists) and return it."""
    _write_json(folder / "config.json", _config(context_length, num_layers))
    _write_json(folder / "tokenizer.json", _tokenizer())
    _write_json(
        folder / "tokenizer_config.json", {"eos_token": END_TOKEN, "chat_template": TEMPLATE}
    )
    _write_tensors(folder / "model.safetensors", _shapes(num_layers), random.Random(seed))
    return folder


def _config(context_length: int, num_layers: int) -> dict[str, object]:
    return {
        "architectures": ["LlamaForCausalLM"],
        "model_type": "llama",
        "vocab_size": VOCAB_SIZE,
        "hidden_size": WIDTH,
        "intermediate_size": FFN_WIDTH,
        "num_hidden_layers": num_layers,
        "num_attention_heads": NUM_HEADS,
        "num_key_value_heads": NUM_KV_HEADS,
        "head_dim": HEAD_SIZE,
        "max_position_embeddings": context_length,
        "rms_norm_eps": 1e-5,
        "rope_theta": 10000.0,
        "hidden_act": "silu",
        "tie_word_embeddings": True,
        "bos_token_id": None,
        "eos_token_id": VOCAB_SIZE - 1,
        "torch_dtype": "float32",
    }


def _byte_alphabet() -> list[str]:
    """The printable stand-in of each byte in a byte-level vocabulary: GPT-2's own rule."""
    shown = [*range(0x21, 0x7F), *range(0xA1, 0xAD), *range(0xAE, 0x100)]
    hidden = [byte for byte in range(256) if byte not in shown]
    stand_in = {byte: chr(byte) for byte in shown}
    stand_in |= {byte: chr(256 + index) for index, byte in enumerate(hidden)}
    return [stand_in[byte] for byte in range(256)]


def _tokenizer() -> dict[str, object]:
    byte_level = {
        "type": "ByteLevel",
        "add_prefix_space": False,
        "trim_offsets": True,
        "use_regex": False,
    }
    special = {"id": VOCAB_SIZE - 1, "content": END_TOKEN, "special": True}
    special |= dict.fromkeys(("single_word", "lstrip", "rstrip", "normalized"), False)
    return {
        "version": "1.0",
        "truncation": None,
        "padding": None,
        "added_tokens": [special],
        "normalizer": None,
        "pre_tokenizer": byte_level,
        "post_processor": None,
        "decoder": byte_level,
        "model": {
            "type": "BPE",
            "dropout": None,
            "unk_token": None,
            "continuing_subword_prefix": None,
            "end_of_word_suffix": None,
            "fuse_unk": False,
            "byte_fallback": False,
            "vocab": {text: byte for byte, text in enumerate(_byte_alphabet())}
            | {END_TOKEN: VOCAB_SIZE - 1},
            "merges": [],
        },
    }


def _shapes(num_layers: int) -> dict[str, tuple[int, ...]]:
    q_width, kv_width = NUM_HEADS * HEAD_SIZE, NUM_KV_HEADS * HEAD_SIZE
    shapes: dict[str, tuple[int, ...]] = {
        "model.embed_tokens.weight": (VOCAB_SIZE, WIDTH),
        "model.norm.weight": (WIDTH,),
    }
    for layer in range(num_layers):
        shapes |= {
            f"model.layers.{layer}.{name}.weight": shape
            for name, shape in {
                "input_layernorm": (WIDTH,),
                "self_attn.q_proj": (q_width, WIDTH),
                "self_attn.k_proj": (kv_width, WIDTH),
                "self_attn.v_proj": (kv_width, WIDTH),
                "self_attn.o_proj": (WIDTH, q_width),
                "post_attention_layernorm": (WIDTH,),
                "mlp.gate_proj": (FFN_WIDTH, WIDTH),
                "mlp.up_proj": (FFN_WIDTH, WIDTH),
                "mlp.down_proj": (WIDTH, FFN_WIDTH),
            }.items()
        }
    return shapes


def _write_tensors(path: Path, shapes: dict[str, tuple[int, ...]], source: random.Random) -> None:
    header: dict[str, object] = {}
    offset = 0
    for name, shape in shapes.items():
        size = 4 * _count(shape)
        header[name] = {
            "dtype": "F32",
            "shape": list(shape),
            "data_offsets": [offset, offset + size],
        }
        offset += size
    text = json.dumps(header).encode()
    text += b" " * (-len(text) % 8)
    with path.open("wb") as file:
        file.write(struct.pack("<Q", len(text)) + text)
        for shape in shapes.values():
            gain = len(shape) == 1
            deviation = 0.02 if gain else 1.5 / shape[-1] ** 0.5
            numbers = (source.gauss(1.0 if gain else 0.0, deviation) for _ in range(_count(shape)))
            file.write(struct.pack(f"<{_count(shape)}f", *numbers))


def _count(shape: tuple[int, ...]) -> int:
    count = 1
    for size in shape:
        count *= size
    return count


def _write_json(path: Path, value: object) -> None:
    path.write_text(json.dumps(value), encoding="utf-8")
