"""From a file's words to a spec: what is accepted, what is refused, and by which name.

Owns: the rules of `models/config_form.py`, `gguf_form.py`, `scaling.py` and `fields.py`. May not
know: tensors.
Read next: `test_llama.py`.
"""

from __future__ import annotations

from typing import Any

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from firsthand.errors import CheckpointError, FirsthandError, InvalidRequest, UnsupportedModel
from firsthand.models.families import read_config, read_gguf
from firsthand.models.scaling import ROPE_FACTORS

PLAIN: dict[str, Any] = {
    "architectures": ["LlamaForCausalLM"],
    "vocab_size": 100,
    "hidden_size": 64,
    "intermediate_size": 96,
    "num_hidden_layers": 2,
    "num_attention_heads": 4,
    "max_position_embeddings": 512,
}
LLAMA3 = {
    "factor": 8.0,
    "low_freq_factor": 1.0,
    "high_freq_factor": 4.0,
    "original_max_position_embeddings": 8192,
}
GGUF: dict[str, Any] = {
    "general.architecture": "llama",
    "llama.block_count": 2,
    "llama.context_length": 512,
    "llama.embedding_length": 64,
    "llama.feed_forward_length": 96,
    "llama.attention.head_count": 4,
    "llama.attention.layer_norm_rms_epsilon": 1e-5,
}
SHAPES: dict[str, tuple[int, ...]] = {"token_embd.weight": (100, 64)}


def config(**changes: Any) -> dict[str, Any]:
    return PLAIN | changes


def gguf(**changes: Any) -> dict[str, Any]:
    """`a__b` stands for `llama.a.b`."""
    return GGUF | {f"llama.{name.replace('__', '.')}": value for name, value in changes.items()}


def test_defaults_are_those_of_the_architecture() -> None:
    spec = read_config(PLAIN)
    assert (spec.architecture, spec.vocab_size, spec.num_layers) == ("llama", 100, 2)
    assert (spec.width, spec.num_heads, spec.num_kv_heads, spec.head_size) == (64, 4, 4, 16)
    assert (spec.ffn_width, spec.norm_eps, spec.activation) == (96, 1e-6, "silu")
    assert (spec.rope.kind, spec.rope.inverse_frequencies[0]) == ("default", 1.0)
    assert spec.rope.inverse_frequencies[4] == pytest.approx(10000.0**-0.5)
    assert not (spec.tied_head or spec.attention_bias or spec.mlp_bias)


@pytest.mark.parametrize("key", ["rope_type", "type"])
def test_model_1_either_key_names_the_scaling(key: str) -> None:
    written = config(
        head_dim=8, max_position_embeddings=131072, rope_scaling=LLAMA3 | {key: "llama3"}
    )
    found = read_config(written).rope
    assert found.kind == "llama3"
    assert found.inverse_frequencies == pytest.approx([1, 0.1, 0.01, 0.000213607544], rel=1e-7)


def test_model_1_null_is_plain_and_both_keys_may_agree() -> None:
    assert read_config(config(rope_scaling=None)).rope == read_config(PLAIN).rope
    both = {"type": "linear", "rope_type": "linear", "factor": 2}
    assert read_config(config(rope_scaling=both)).rope.kind == "linear"
    with pytest.raises(CheckpointError, match="rope_type"):
        read_config(config(rope_scaling=both | {"type": "yarn"}))


@pytest.mark.parametrize(
    ("scaling", "word"),
    [
        ({"rope_type": "spiral", "factor": 2}, "spiral"),
        ({"type": "mrope", "factor": 2}, "mrope"),
        ({"type": "linear", "factor": 2, "wobble": 1}, "wobble"),
        ({"full_attention": {"rope_type": "default"}}, "full_attention"),
        ({"rope_type": "default", "partial_rotary_factor": 0.5}, "partial_rotary_factor"),
    ],
)
def test_model_1_an_unknown_scaling_is_refused(scaling: dict[str, Any], word: str) -> None:
    with pytest.raises(UnsupportedModel, match=word):
        read_config(config(rope_scaling=scaling))


