"""The parts put together, and the options that say how."""

from __future__ import annotations

import json
import shutil
from pathlib import Path
from typing import Any, get_type_hints

import pytest

from firsthand.errors import CapacityExceeded, FirsthandError, InvalidRequest, ModelNotFound
from firsthand.generation import loading
from firsthand.generation.loading import (
    LoadedModel,
    LoadKeywords,
    LoadOptions,
    load_model,
)


@pytest.mark.parametrize(
    ("field", "options"),
    [
        ("executor", {"executor": "cuda"}),
        ("device", {"device": "cuda"}),
        ("quantization", {"quantization": "int5"}),
        ("kv_dtype", {"kv_dtype": "int4"}),
        ("kv_layout", {"kv_layout": "columns"}),
        ("kv_store", {"kv_store": "disk"}),
        ("block_size", {"block_size": 24}),
        ("block_size", {"block_size": 2048}),
        ("threads", {"threads": "2"}),
        ("threads", {"threads": True}),
        ("max_context", {"max_context": 1.5}),
        ("max_sequences", {"max_sequences": 0}),
        ("max_sequences", {"max_sequences": 9, "max_step_tokens": 8}),
        ("max_logit_rows", {"max_logit_rows": 3}),  # fewer than sequences
        ("max_logit_rows", {"max_logit_rows": 9, "max_step_tokens": 8}),
        ("attention", {"attention": "plain"}),
        ("compile", {"compile": True}),
        ("compile_buckets", {"compile_buckets": [128]}),
        ("compile_buckets", {"executor": "torch", "compile_buckets": [128]}),
        ("compile_buckets", {"executor": "torch", "compile": True, "compile_buckets": []}),
        ("compile_buckets", {"executor": "torch", "compile": True, "compile_buckets": [0]}),
        ("deterministic", {"deterministic": True}),
        ("threads", {"executor": "torch", "threads": 2}),
        ("disabled_rules", {"executor": "torch", "disabled_rules": ("fuse",)}),
    ],
)
def test_an_option_out_of_range_or_without_use_is_refused(
    field: str, options: dict[str, Any]
) -> None:
    with pytest.raises(InvalidRequest) as refused:
        LoadOptions(**options)
    assert refused.value.field == field


@pytest.mark.native
def test_a_model_is_loaded_with_its_parts_and_times(micro_folder: Path) -> None:
    options = LoadOptions(max_context=100, kv_dtype="float32", max_sequences=2)
    loaded: LoadedModel = load_model(micro_folder, options)
    assert loaded.executor.name == "native"
    assert loaded.limits.context_length == loaded.spec.context_length == 100
    assert loaded.store.num_blocks == 3 * 7  # two sequences, and a third for traces
    assert (loaded.num_pool_blocks, loaded.trace_block_ids) == (14, tuple(range(14, 21)))
    assert loaded.store.block_size == 16
    assert loaded.store.kv_dtype == "float32"
    assert loaded.weights.aliases[0].name == "lm_head.weight"
    times = loaded.times
    parts = times.open_ms + times.tokenizer_ms + times.executor_ms
    parts += times.weights_ms + times.prepare_ms
    assert parts == pytest.approx(times.total_ms)


@pytest.mark.native
def test_stop_4_end_tokens_are_the_union_of_all_that_name_one(
    micro_folder: Path, tmp_path: Path
) -> None:
    folder = tmp_path / "model"
    shutil.copytree(micro_folder, folder)
    text = json.dumps({"eos_token_id": [7, 9], "temperature": 0.7})
    (folder / "generation_config.json").write_text(text, encoding="utf-8")
    assert load_model(folder, LoadOptions()).tokenizer.end_ids == {7, 9, 256}


def test_the_keyword_arguments_are_the_fields_of_the_options() -> None:
    types = get_type_hints(LoadOptions)
    assert get_type_hints(LoadKeywords) == types


def test_no_such_model(tmp_path: Path) -> None:
    with pytest.raises(ModelNotFound):
        load_model(tmp_path / "nothing", LoadOptions())


@pytest.mark.parametrize("text", ["[", "[1]", '{"eos_token_id": "7"}'])
def test_a_broken_generation_config_is_refused(
    micro_folder: Path, tmp_path: Path, text: str
) -> None:
    folder = tmp_path / "model"
    shutil.copytree(micro_folder, folder)
    (folder / "generation_config.json").write_text(text, encoding="utf-8")
    with pytest.raises(FirsthandError, match=r"generation_config\.json"):
        load_model(folder, LoadOptions())


@pytest.mark.native
def test_a_kv_store_that_does_not_fit_is_refused_with_its_numbers(
    micro_folder: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    def no_memory(*_: object, **__: object) -> None:
        raise MemoryError

    monkeypatch.setattr(loading, "PagedStore", no_memory)
    with pytest.raises(CapacityExceeded, match="4 sequences of 512 tokens"):
        load_model(micro_folder, LoadOptions())
