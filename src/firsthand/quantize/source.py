"""The model that is to be quantised: opened, its floats within reach, its words kept.

Owns: what a source must be, and what stands beside the weights of its copy.
May not know: how anything is rounded.
Read next: `quantize.py`.

Everything is read as floats: blocks of a GGUF file, or codes of another quantisation, are decoded
exactly. Rounding them is then a second rounding, which the report says. A folder's config.json and
tokenizer are copied; a GGUF file's are written anew from what it says, for the Llama family with
plain rotary frequencies and a byte-level vocabulary. Anything else of that kind is refused by name.
"""

from __future__ import annotations

import json
from collections import defaultdict
from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import Any

from firsthand.compute.plan import Op, record
from firsthand.errors import UnsupportedModel
from firsthand.generation.reading import read_spec, read_tokenizer
from firsthand.models import families
from firsthand.models.spec import ModelSpec
from firsthand.quant.formats import FloatFormat
from firsthand.quantize.forward import Weights
from firsthand.text.gguf_vocab import vocabulary_from_gguf
from firsthand.text.tokenizer import Tokenizer
from firsthand.text.tokenizer_out import tokenizer_files
from firsthand.values import dataclass
from firsthand.weights.checkpoint import Checkpoint, Slot
from firsthand.weights.folder import CONFIG
from firsthand.weights.loading import load
from firsthand.weights.quantized import CONFIG_KEYS
from firsthand.weights.sources import ConvertedSource
from firsthand.weights.tensor_names import canonical_names
from firsthand.weights.writing import copy_companions, write_new


@dataclass(frozen=True, slots=True, eq=False)
class Source:
    """`ops` are the model's operators as recorded, `file_bytes` its weights as they lie."""

    checkpoint: Checkpoint
    spec: ModelSpec
    tokenizer: Tokenizer
    weights: Weights
    ops: tuple[Op, ...]
    offsets: Mapping[str, float]  # what a load added to vectors, and a file must not have
    joined: Mapping[str, tuple[str, ...]]  # matrices of the file, and ours that are its rows
    head_names: tuple[str, ...]  # the embedding, and a head that is not the same
    file_bytes: int

    @property
    def linear_names(self) -> tuple[str, ...]:
        """The layers that may be rounded: no embedding, no head, no router."""
        return tuple(name for unit in self.units for name in unit)

    @property
    def units(self) -> tuple[tuple[str, ...], ...]:
        """The layers that read the same, and the experts of one layer: who runs them may join them,
        which takes one number format."""
        found: dict[tuple[str, int], list[str]] = {}
        for op in self.ops:
            if op.name in ("linear", "experts"):
                names = [name for name in op.weights if name not in self.weights.exact]
                found.setdefault((op.name, op.inputs[0].index), []).extend(names)
        return tuple(tuple(names) for names in found.values() if names)

    @property
    def was_rounded(self) -> bool:
        """Whether any of them has been rounded already."""
        sources = [self.weights.sources[name] for name in self.linear_names]
        return any(
            isinstance(one, ConvertedSource) and not isinstance(one.file.format, FloatFormat)
            for one in sources
        )


def open_source_model(checkpoint: Checkpoint) -> Source:
    """Raises as a load does, UnsupportedModel for what could not be written."""
    spec = read_spec(checkpoint)
    if checkpoint.form == "gguf":
        _check_writable(checkpoint, spec)
    tokenizer = read_tokenizer(checkpoint)
    family = families.family(spec)
    slots = family.slots(spec)
    weights = Weights(frozenset(slot.name for slot in slots if slot.is_exact))
    report = load(checkpoint, slots, family.gguf_layout, weights, "none")
    return Source(
        checkpoint,
        spec,
        tokenizer,
        weights,
        tuple(record(families.program(spec).forward, weights.shape)),
        {slot.name: slot.offset for slot in slots if slot.offset},
        _joined(checkpoint, slots),
        tuple(slot.name for slot in slots if slot.is_head and slot.name in weights.sources),
        report.file_bytes,
    )


def _joined(checkpoint: Checkpoint, slots: Sequence[Slot]) -> dict[str, tuple[str, ...]]:
    """Experts that lie in one tensor are left out: the form that is written has them one by one."""
    names = canonical_names(checkpoint.tensors, None).values()
    found: dict[str, list[str]] = defaultdict(list)
    for slot in slots:
        whole = slot.part_of
        if whole is not None and len(whole.shape) == 2 and whole.name in names:
            found[whole.name].append(slot.name)
    return {whole: tuple(parts) for whole, parts in found.items()}


def config_of(source: Source) -> dict[str, Any]:
    """config.json without a word about quantisation."""
    if source.checkpoint.form == "safetensors":
        return {k: v for k, v in source.checkpoint.config.items() if k not in CONFIG_KEYS}
    spec = source.spec
    tokenizer = source.tokenizer
    return {
        "architectures": [families.family(spec).config_name],
        "model_type": spec.architecture,
        "vocab_size": spec.vocab_size,
        "hidden_size": spec.width,
        "intermediate_size": spec.ffn_width,
        "num_hidden_layers": spec.num_layers,
        "num_attention_heads": spec.num_heads,
        "num_key_value_heads": spec.num_kv_heads,
        "head_dim": spec.head_size,
        "max_position_embeddings": spec.context_length,
        "rms_norm_eps": spec.norm_eps,
        "rope_theta": _theta(source.checkpoint),
        "hidden_act": "silu",
        "tie_word_embeddings": spec.tied_head,
        "attention_bias": spec.attention_bias,
        "mlp_bias": spec.mlp_bias,
        "bos_token_id": tokenizer.bos_id,
        "eos_token_id": sorted(tokenizer.end_ids),
        "torch_dtype": "float16",
    }


def write_companions(source: Source, folder: Path) -> None:
    """What stands beside the weights, but config.json."""
    if source.checkpoint.form == "safetensors":
        copy_companions(Path(source.checkpoint.path), folder, but={CONFIG})
        return
    vocabulary = vocabulary_from_gguf(source.checkpoint.metadata, source.checkpoint.path)
    for name, content in tokenizer_files(vocabulary).items():
        text = json.dumps(content, ensure_ascii=False)
        write_new(folder / name, [text.encode("utf-8", errors="surrogatepass")])


def _theta(checkpoint: Checkpoint) -> float:
    return float(checkpoint.metadata.get("llama.rope.freq_base", 10_000.0))


def _check_writable(checkpoint: Checkpoint, spec: ModelSpec) -> None:
    plain = spec.architecture == "llama" and spec.activation == "silu"
    if not plain or spec.rope.kind != "default" or spec.rope.attention_factor != 1.0:
        raise UnsupportedModel(
            f"{checkpoint.path}: from GGUF only the Llama family with plain rotary frequencies can "
            "be written as a folder; start from the model's safetensors"
        )
