"""The parts put together, and the options that say how."""

from __future__ import annotations

import json
import shutil
from concurrent.futures import ThreadPoolExecutor
from dataclasses import replace
from pathlib import Path
from typing import Any, get_type_hints

import pytest

from firsthand.errors import CapacityExceeded, FirsthandError, InvalidRequest, ModelNotFound
from firsthand.generation import loading, stores, swapping
from firsthand.generation.load_options import LoadKeywords, LoadOptions
from firsthand.generation.loading import LoadedModel, load_model, plan_model
from firsthand.generation.reading import read_tokenizer
from firsthand.text.tokenizer import Tokenizer
from firsthand.weights.checkpoint import Checkpoint
from firsthand.weights.sources import Quantization


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
        ("max_logit_rows", {"max_logit_rows": 3, "max_sequences": 4}),  # fewer than sequences
        ("max_logit_rows", {"max_logit_rows": 9, "max_step_tokens": 8}),
        ("memory_limit", {"memory_limit": "2 gib"}),
        ("memory_limit", {"memory_limit": 0}),
        ("memory_limit", {"memory_limit": "120%"}),
        ("attention", {"attention": "plain"}),
        ("compile", {"compile": True}),
        ("compile_buckets", {"compile_buckets": [128]}),
        ("compile_buckets", {"executor": "torch", "compile_buckets": [128]}),
        ("compile_buckets", {"executor": "torch", "compile": True, "compile_buckets": []}),
        ("compile_buckets", {"executor": "torch", "compile": True, "compile_buckets": [0]}),
        ("deterministic", {"deterministic": True}),
        ("threads", {"executor": "torch", "threads": 2}),
        ("disabled_rules", {"executor": "torch", "disabled_rules": ("fuse",)}),
        ("threads", {"threads": 100_000}),
        ("device", {"device": "cuda"}),
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
    assert (loaded.budget.num_blocks, loaded.trace_block_ids) == (14, tuple(range(14, 21)))
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

    monkeypatch.setattr(stores, "PagedStore", no_memory)
    with pytest.raises(CapacityExceeded, match="3 sequences of 512 tokens"):
        load_model(micro_folder, LoadOptions(max_sequences=3))


@pytest.mark.native
def test_memory_decides_context_and_sequences_where_nobody_did(micro_folder: Path) -> None:
    """Of the micro model a token takes 256 bytes of cache."""
    everything = load_model(micro_folder, LoadOptions())
    assert (everything.limits.context_length, everything.limits.max_sequences) == (512, 16)
    assert everything.budget.num_blocks == 16 * 512 // 16
    fixed = everything.budget.fixed
    assert not fixed.estimated
    assert fixed.weights_bytes == everything.executor.memory().weights_bytes
    assert fixed.scratch_bytes == everything.executor.memory().scratch_bytes
    tight = load_tight(micro_folder)
    context_length = tight.limits.context_length
    assert 272 <= context_length < 512
    assert (tight.limits.max_sequences, tight.spec.context_length) == (1, context_length)
    assert tight.budget.num_blocks * 16 == context_length
    assert tight.budget.wished_context_length == 512
    assert tight.budget.num_bytes <= (tight.budget.limit.num_bytes or 0)


def load_tight(folder: Path) -> LoadedModel:
    """With memory for one sequence that is not as long as the model's context."""
    options = LoadOptions(max_step_tokens=16, threads=1, kv_dtype="float32")
    budget = plan_model(folder, options)[1]
    limit = budget.fixed.num_bytes + 272 * budget.bytes_per_token
    return load_model(folder, replace(options, memory_limit=limit))


@pytest.mark.native
def test_a_load_beyond_the_limit_is_refused_before_a_weight_is_read(
    micro_folder: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    def no_load(*_: object) -> None:
        raise AssertionError("a weight was read")

    monkeypatch.setattr(swapping, "load", no_load)
    with pytest.raises(CapacityExceeded, match=r"estimated before the load\. memory_limit=\d+MiB"):
        load_model(micro_folder, LoadOptions(memory_limit="20MiB"))


@pytest.mark.native
def test_rotary_frequencies_do_not_depend_on_free_memory(micro_folder: Path) -> None:
    """What memory allows lowers the context and nothing else of the model."""
    whole, tight = load_model(micro_folder, LoadOptions()), load_tight(micro_folder)
    assert tight.spec.context_length < whole.spec.context_length
    assert tight.spec.rope == whole.spec.rope


def test_a_plan_estimates_what_a_load_measures(micro_folder: Path) -> None:
    spec, budget = plan_model(micro_folder, LoadOptions(memory_limit="1GiB"))
    assert spec.context_length == 512
    assert budget.fixed.estimated
    assert budget.kv_bytes == 16 * 512 * 288
    assert budget.limit.num_bytes == 2**30


@pytest.mark.native
@pytest.mark.model
@pytest.mark.parametrize("quantization", ["auto", "int8", "none"])
def test_the_estimates_hold_for_a_real_model(
    smollm2_path: Path, quantization: Quantization
) -> None:
    """Weights to the byte; scratch not below what is measured, nor twice as much."""
    options = LoadOptions(quantization=quantization, max_sequences=4)
    _, expected = plan_model(smollm2_path, options)
    held = load_model(smollm2_path, options).executor.memory()
    assert expected.fixed.weights_bytes == held.weights_bytes
    assert held.scratch_bytes <= expected.fixed.scratch_bytes <= 2 * held.scratch_bytes


def test_a_tokenizer_may_be_read_late_and_is_read_once(
    micro_folder: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """As the engine's process does, which works with ids."""
    read, num_reads = read_tokenizer, 0

    def counted(checkpoint: Checkpoint) -> Tokenizer:
        nonlocal num_reads
        num_reads += 1
        return read(checkpoint)

    monkeypatch.setattr(loading, "read_tokenizer", counted)
    loaded = load_model(micro_folder, LoadOptions(threads=1), late_text=True)
    assert num_reads == 0
    with ThreadPoolExecutor(4) as pool:
        found = {id(one) for one in pool.map(lambda _: loaded.tokenizer, range(8))}
    assert (len(found), num_reads) == (1, 1)
    assert loaded.tokenizer.encode("abc") == list(b"abc")
    load_model(micro_folder, LoadOptions(threads=1))
    assert num_reads == 2
