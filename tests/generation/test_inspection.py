"""What a model is said to be, without loading it."""

from __future__ import annotations

import json
import shutil
from pathlib import Path

import pytest

from firsthand.compute.fusion import RULES
from firsthand.errors import InvalidRequest, ModelNotFound
from firsthand.generation.inspection import inspect_model


def test_a_folder(micro_folder: Path) -> None:
    found = inspect_model(micro_folder)
    assert (found.form, found.architecture, found.problem) == (
        "safetensors",
        "LlamaForCausalLM",
        None,
    )
    assert found.spec is not None and found.tokenizer is not None and found.plan is None
    each_layer = 2 * (2 * found.spec.kv_width + 4 * found.spec.num_kv_heads)
    assert found.kv_bytes_per_token == found.spec.num_layers * each_layer
    assert found.kv_bytes == found.kv_bytes_per_token * found.spec.context_length
    assert sum(kind.num_bytes for kind in found.kinds) == found.tensor_bytes
    assert sum(kind.num_tensors for kind in found.kinds) == len(found.tensors)
    (tied,) = found.shared
    assert (tied.name, tied.target) == ("lm_head.weight", "model.embed_tokens.weight")
    assert found.saved_bytes == tied.saved_bytes > 0
    assert found.tokenizer.end_ids == (256,)


def test_the_plan_needs_no_weights(micro_folder: Path) -> None:
    fused = inspect_model(micro_folder, with_plan=True).plan
    assert fused is not None and len(fused.after) < len(fused.before)
    assert all(rule.applied for rule in fused.rules)
    plain = inspect_model(
        micro_folder, with_plan=True, disabled_rules=[rule.name for rule in RULES]
    ).plan
    assert plain is not None and plain.after == plain.before == fused.before
    assert not any(rule.applied for rule in plain.rules)


def test_a_model_that_we_cannot_run_is_described_too(micro_folder: Path, tmp_path: Path) -> None:
    folder = tmp_path / "model"
    shutil.copytree(micro_folder, folder)
    config = json.loads((folder / "config.json").read_text(encoding="utf-8"))
    text = json.dumps(config | {"architectures": ["OtherForCausalLM"]})
    (folder / "config.json").write_text(text, encoding="utf-8")
    (folder / "tokenizer.json").write_text("[", encoding="utf-8")
    found = inspect_model(folder, with_plan=True)
    assert (found.spec, found.tokenizer, found.plan, found.kv_bytes) == (None, None, None, None)
    assert found.architecture == "OtherForCausalLM"
    assert "OtherForCausalLM" in str(found.problem)
    assert "tokenizer.json" in str(found.tokenizer_problem)
    assert found.num_parameters > 0 and found.shared == ()


def test_what_the_caller_got_wrong_is_raised(micro_folder: Path, tmp_path: Path) -> None:
    with pytest.raises(InvalidRequest, match="max_context"):
        inspect_model(micro_folder, 0)
    with pytest.raises(InvalidRequest, match="no rule 'x'"):
        inspect_model(micro_folder, with_plan=True, disabled_rules=["x"])
    with pytest.raises(ModelNotFound):
        inspect_model(tmp_path / "nothing")
