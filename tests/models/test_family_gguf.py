"""Every family's GGUF form, written with the `gguf` library's own names, against its safetensors.

Owns: what converters do to a checkpoint (names, interleaved rows, stacked experts, 1 + w), done
once more; and that both forms give the same logits. May not know: our tables of names.
Read next: `test_family_oracle.py`.
"""

from __future__ import annotations

from contextlib import closing
from pathlib import Path
from typing import Any

import numpy as np
import pytest
from numpy.typing import NDArray

pytest.importorskip("gguf")
pytest.importorskip("transformers")
pytest.importorskip("torch")
import gguf

from firsthand.compute.native.executor import NativeExecutor
from firsthand.generation.reading import read_spec
from firsthand.kvcache.paged import PagedStore
from firsthand.models import families
from firsthand.models.spec import ModelSpec
from firsthand.weights.loading import load
from firsthand.weights.open import open_checkpoint
from tests.compute.native.micro import batch
from tests.models.tiny_families import CONFIGS, build

pytestmark = [pytest.mark.oracle, pytest.mark.torch, pytest.mark.native]

# The library's name of each architecture. Mistral's files are Llama's, without a window.
ARCHITECTURES = {
    "Llama": "LLAMA",
    "Mistral": "LLAMA",
    "Qwen2": "QWEN2",
    "Qwen3": "QWEN3",
    "Gemma2": "GEMMA2",
    "Gemma3": "GEMMA3",
    "Phi3": "PHI3",
    "Mixtral": "LLAMA",
    "Qwen2Moe": "QWEN2MOE",
    "Qwen3Moe": "QWEN3MOE",
}
# What GGUF cannot say: windows of Mistral and Qwen2, other scales of queries than Gemma's own.
SAYABLE: dict[str, dict[str, Any]] = {
    "llama": {},
    "mistral without a window": {},
    "qwen2": {},
    "qwen3": {},
    "gemma2": {"query_pre_attn_scalar": 16},
    "gemma3, its whole contexts stretched": {},
    "phi3": {},
    "phi3 with longrope": {},
    "mixtral": {},
    "qwen2 moe": {"mlp_only_layers": [], "norm_topk_prob": False},
    "qwen3 moe": {},
}


def write_gguf(path: Path, kind: str, model: Any, max_tensors: int = 0) -> None:
    """In files of `max_tensors` each, if that is not 0."""
    config = model.config
    architecture = getattr(gguf.MODEL_ARCH, ARCHITECTURES[kind])
    name = gguf.MODEL_ARCH_NAMES[architecture]
    writer = gguf.GGUFWriter(path, name, split_max_tensors=max_tensors)
    writer.add_block_count(config.num_hidden_layers)
    writer.add_context_length(config.max_position_embeddings)
    writer.add_embedding_length(config.hidden_size)
    writer.add_feed_forward_length(config.intermediate_size)
    writer.add_head_count(config.num_attention_heads)
    writer.add_head_count_kv(config.num_key_value_heads)
    writer.add_layer_norm_rms_eps(config.rms_norm_eps)
    if getattr(config, "head_dim", None):
        writer.add_key_length(config.head_dim)
        writer.add_value_length(config.head_dim)
    _add_rope(writer, kind, config)
    if kind == "Gemma2":
        writer.add_attn_logit_softcapping(config.attn_logit_softcapping)
        writer.add_final_logit_softcapping(config.final_logit_softcapping)
    if kind in ("Gemma2", "Gemma3", "Phi3") and config.sliding_window:
        writer.add_sliding_window(config.sliding_window)
    num_experts = getattr(config, "num_local_experts", None) or getattr(config, "num_experts", 0)
    if num_experts:
        writer.add_expert_count(num_experts)
        writer.add_expert_used_count(config.num_experts_per_tok)
    if "Moe" in kind:
        writer.add_expert_feed_forward_length(config.moe_intermediate_size)
    if kind == "Qwen2Moe":
        writer.add_expert_shared_feed_forward_length(config.shared_expert_intermediate_size)
    names = gguf.get_tensor_name_map(architecture, config.num_hidden_layers)
    for name, values in _tensors(kind, model).items():
        renamed = names.get_name(name, try_suffixes=(".weight", ".bias"))
        assert renamed is not None, name
        writer.add_tensor(renamed, np.ascontiguousarray(values))
    writer.write_header_to_file()
    writer.write_kv_data_to_file()
    writer.write_tensors_to_file()
    writer.close()


def _add_rope(writer: Any, kind: str, config: Any) -> None:
    rope = config.rope_parameters
    rope = rope.get("full_attention", rope)
    writer.add_rope_freq_base(rope["rope_theta"])
    if rope["rope_type"] == "linear":
        writer.add_rope_scaling_type(gguf.RopeScalingType.LINEAR)
        writer.add_rope_scaling_factor(rope["factor"])
    if rope["rope_type"] == "longrope":
        original = rope["original_max_position_embeddings"]
        stretch = config.max_position_embeddings / original
        factor = np.sqrt(1 + np.log(stretch) / np.log(original))
        writer.add_rope_scaling_orig_ctx_len(original)
        writer.add_rope_scaling_attn_factors(float(factor))
        for which in ("long", "short"):
            values = np.array(rope[f"{which}_factor"], np.float32)
            writer.add_tensor(f"rope_factors_{which}.weight", values)


