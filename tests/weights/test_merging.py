"""An adapter merged into the micro model's files: what is written, and what is refused.

Owns: proof for `weights/merging.py` on files made by hand. May not know: executors.
Read next: `tests/generation/test_adapters.py`, the proof against peft.
"""

from __future__ import annotations

import json
from pathlib import Path

import numpy as np
import pytest
from numpy.typing import NDArray

pytest.importorskip("safetensors")
from safetensors.numpy import load_file, save_file

from firsthand.cli.micro_model import write_micro_model
from firsthand.errors import CheckpointError, InvalidRequest, UnsupportedModel
from firsthand.generation.reading import slots_of
from firsthand.quant.formats import bfloat16_to_float32, float32_to_bfloat16
from firsthand.weights.merging import merge
from tests.weights.adapter_files import PREFIX, tensors, write_adapter

Q = "model.layers.0.self_attn.q_proj.weight"


@pytest.fixture(scope="module")
def model(tmp_path_factory: pytest.TempPathFactory) -> Path:
    return write_micro_model(tmp_path_factory.mktemp("model"))


def test_changed_tensors_are_the_sum_and_the_others_the_same_bytes(
    model: Path, tmp_path: Path
) -> None:
    seen: list[tuple[int, int]] = []
    done = merge(
        model,
        write_adapter(tmp_path / "a"),
        tmp_path / "new",
        slots_of,
        lambda *now: seen.append(now),
    )
    before = load_file(model / "model.safetensors")
    after = load_file(tmp_path / "new" / "model.safetensors")
    assert before.keys() == after.keys()
    changed = [name for name in before if not np.array_equal(before[name], after[name])]
    assert sorted(changed) == ["model.layers.0.mlp.down_proj.weight", Q]
    assert done.num_changed == 2
    raw = tensors()
    a, b = (raw[f"{PREFIX}.self_attn.q_proj.lora_{part}.weight"] for part in "AB")
    np.testing.assert_allclose(after[Q], before[Q] + 2 * b @ a, rtol=1e-6, atol=1e-6)
    assert (
        seen[-1] == (done.num_bytes, done.num_bytes) == (sum(x.nbytes for x in after.values()),) * 2
    )
    for name in ("config.json", "tokenizer.json"):
        assert (tmp_path / "new" / name).read_bytes() == (model / name).read_bytes()


def test_what_cannot_be_merged_is_refused_and_nothing_is_left(model: Path, tmp_path: Path) -> None:
    adapter = write_adapter(tmp_path / "a")
    with pytest.raises(InvalidRequest, match="exists already"):
        merge(model, adapter, adapter, slots_of)
    head = {
        name.replace("layers.0.self_attn.q_proj", "lm_head"): x for name, x in tensors().items()
    }
    head = {name.replace("model.model.lm_head", "model.lm_head"): x for name, x in head.items()}
    other = {name.replace("layers.0", "layers.9"): x for name, x in tensors().items()}
    for number, (weights, error, says) in enumerate(
        (
            (other, CheckpointError, "layers.9.*not in the model"),
            (head, UnsupportedModel, "the head is the embedding itself"),
        )
    ):
        with pytest.raises(error, match=says):
            merge(model, write_adapter(tmp_path / str(number), weights), tmp_path / "new", slots_of)
        assert not (tmp_path / "new").exists()
    assert not list(tmp_path.glob(".new*"))


def test_a_quantised_model_is_refused_by_the_tensor(model: Path, tmp_path: Path) -> None:
    source = tmp_path / "int8"
    source.mkdir()
    stored = dict(load_file(model / "model.safetensors"))
    stored[Q] = np.zeros((64, 64), np.int8)
    stored[f"{Q}_scale"] = np.ones((64, 1), np.float32)
    save_file(stored, source / "model.safetensors")
    config = json.loads((model / "config.json").read_text())
    weights = {"num_bits": 8, "type": "int", "strategy": "channel", "symmetric": True}
    scheme = {"quant_method": "compressed-tensors", "format": "int-quantized"}
    scheme["config_groups"] = {"group_0": {"targets": ["Linear"], "weights": weights}}  # type: ignore[assignment]
    (source / "config.json").write_text(json.dumps(config | {"quantization_config": scheme}))
    with pytest.raises(UnsupportedModel, match="only floats are merged"):
        merge(source, write_adapter(tmp_path / "a"), tmp_path / "new", slots_of)


def test_float32_becomes_the_nearest_bfloat16() -> None:
    values = np.array([0.0, -0.0, 1.0, 1 + 2**-8, 1 + 3 * 2**-8, -1 - 2**-9, 3e38], np.float32)
    expected: NDArray[np.float64] = np.array([0, -0.0, 1, 1, 1 + 2**-6, -1, 3.0039e38])
    found = bfloat16_to_float32(float32_to_bfloat16(values))
    np.testing.assert_allclose(found, expected, rtol=1e-3)
    assert list(found[2:6]) == [1, 1, 1 + 2**-6, -1]
