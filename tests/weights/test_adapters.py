"""What an adapter's files may say: the scale, whose weights, and what is refused by name.

Owns: proof for `weights/adapters.py` on files made by hand. May not know: executors.
Read next: `tests/generation/test_adapters.py`, the proof against peft.
"""

from __future__ import annotations

import json
from pathlib import Path
from typing import Any

import numpy as np
import pytest

pytest.importorskip("safetensors")

from firsthand.cli.micro_model import write_micro_model
from firsthand.errors import CheckpointError, ModelNotFound, UnsupportedModel
from firsthand.generation.load_options import LoadOptions
from firsthand.generation.loading import plan_model
from firsthand.weights.adapters import MAX_RANK, adapter_bytes, open_adapter
from firsthand.weights.checkpoint import Slot, Whole
from tests.weights.adapter_files import PREFIX, RANK, tensors, write_adapter

Q, DOWN = "model.layers.0.self_attn.q_proj.weight", "model.layers.0.mlp.down_proj.weight"
SLOTS = (Slot(Q, (64, 64)), Slot(DOWN, (64, 96)), Slot("model.norm.weight", (64,)))


@pytest.mark.parametrize(
    ("config", "scales"),
    [
        ({}, (2.0, 2.0)),
        ({"use_rslora": True}, (4.0, 4.0)),
        ({"alpha_pattern": {"q_proj": 3}}, (0.75, 2.0)),
        ({"alpha_pattern": {"layers.0.mlp.down_proj": 1, "down_proj": 5}}, (2.0, 0.25)),
        ({"alpha_pattern": {"^model.layers.0.mlp.down_proj": 1, "^q_proj": 5}}, (2.0, 0.25)),
        ({"rank_pattern": {"q_proj": RANK}, "r": 9, "alpha_pattern": {}}, None),
        ({"alpha_pattern": {"proj": 1, "_proj": 1}}, (2.0, 2.0)),
    ],
)
def test_the_scale_is_that_of_the_configuration(
    tmp_path: Path, config: dict[str, Any], scales: tuple[float, float] | None
) -> None:
    folder = write_adapter(tmp_path / "a", **config)
    if scales is None:
        with pytest.raises(CheckpointError, match=r"down_proj'.*its rank 9"):
            open_adapter(folder, SLOTS)
        return
    adapter = open_adapter(folder, SLOTS)
    raw = tensors()
    found = {one.weight: one for one in adapter.factors}
    for name, scale in ((Q, scales[0]), (DOWN, scales[1])):
        stem = f"base_model.model.{name.removesuffix('.weight')}"
        np.testing.assert_array_equal(found[name].a, raw[f"{stem}.lora_A.weight"])
        expected = raw[f"{stem}.lora_B.weight"] * np.float32(scale)
        np.testing.assert_array_equal(found[name].b, expected)
    assert adapter.rank == RANK
    assert adapter.num_bytes == 4 * RANK * (64 + 64 + 64 + 96)


def test_what_it_adds_is_its_identity(tmp_path: Path) -> None:
    """F44. Another adapter has another, under whatever name."""
    one = open_adapter(write_adapter(tmp_path / "one"), SLOTS)
    again = open_adapter(write_adapter(tmp_path / "again", revision="x"), SLOTS)
    other = open_adapter(write_adapter(tmp_path / "other", lora_alpha=3), SLOTS)
    assert one.sha256 == again.sha256 != other.sha256


def test_a_joined_matrix_gives_its_parts_their_rows(tmp_path: Path) -> None:
    raw = tensors()
    stem = f"{PREFIX}.self_attn"
    b = raw.pop(f"{stem}.q_proj.lora_B.weight")
    joined = {
        f"{stem}.qkv_proj.lora_A.weight": raw.pop(f"{stem}.q_proj.lora_A.weight"),
        f"{stem}.qkv_proj.lora_B.weight": b,
    }
    whole = "model.layers.0.self_attn.qkv_proj.weight"
    parts = [
        Slot(f"model.layers.0.self_attn.{name}.weight", (n, 64), part_of=Whole(whole, (64, 64), at))
        for name, n, at in (("q_proj", 32, 0), ("k_proj", 16, 32), ("v_proj", 16, 48))
    ]
    adapter = open_adapter(write_adapter(tmp_path / "a", joined), parts)
    assert [one.weight for one in adapter.factors] == [slot.name for slot in parts]
    np.testing.assert_array_equal(np.concatenate([one.b for one in adapter.factors]), 2 * b)
    assert len({id(one.a) for one in adapter.factors}) == 1
    assert adapter.num_bytes == 4 * RANK * (64 + 64)


@pytest.mark.parametrize(
    ("config", "says"),
    [
        ({"peft_type": "IA3"}, "peft_type 'IA3'"),
        ({"use_dora": True}, "use_dora is not computed"),
        ({"bias": "all"}, "bias must be none"),
        ({"lora_bias": True}, "lora_bias"),
        ({"modules_to_save": ["lm_head"]}, "modules_to_save"),
        ({"trainable_token_indices": [1]}, "trainable_token_indices"),
        ({"layer_replication": [[0, 1]]}, "layer_replication"),
        ({"fan_in_fan_out": True}, "fan_in_fan_out"),
        ({"alora_invocation_tokens": [1]}, "alora_invocation_tokens"),
        ({"init_lora_weights": "pissa"}, "'pissa' changes the model's own weights"),
        ({"something_new": 1}, "something_new is not computed"),
        ({"rank_pattern": {"(a+)+$": 4}}, "only names of modules"),
    ],
)
def test_what_is_not_computed_is_refused_by_name(
    tmp_path: Path, config: dict[str, Any], says: str
) -> None:
    with pytest.raises(UnsupportedModel) as refused:
        open_adapter(write_adapter(tmp_path / "a", **config), SLOTS)
    assert says in str(refused.value)


