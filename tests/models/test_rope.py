"""The frequencies of every scaling: the numbers of MODEL-1 to 3, and the library's own formulas.

Owns: what `models/rope.py` gives. May not know: files. Read next: `test_scaling.py`.
"""

from __future__ import annotations

import math
import random
from typing import Any

import pytest

from firsthand.models import rope


def test_model_1_numbers_of_llama3() -> None:
    found = rope.llama3(10000.0, 8, 8.0, 1.0, 4.0, 8192)
    assert found == pytest.approx([1, 0.1, 0.01, 0.000213607544], rel=1e-7)


def test_model_2_numbers_of_yarn_and_linear() -> None:
    assert rope.yarn_attention_factor(4.0) == pytest.approx(1.138629436, abs=5e-10)
    assert rope.yarn_attention_factor(32.0) == pytest.approx(1.346573590, abs=5e-10)
    plain = rope.default(10000.0, 8)
    assert rope.linear(10000.0, 8, 4.0) == tuple(f / 4 for f in plain)


def test_model_3_number_of_a_nested_theta() -> None:
    assert rope.default(1e6, 8)[1] == pytest.approx(0.0316228, abs=5e-8)
    assert rope.default(1e6, 8)[1] == pytest.approx(1e6**-0.25)


def test_dynamic_is_plain_within_the_trained_context() -> None:
    plain = rope.default(10000.0, 16)
    assert rope.dynamic(10000.0, 16, 2.0, 1024, 512) == plain
    assert rope.dynamic(10000.0, 16, 2.0, 1024, 2048)[-1] < plain[-1]


def test_divided_refuses_a_table_of_another_length() -> None:
    with pytest.raises(ValueError, match="shorter"):
        rope.divided((1.0, 0.5), (1.0,))


def scaling(kind: str, rng: random.Random, half: int) -> dict[str, Any]:
    """Random numbers of one scaling, as a config has them."""
    fields: dict[str, Any] = {"rope_type": kind, "factor": rng.choice([1.0, 1.5, 4.0, 32.0])}
    fields["rope_theta"] = rng.choice([10000.0, 500000.0, 12345.0])
    if kind in ("llama3", "yarn", "longrope"):
        fields["original_max_position_embeddings"] = rng.choice([16, 64, 8192])
    if kind == "llama3":
        low = rng.choice([0.5, 1.0])
        fields |= {"low_freq_factor": low, "high_freq_factor": low + rng.choice([0.5, 3.0])}
    if kind == "yarn":
        fields |= rng.choice([{}, {"beta_fast": 16.0, "beta_slow": 2.0}, {"truncate": False}])
        fields |= rng.choice([{}, {"attention_factor": 0.7}, {"mscale": 1.0}])
        fields |= rng.choice([{}, {"mscale": 0.7, "mscale_all_dim": 1.2}])
    if kind == "longrope":
        fields["short_factor"] = [rng.uniform(1, 2) for _ in range(half)]
        fields["long_factor"] = [rng.uniform(1, 60) for _ in range(half)]
    return fields


@pytest.mark.oracle
@pytest.mark.parametrize("kind", ["default", "linear", "dynamic", "yarn", "llama3", "longrope"])
def test_every_scaling_is_the_library_s_own(kind: str) -> None:
    """The library computes in float32, so it agrees to a few of float32's steps."""
    pytest.importorskip("transformers")
    from transformers import LlamaConfig
    from transformers.modeling_rope_utils import ROPE_INIT_FUNCTIONS
    from transformers.models.llama.modeling_llama import LlamaRotaryEmbedding

    from firsthand.models.families import read_config

    rng = random.Random(7)
    for _ in range(12):
        head_size = rng.choice([4, 8, 16, 64, 128])
        fields = scaling(kind, rng, head_size // 2)
        if kind == "default":
            del fields["factor"]
        sizes = {"hidden_size": 4 * head_size, "num_attention_heads": 4, "head_dim": head_size}
        sizes |= {"intermediate_size": 8, "num_hidden_layers": 1, "vocab_size": 9}
        trained = rng.choice([8192, 20000])
        config = LlamaConfig(**sizes, max_position_embeddings=trained, rope_parameters=dict(fields))
        context = 3 * trained // 2 if kind == "dynamic" and fields["factor"] >= 1.5 else trained
        if kind == "default":
            theirs, factor = LlamaRotaryEmbedding.compute_default_rope_parameters(config)
        else:
            theirs, factor = ROPE_INIT_FUNCTIONS[kind](config, seq_len=context)
        written = sizes | {"architectures": ["LlamaForCausalLM"], "rope_parameters": fields}
        written["max_position_embeddings"] = trained
        ours = read_config(written, max_context=context).rope
        assert ours.kind == kind
        assert ours.inverse_frequencies == pytest.approx(theirs.tolist(), rel=3e-6)
        assert math.isclose(ours.attention_factor, factor, rel_tol=1e-12)