@pytest.mark.parametrize(
    ("scaling", "word"),
    [
        ({"rope_type": "linear"}, "factor is missing"),
        ({"rope_type": "linear", "factor": "2"}, "factor must be a number"),
        ({"rope_type": "linear", "factor": True}, "factor must be a number"),
        ({"rope_type": "linear", "factor": 0.5}, "factor must be"),
        ({"rope_type": "linear", "factor": float("nan")}, "factor must be"),
        ({"rope_type": "linear", "factor": float("inf")}, "factor must be"),
        ({"rope_type": "linear", "factor": 10**400}, "a very large integer"),
        ({"rope_type": 3}, "rope_type must be a string"),
        (LLAMA3 | {"rope_type": "llama3", "high_freq_factor": 1.0}, "high_freq_factor"),
        ({"rope_type": "llama3", "factor": 8.0}, "low_freq_factor is missing"),
        ({"rope_type": "longrope", "short_factor": [1.0], "long_factor": [1.0]}, "short_factor"),
        ([], "rope_scaling must be an object"),
    ],
)
def test_a_damaged_scaling_is_refused_by_field(scaling: Any, word: str) -> None:
    with pytest.raises(CheckpointError, match=word):
        read_config(config(rope_scaling=scaling))


@pytest.mark.parametrize(("factor", "wanted"), [(4.0, 1.138629436), (32.0, 1.346573590)])
def test_model_2_yarn_has_its_attention_factor(factor: float, wanted: float) -> None:
    scaling = {"type": "yarn", "factor": factor, "finetuned": True}
    scaling |= {"original_max_position_embeddings": 128}
    found = read_config(config(rope_scaling=scaling)).rope
    assert found.attention_factor == pytest.approx(wanted, abs=5e-10)
    given = read_config(config(rope_scaling=scaling | {"attention_factor": 0.5})).rope
    assert given.attention_factor == 0.5


def test_model_2_linear_divides_every_frequency() -> None:
    found = read_config(config(rope_scaling={"type": "linear", "factor": 4.0})).rope
    plain = read_config(PLAIN).rope
    assert found.inverse_frequencies == tuple(f / 4 for f in plain.inverse_frequencies)


def test_model_3_nested_theta_is_used() -> None:
    nested = {"rope_theta": 1e6, "rope_type": "default"}
    spec = read_config(config(head_dim=8, rope_parameters=nested))
    assert spec.rope.inverse_frequencies[1] == pytest.approx(0.0316228, abs=5e-8)
    agreed = config(head_dim=8, rope_parameters=nested, rope_theta=1e6)
    assert read_config(agreed).rope == spec.rope


def test_model_3_two_places_that_differ_are_an_error() -> None:
    with pytest.raises(CheckpointError, match="rope_theta has different values"):
        read_config(config(rope_parameters={"rope_theta": 1e6}, rope_theta=1e4))
    with pytest.raises(CheckpointError, match="factor has different values"):
        read_config(
            config(
                rope_parameters={"rope_type": "linear", "factor": 2},
                rope_scaling={"rope_type": "linear", "factor": 4},
            )
        )


def test_model_3_the_text_model_may_be_nested() -> None:
    inner = {k: v for k, v in PLAIN.items() if k != "architectures"} | {"rope_theta": 1e6}
    outer = {"architectures": ["LlamaForCausalLM"], "text_config": inner, "eos_token_id": 3}
    found = read_config(outer)
    assert found.width == 64
    assert found.rope == read_config(config(rope_theta=1e6)).rope
    assert read_config(outer | {"hidden_size": 64}) == found
    with pytest.raises(CheckpointError, match="hidden_size has one value outside"):
        read_config(outer | {"hidden_size": 128})


def test_model_4_an_explicit_head_size_is_taken() -> None:
    sizes = {"hidden_size": 48, "num_attention_heads": 5, "num_key_value_heads": 1}
    spec = read_config(config(**sizes, head_dim=16))
    assert (spec.q_width, spec.kv_width, spec.head_size) == (80, 16, 16)
    assert read_config(config(head_dim=None)).head_size == 16
    with pytest.raises(CheckpointError, match="hidden_size 48 is no multiple of 5 heads"):
        read_config(config(**sizes))
    with pytest.raises(CheckpointError, match="head_dim 15 is odd"):
        read_config(config(head_dim=15))