@pytest.mark.parametrize("config", [{"r": 0}, {"r": MAX_RANK + 1}, {"r": "4"}, {"lora_alpha": -1}])
def test_numbers_have_limits(tmp_path: Path, config: dict[str, Any]) -> None:
    with pytest.raises(CheckpointError):
        open_adapter(write_adapter(tmp_path / "a", **config), SLOTS)


def test_tensors_must_be_pairs_that_fit_the_model(tmp_path: Path) -> None:
    raw = tensors()
    a, b = (f"{PREFIX}.self_attn.q_proj.lora_{part}.weight" for part in "AB")
    unknown = {name.replace("q_proj", "z_proj"): values for name, values in raw.items()}
    embedding = raw | {f"{PREFIX}.embed_tokens.lora_embedding_A": np.zeros((4, 9), np.float32)}
    for number, (weights, error, says) in enumerate(
        (
            ({name: raw[name] for name in raw if name != a}, CheckpointError, "only one of"),
            (raw | {a: raw[a][:, :63]}, CheckpointError, r"\(64, 63\); the model's is \(64, 64\)"),
            (raw | {b: raw[b][:, :3]}, CheckpointError, "its rank 4"),
            (raw | {b: raw[b] * np.nan}, CheckpointError, "NaN"),
            (raw | {a: raw[a].astype(np.int32)}, CheckpointError, "not a matrix of floats"),
            (unknown, CheckpointError, "no matrix 'model.layers.0.self_attn.z_proj'"),
            (embedding, UnsupportedModel, "lora_embedding_A"),
        )
    ):
        folder = write_adapter(tmp_path / str(number), weights)
        with pytest.raises(error, match=says):
            open_adapter(folder, SLOTS)


def test_stacked_experts_fit_the_model_or_are_refused(tmp_path: Path) -> None:
    """Two experts (F 6, M 8) of rank 2: E · r is 4; gate and up have 12 rows."""
    stem = "model.layers.0.mlp.experts"
    slots = [
        Slot(f"{stem}.{index}.{name}.weight", shape)
        for index in range(2)
        for name, shape in (("gate", (6, 8)), ("up", (6, 8)), ("down", (8, 6)))
    ]
    random = np.random.default_rng(1)

    def written(k: int, n: int, ranks: int = 4, where: str = "experts.base_layer") -> Path:
        name = f"base_model.model.model.layers.0.mlp.{where}.lora"
        raw = {
            f"{name}_A.weight": random.normal(size=(ranks, k)).astype(np.float32),
            f"{name}_B.weight": random.normal(size=(n, ranks)).astype(np.float32),
        }
        folder = tmp_path / f"{k} {n} {ranks} {where}"
        return write_adapter(folder, raw, r=2, target_parameters=["experts.x"])

    adapter = open_adapter(written(8, 12), slots)
    assert [one.weight for one in adapter.factors] == [slots[i].name for i in (0, 1, 3, 4)]
    assert {(one.a.shape, one.b.shape) for one in adapter.factors} == {((2, 8), (6, 2))}
    adapter = open_adapter(written(6, 8, where="experts"), slots)
    assert [one.weight for one in adapter.factors] == [slots[i].name for i in (2, 5)]
    for k, n, ranks in ((8, 8, 4), (6, 12, 4), (8, 12, 6), (8, 12, 2)):
        with pytest.raises(CheckpointError, match="fit neither gate and up nor down"):
            open_adapter(written(k, n, ranks), slots)
    with pytest.raises(CheckpointError, match="layer's 0 experts"):
        open_adapter(written(8, 12), SLOTS)


def test_a_folder_without_its_files_is_no_adapter(tmp_path: Path) -> None:
    for what in (tmp_path / "none", tmp_path):
        with pytest.raises(ModelNotFound):
            open_adapter(what, SLOTS)
    (tmp_path / "adapter_config.json").write_text(json.dumps({"peft_type": "LORA"}))
    with pytest.raises(CheckpointError, match="r is missing"):
        open_adapter(tmp_path, SLOTS)
    write_adapter(tmp_path)
    (tmp_path / "adapter_model.safetensors").unlink()
    with pytest.raises(ModelNotFound, match="save the adapter as safetensors"):
        open_adapter(tmp_path, SLOTS)


def test_a_plan_counts_what_adapters_take(tmp_path: Path) -> None:
    """Several models share a limit by their plans, before anything is loaded."""
    model = tmp_path / "model"
    model.mkdir()
    write_micro_model(model)
    folder = write_adapter(tmp_path / "a")
    one = open_adapter(folder, SLOTS).num_bytes
    assert adapter_bytes(folder) == one
    plain, more = (
        plan_model(model, LoadOptions(memory_limit="1GiB", lora=lora))[1].fixed.weights_bytes
        for lora in (None, {"a": str(folder), "b": str(folder)})
    )
    assert more == plain + 2 * one