def _tensors(kind: str, model: Any) -> dict[str, NDArray[np.float32]]:
    """As a converter hands them to the library: by the checkpoint's names, but changed."""
    found = {name: values.numpy() for name, values in model.state_dict().items()}
    config = model.config
    if config.tie_word_embeddings:
        found.pop("lm_head.weight")
    changed: dict[str, NDArray[np.float32]] = {}
    for name, values in found.items():
        if kind in ("Llama", "Mistral", "Mixtral") and ".q_proj." in name:
            values = _interleave(values, config.num_attention_heads)
        elif kind in ("Llama", "Mistral", "Mixtral") and ".k_proj." in name:
            values = _interleave(values, config.num_key_value_heads)
        elif kind in ("Gemma2", "Gemma3") and name.endswith("norm.weight"):
            values = values + 1
        if name.endswith("experts.gate_up_proj"):  # as the library's modules hold them
            half = values.shape[1] // 2
            stem = name.removesuffix("gate_up_proj")
            names = ("w1", "w3") if kind == "Mixtral" else ("gate_proj", "up_proj")
            changed[f"{stem}{names[0]}.weight"] = values[:, :half]
            changed[f"{stem}{names[1]}.weight"] = values[:, half:]
        elif name.endswith("experts.down_proj"):
            stem = name.removesuffix("down_proj")
            changed[f"{stem}{'w2' if kind == 'Mixtral' else 'down_proj'}.weight"] = values
        else:
            changed[name] = values
    if kind != "Mixtral":
        return changed
    return {name.replace(".mlp.", ".block_sparse_moe."): v for name, v in changed.items()}


def _interleave(values: NDArray[np.float32], num_heads: int) -> NDArray[np.float32]:
    """Halves of a head to pairs, as llama.cpp's converter does for the Llama family."""
    halves = values.reshape(num_heads, 2, -1, *values.shape[1:])
    return np.ascontiguousarray(halves.swapaxes(1, 2).reshape(values.shape))


def opened(path: Path) -> tuple[ModelSpec, NDArray[np.float32], int]:
    """The spec, (T, V) logits of a prompt, and the bytes that are held."""
    executor = NativeExecutor(threads=1)
    with closing(open_checkpoint(path)) as checkpoint:
        spec = read_spec(checkpoint)
        family = families.family(spec)
        report = load(checkpoint, family.slots(spec), family.gguf_layout, executor, "none")
    executor.prepare(families.program(spec), 128, 128)
    store = PagedStore(
        spec.num_layers,
        spec.num_kv_heads,
        spec.head_size,
        num_blocks=3,
        block_size=256,
        kv_dtype="float32",
    )
    ids = np.random.default_rng(3).integers(0, spec.vocab_size, 100)
    return spec, executor.run(batch(store, (1, 0, ids)), store).copy(), report.held_bytes


@pytest.mark.parametrize("name", SAYABLE)
def test_both_forms_give_the_same_logits(
    name: str, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    kind, changes = CONFIGS[name]
    monkeypatch.setitem(CONFIGS, name, (kind, changes | SAYABLE[name]))
    folder = tmp_path / "folder"
    folder.mkdir()
    model = build(name, folder)
    write_gguf(tmp_path / "model.gguf", kind, model)
    spec, logits, held_bytes = opened(folder)
    other, found, also_held = opened(tmp_path / "model.gguf")
    assert (other.windows, other.experts) == (spec.windows, spec.experts)
    np.testing.assert_allclose(
        other.rope.inverse_frequencies, spec.rope.inverse_frequencies, rtol=1e-6
    )
    # GGUF holds numbers as float32: cos and sin may differ in their last bit. LongRoPE's factor,
    # which is large here, goes into every score.
    bound = 5e-4 if "longrope" in name else 2e-5
    np.testing.assert_allclose(found, logits, rtol=0, atol=bound)
    assert held_bytes == also_held


def test_parts_have_the_bits_of_the_single_file(tmp_path: Path) -> None:
    """As the library splits it; whichever part is named."""
    (tmp_path / "folder").mkdir()
    model = build("llama", tmp_path / "folder")
    write_gguf(tmp_path / "model.gguf", "Llama", model)
    write_gguf(tmp_path / "model.gguf", "Llama", model, max_tensors=9)
    parts = sorted(tmp_path.glob("model-*.gguf"))
    assert len(parts) > 2
    spec, logits, held_bytes = opened(tmp_path / "model.gguf")
    other, found, also_held = opened(parts[1])
    assert other == spec
    assert found.tobytes() == logits.tobytes()
    assert held_bytes == also_held