def test_model_5_query_heads_fall_into_equal_groups() -> None:
    for heads, kv_heads in ((6, 3), (6, 2), (6, 6), (6, 1)):
        written = config(hidden_size=96, num_attention_heads=heads, num_key_value_heads=kv_heads)
        assert read_config(written).num_kv_heads == kv_heads
    with pytest.raises(CheckpointError, match="num_attention_heads 5 is no multiple of 2"):
        read_config(config(num_attention_heads=5, num_key_value_heads=2, head_dim=16))


def test_model_7_biases_are_those_that_the_file_demands() -> None:
    spec = read_config(config(attention_bias=True))
    assert (spec.attention_bias, spec.attention_output_bias, spec.mlp_bias) == (True, True, False)
    assert read_config(config(mlp_bias=True)).mlp_bias
    shapes = SHAPES | {"blk.1.attn_k.bias": (64,)}
    found = read_gguf(GGUF, shapes)
    assert (found.attention_bias, found.attention_output_bias) == (True, False)
    assert read_gguf(GGUF, SHAPES | {"blk.0.attn_output.bias": (64,)}).attention_output_bias
    assert read_gguf(GGUF, SHAPES | {"blk.0.ffn_up.bias": (96,)}).mlp_bias


@pytest.mark.parametrize(
    ("name", "value"),
    [
        ("hidden_act", "relu"),
        ("hidden_act", "gelu"),
        ("quantization_config", {"quant_method": "gptq"}),
        ("sliding_window", 4096),
        ("partial_rotary_factor", 0.5),
        ("num_local_experts", 8),
        ("use_qk_norm", True),
        ("rope_interleaved", True),
        ("logits_scaling", 8.0),
    ],
)
def test_an_option_that_changes_the_mathematics_is_refused_by_name(name: str, value: Any) -> None:
    with pytest.raises(UnsupportedModel, match=name):
        read_config(config(**{name: value}))


def test_an_option_that_changes_nothing_is_let_through() -> None:
    harmless: dict[str, Any] = {
        "pretraining_tp": 2,
        "attention_dropout": 0.1,
        "sliding_window": None,
    }
    harmless |= {"rope_interleaved": False, "partial_rotary_factor": 1.0, "hidden_act": "silu"}
    harmless |= {"quantization_config": None, "torch_dtype": "bfloat16"}
    assert read_config(config(**harmless)) == read_config(PLAIN)
    unused = config(sliding_window=64, use_sliding_window=False)
    assert read_config(unused) == read_config(PLAIN)


@pytest.mark.parametrize("name", ["GPT2LMHeadModel", "MambaForCausalLM", "x" * 10_000])
def test_another_architecture_is_refused_by_name(name: str) -> None:
    with pytest.raises(UnsupportedModel, match=name[:80]) as caught:
        read_config(config(architectures=[name]))
    assert len(str(caught.value)) < 400
    with pytest.raises(UnsupportedModel, match=name[:80]):
        read_gguf(GGUF | {"general.architecture": name}, SHAPES)


@pytest.mark.parametrize("architectures", [None, [], "LlamaForCausalLM", [1], ["a", "b"]])
def test_architectures_must_be_one_name(architectures: Any) -> None:
    with pytest.raises(CheckpointError, match="architectures"):
        read_config(config(architectures=architectures))
    named = config(architectures=None, model_type="llama")
    assert read_config(named).architecture == "llama"


SIZES = (
    "vocab_size",
    "hidden_size",
    "intermediate_size",
    "num_hidden_layers",
    "num_attention_heads",
    "num_key_value_heads",
    "head_dim",
    "max_position_embeddings",
)
BAD_SIZES = (0, -1, 2**62, 10**400, True, "64", 64.0, float("nan"), [64], {"a": 1})


@pytest.mark.parametrize("name", SIZES)
@pytest.mark.parametrize("value", BAD_SIZES, ids=lambda value: str(value)[:12])
def test_a_hostile_size_is_refused_by_field(name: str, value: Any) -> None:
    with pytest.raises(CheckpointError, match=f"{name} ") as caught:
        read_config(config(**{name: value}))
    assert len(str(caught.value)) < 200


