"""The real Gemma 3 270M: it answers, and its logits are those of transformers on the same weights.

Owns: the checks on the file. May not know: how it is loaded. Read next: `test_family_oracle.py`.
"""

from __future__ import annotations

import random
import struct
from collections.abc import Mapping
from contextlib import closing
from pathlib import Path
from typing import Any

import numpy as np
import pytest

from firsthand import LLM
from firsthand.compute.batch import FlatBatch
from firsthand.text.tokenizer import Tokenizer
from firsthand.text.vocabulary import WORD_MARK
from firsthand.weights.open import open_checkpoint
from firsthand.weights.sources import Quantization

pytestmark = [pytest.mark.model, pytest.mark.native, pytest.mark.slow]

TEXT = (
    "The Danube rises in the Black Forest, passes through ten countries, more than any other "
    "river, and ends in the Black Sea. Многие города стоят на нём. 多瑙河流经维也纳。"
)


def test_it_answers_sensibly(gemma3_path: Path) -> None:
    with LLM(gemma3_path, max_context=512) as llm:
        found = llm.generate(
            ["1, 2, 3, 4, 5,", "The capital of France is Paris. The capital of Italy is"],
            max_tokens=8,
            temperature=0.0,
        )
        ids = llm.tokenize(TEXT)
        assert llm.loaded.tokenizer.decode(ids[1:]) == TEXT
        assert ids[0] == llm.loaded.tokenizer.bos_id
    assert found[0].text.startswith(" 6, 7, 8")
    assert found[1].text.startswith(" Rome")


@pytest.mark.oracle
def test_its_tokens_are_those_of_sentencepiece(gemma3_path: Path) -> None:
    """Of a model file made of the same pieces, by the library that owns the algorithm."""
    sentencepiece = pytest.importorskip("sentencepiece")
    with closing(open_checkpoint(gemma3_path)) as checkpoint:
        metadata = checkpoint.metadata
        ours = Tokenizer.from_gguf(metadata, checkpoint.path)
    theirs = sentencepiece.SentencePieceProcessor(model_proto=model_file(metadata))
    parts = ["a", " ", "  ", "\n", "é", "中", "ß", "1", "<", "td", ">", "the ", "😀", "\t", "\x00"]
    source = random.Random(1)
    texts = [TEXT, "  two  spaces\n\n\tand tabs  ", "def f(x):\n    return x + 1\n", "👩‍👩‍👧", "ﬁ"]
    texts += ["".join(source.choices(parts, k=30)) for _ in range(60)]
    for text in texts:
        assert ours.encode(text, add_bos=False) == theirs.encode(text), text


def model_file(metadata: Mapping[str, Any]) -> bytes:
    """sentencepiece_model.proto, by hand: pieces, a trainer's and a normalizer's specification."""

    def number(value: int) -> bytes:
        head, rest = value & 127, value >> 7
        return bytes([head | 128]) + number(rest) if rest else bytes([head])

    def integer(field: int, value: int) -> bytes:
        return number(field << 3) + number(value)

    def message(field: int, content: bytes) -> bytes:
        return number(field << 3 | 2) + number(len(content)) + content

    def single(field: int, value: float) -> bytes:
        return number(field << 3 | 5) + struct.pack("<f", value)

    user_defined = 4  # a converter has written their spaces as spaces
    columns = (metadata[f"tokenizer.ggml.{name}"] for name in ("tokens", "scores", "token_type"))
    pieces = [
        message(
            1,
            message(1, (text.replace(" ", WORD_MARK) if kind == user_defined else text).encode())
            + single(2, score)
            + integer(3, int(kind)),
        )
        for text, score, kind in zip(*columns, strict=True)
    ]
    bpe, byte_fallback, ids = integer(3, 2), integer(35, 1), ((40, 3), (41, 2), (42, 1), (43, 0))
    names = ((45, b"<unk>"), (46, b"<bos>"), (47, b"<eos>"), (48, b"<pad>"))
    trainer = bpe + byte_fallback + b"".join(integer(*pair) for pair in ids)
    trainer += b"".join(message(*pair) for pair in names)
    normalizer = message(1, b"identity") + integer(3, 0) + integer(4, 0) + integer(5, 1)
    return b"".join(pieces) + message(2, trainer) + message(3, normalizer)


@pytest.mark.oracle
@pytest.mark.torch
def test_its_logits_are_those_of_transformers_on_the_decoded_weights(gemma3_path: Path) -> None:
    pytest.importorskip("transformers")
    torch = pytest.importorskip("torch")
    model = decoded_model(gemma3_path)
    bounds: dict[Quantization, float] = {"none": 2e-5, "auto": 5e-3}
    for quantization, bound in bounds.items():
        with LLM(
            gemma3_path,
            quantization=quantization,
            kv_dtype="float32",
            max_context=1024,
            max_step_tokens=1024,
            max_logit_rows=1024,
            max_sequences=1,
            pack_cache=False,
        ) as llm:
            ids = (llm.tokenize(TEXT) * 16)[:700]  # longer than the window
            loaded = llm.loaded
            size, count = loaded.store.block_size, len(ids)
            blocks = [loaded.store.block_start(b) for b in range(-(-count // size))]
            step = FlatBatch(
                token_ids=np.array(ids, np.int32),
                positions=np.arange(count, dtype=np.int32),
                row_starts=np.array([0, count], np.int32),
                block_starts=np.array([blocks], np.int64),
                block_size=size,
                logit_rows=np.arange(count, dtype=np.int32)[-20:],
            )
            found = loaded.executor.run(step, loaded.store).copy()
        with torch.inference_mode():
            wanted = model(torch.tensor([ids])).logits[0, -20:].numpy()
        error = np.linalg.norm(found - wanted) / np.linalg.norm(wanted)
        assert error < bound, quantization
        assert (found.argmax(1) == wanted.argmax(1)).mean() > 0.9


def decoded_model(path: Path) -> Any:
    """Gemma3ForCausalLM with the file's weights as the `gguf` library decodes them."""
    import torch
    from transformers import Gemma3ForCausalLM, Gemma3TextConfig

    gguf = pytest.importorskip("gguf")
    reader = gguf.GGUFReader(path)

    def field(name: str) -> Any:
        return reader.fields[f"gemma3.{name}"].contents()

    config = Gemma3TextConfig(
        vocab_size=len(reader.fields["tokenizer.ggml.tokens"].data),
        hidden_size=field("embedding_length"),
        intermediate_size=field("feed_forward_length"),
        num_hidden_layers=field("block_count"),
        num_attention_heads=field("attention.head_count"),
        num_key_value_heads=field("attention.head_count_kv"),
        head_dim=field("attention.key_length"),
        sliding_window=field("attention.sliding_window"),
        query_pre_attn_scalar=field("attention.key_length"),
        attn_implementation="eager",
    )
    model = Gemma3ForCausalLM(config).eval()
    names = gguf.get_tensor_name_map(gguf.MODEL_ARCH.GEMMA3, config.num_hidden_layers)
    tensors = {tensor.name: tensor for tensor in reader.tensors}
    state = {}
    for name, parameter in model.state_dict().items():
        if name == "lm_head.weight":
            continue
        tensor = tensors[names.get_name(name, try_suffixes=(".weight",))]
        values = gguf.quants.dequantize(tensor.data, tensor.tensor_type)
        shift = 1.0 if name.endswith("norm.weight") else 0.0
        state[name] = torch.tensor(values.reshape(parameter.shape)) - shift
    missing, unexpected = model.load_state_dict(state, strict=False)
    assert set(missing) <= {"lm_head.weight"}
    assert not unexpected
    model.tie_weights()
    return model