@pytest.mark.parametrize("name", [n for n in SIZES if n not in ("num_key_value_heads", "head_dim")])
def test_a_missing_size_is_refused_by_field(name: str) -> None:
    with pytest.raises(CheckpointError, match=f"{name} is missing"):
        read_config({k: v for k, v in PLAIN.items() if k != name})


GGUF_SIZES = (
    "block_count",
    "context_length",
    "embedding_length",
    "feed_forward_length",
    "attention__head_count",
    "attention__head_count_kv",
    "attention__key_length",
)


@pytest.mark.parametrize("name", GGUF_SIZES)
@pytest.mark.parametrize("value", BAD_SIZES, ids=lambda value: str(value)[:12])
def test_a_hostile_gguf_size_is_refused_by_key(name: str, value: Any) -> None:
    with pytest.raises(CheckpointError, match=f"llama.{name.replace('__', '.')} "):
        read_gguf(gguf(**{name: value}), SHAPES)


@pytest.mark.parametrize(
    ("name", "value"),
    [
        ("rms_norm_eps", -1e-6),
        ("rms_norm_eps", "1e-6"),
        ("rms_norm_eps", float("nan")),
        ("rope_theta", 0),
        ("rope_theta", -10000.0),
        ("rope_theta", float("inf")),
        ("tie_word_embeddings", 1),
        ("attention_bias", "true"),
        ("mlp_bias", 0),
        ("hidden_act", 5),
        ("text_config", []),
        ("rope_parameters", 1),
    ],
)
def test_a_value_of_another_type_is_refused_by_field(name: str, value: Any) -> None:
    with pytest.raises(CheckpointError, match=name):
        read_config(config(**{name: value}))


def test_a_config_that_is_no_object_is_refused() -> None:
    broken: Any = [1]
    with pytest.raises(CheckpointError, match=r"config\.json: must hold an object"):
        read_config(broken)


def test_the_context_is_the_smaller_of_two() -> None:
    assert read_config(PLAIN).context_length == 512
    assert read_config(PLAIN, 100).context_length == 100
    assert read_config(PLAIN, 5000).context_length == 512
    assert read_gguf(GGUF, SHAPES, 100).context_length == 100
    assert read_gguf(GGUF, SHAPES, 5000).context_length == 512
    for bad in (0, -5, True, 1.5):
        with pytest.raises(InvalidRequest, match="max_context"):
            read_config(PLAIN, bad)  # type: ignore[arg-type]
        with pytest.raises(InvalidRequest, match="max_context"):
            read_gguf(GGUF, SHAPES, bad)  # type: ignore[arg-type]


def test_dynamic_rope_reaches_as_far_as_it_was_configured() -> None:
    dynamic = config(rope_scaling={"type": "dynamic", "factor": 2.0})
    within = read_config(dynamic)
    assert within.context_length == 512
    assert within.rope.inverse_frequencies == read_config(PLAIN).rope.inverse_frequencies
    beyond = read_config(dynamic, 900)
    assert beyond.context_length == 900
    assert beyond.rope.inverse_frequencies[-1] < within.rope.inverse_frequencies[-1]
    assert read_config(dynamic, 9000).context_length == 1024


def test_longrope_takes_its_table_from_the_configured_context() -> None:
    scaling = {"type": "longrope", "short_factor": [1.0] * 8, "long_factor": [2.0] * 8}
    written = config(rope_scaling=scaling, original_max_position_embeddings=128)
    plain = read_config(PLAIN).rope.inverse_frequencies
    assert read_config(written, 128).rope.inverse_frequencies == plain
    long = read_config(written, 129).rope
    assert long.inverse_frequencies == tuple(f / 2 for f in plain)
    assert long.attention_factor == read_config(written).rope.attention_factor > 1


def test_gguf_says_the_same_as_a_config() -> None:
    metadata = gguf(attention__head_count_kv=2, rope__freq_base=1e5, rope__dimension_count=16)
    metadata["tokenizer.ggml.bos_token_id"] = 1
    found = read_gguf(metadata, SHAPES | {"output.weight": (100, 64)})
    wanted = config(num_key_value_heads=2, rope_theta=1e5, rms_norm_eps=1e-5, bos_token_id=1)
    assert found == read_config(wanted)
    assert read_gguf(metadata, SHAPES).tied_head


def test_gguf_scalings() -> None:
    plain = read_gguf(GGUF, SHAPES).rope
    linear = read_gguf(gguf(rope__scaling__type="linear", rope__scaling__factor=4.0), SHAPES)
    assert linear.rope.inverse_frequencies == tuple(f / 4 for f in plain.inverse_frequencies)
    assert read_gguf(gguf(rope__scale_linear=4.0), SHAPES).rope == linear.rope
    yarn = gguf(rope__scaling__type="yarn", rope__scaling__factor=4.0)
    found = read_gguf(yarn | {"llama.rope.scaling.original_context_length": 128}, SHAPES)
    wanted = {"type": "yarn", "factor": 4.0, "original_max_position_embeddings": 128}
    assert found.rope == read_config(config(rope_scaling=wanted)).rope
    with pytest.raises(UnsupportedModel, match="spiral"):
        read_gguf(gguf(rope__scaling__type="spiral"), SHAPES)


def test_gguf_rope_factors_divide_and_may_not_be_forgotten() -> None:
    shapes = SHAPES | {"rope_freqs.weight": (8,)}
    with pytest.raises(CheckpointError, match=r"rope_freqs\.weight"):
        read_gguf(GGUF, shapes)
    plain = read_gguf(GGUF, SHAPES).rope.inverse_frequencies
    found = read_gguf(GGUF, shapes, rope_factors={ROPE_FACTORS: [1.0] * 4 + [8.0] * 4}).rope
    assert found.inverse_frequencies == plain[:4] + tuple(f / 8 for f in plain[4:])
    for bad in ([1.0] * 7, [0.0] * 8, [float("nan")] * 8):
        with pytest.raises(CheckpointError, match=r"rope_freqs\.weight"):
            read_gguf(GGUF, shapes, rope_factors={ROPE_FACTORS: bad})


@pytest.mark.parametrize(
    ("changes", "word"),
    [
        ({"expert_weights_scale": 2.0}, "expert_weights_scale"),
        ({"rope__dimension_count": 8}, "rope.dimension_count"),
        ({"attention__value_length": 32}, "attention.value_length"),
        ({"attention__sliding_window": 64}, "attention.sliding_window"),
        ({"wobble": 1}, "wobble"),
    ],
)
def test_a_gguf_option_that_is_not_understood_is_refused(
    changes: dict[str, Any], word: str
) -> None:
    with pytest.raises(UnsupportedModel, match=word):
        read_gguf(gguf(**changes), SHAPES)


@pytest.mark.parametrize("shape", [None, (100,), (100, 63), (0, 64), (2**40, 64)])
def test_gguf_vocabulary_is_the_embedding_s(shape: tuple[int, ...] | None) -> None:
    with pytest.raises(CheckpointError, match=r"token_embd\.weight"):
        read_gguf(GGUF, {} if shape is None else {"token_embd.weight": shape})


JSON = st.recursive(
    st.none() | st.booleans() | st.integers() | st.floats() | st.text(max_size=5),
    lambda inner: st.lists(inner, max_size=3) | st.dictionaries(st.text(max_size=5), inner),
    max_leaves=5,
)
NAMES = st.sampled_from([*SIZES, "rope_theta", "rope_scaling", "rope_parameters", "text_config"])
SCALING = st.dictionaries(st.sampled_from(["type", "factor", "rope_theta", "beta_fast"]), JSON)


@settings(deadline=None, max_examples=200)
@given(st.dictionaries(NAMES, JSON | SCALING, max_size=3))
def test_whatever_a_config_says_the_answer_is_a_spec_or_our_error(
    changes: dict[str, Any],
) -> None:
    try:
        spec = read_config(PLAIN | changes)
    except FirsthandError as error:
        assert len(str(error)) < 500
    else:
        assert spec.num_heads % spec.num_kv_heads == 0
        assert len(spec.rope.inverse_frequencies) == spec.head_size // 2
