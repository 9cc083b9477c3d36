"""The torch executor against an independent implementation, and against itself.

Owns: the proof that the reference is right. May not know: other executors.
Read next: `test_lessons.py`, the proof that these checks can fail.
"""

from __future__ import annotations

from typing import Any

import numpy as np
import pytest
from numpy.typing import NDArray

pytest.importorskip("torch")
import torch

from firsthand.compute.executor import Held
from firsthand.compute.torch.executor import TorchExecutor
from firsthand.errors import EngineError, InvalidRequest
from firsthand.models.families import read_config
from firsthand.models.spec import ModelSpec
from tests.compute.torch.tiny import (
    VOCAB,
    ArraySource,
    ArrayStore,
    Piece,
    config,
    flat,
    in_steps,
    load,
    prompt,
    random_weights,
    ready,
    whole,
)

pytestmark = pytest.mark.torch

YARN = {"rope_type": "yarn", "factor": 8.0, "original_max_position_embeddings": 32}
LLAMA3 = {"rope_type": "llama3", "factor": 8.0, "original_max_position_embeddings": 32}
LONGROPE = {"rope_type": "longrope", "original_max_position_embeddings": 32}
CONFIGS: dict[str, dict[str, Any]] = {
    "odd heads, own head size": {},
    "grouped": {"hidden_size": 48, "num_attention_heads": 6, "num_key_value_heads": 2},
    "three groups": {"hidden_size": 48, "num_attention_heads": 6, "num_key_value_heads": 3},
    "no groups": {"num_key_value_heads": 3, "head_dim": None},
    "five heads on one": {"hidden_size": 40, "num_attention_heads": 5},
    "tied": {"tie_word_embeddings": True},
    "attention biases": {"attention_bias": True},
    "mlp biases": {"mlp_bias": True, "hidden_act": "gelu_pytorch_tanh"},
    "large theta": {"rope_theta": 1e6},
    "linear": {"rope_scaling": {"rope_type": "linear", "factor": 4.0}},
    "yarn": {"rope_scaling": YARN},
    "yarn with its own factor": {"rope_scaling": YARN | {"attention_factor": 0.8}},
    "llama3": {"rope_scaling": LLAMA3 | {"low_freq_factor": 1.0, "high_freq_factor": 4.0}},
    "longrope": {
        "rope_scaling": LONGROPE
        | {"short_factor": [1.0] * 8, "long_factor": [1.0 + i for i in range(8)]}
    },
    "dynamic": {
        "rope_scaling": {"rope_type": "dynamic", "factor": 4.0},
        "max_position_embeddings": 64,
    },
}


def oracle(
    written: dict[str, Any], weights: dict[str, NDArray[np.float32]], token_ids: list[int]
) -> tuple[NDArray[np.float64], NDArray[np.float64]]:
    """Logits of transformers' LlamaForCausalLM in float32 and in float64.

    Its float64 run still turns by float32 frequencies, so there the angles are its own formula,
    taken in float64: theirs and ours are compared number by number in `test_rope.py`.
    """
    from transformers import LlamaConfig, LlamaForCausalLM

    written = {k: v for k, v in written.items() if k not in ("architectures", "rope_scaling")}
    found = LlamaConfig(**written, attn_implementation="eager")
    model = LlamaForCausalLM(found).eval()
    state = {name: torch.tensor(values) for name, values in weights.items()}
    missing, unexpected = model.load_state_dict(state, strict=False)
    assert set(missing) <= {"lm_head.weight"}
    assert not unexpected
    model.tie_weights()
    with torch.inference_mode():
        single = model(torch.tensor([token_ids])).logits[0].double().numpy()
        model = model.double()
        model.model.rotary_emb.forward = turn_in_float64(written, found)
        double = model(torch.tensor([token_ids])).logits[0].numpy()
    return single, double


def turn_in_float64(written: dict[str, Any], found: Any) -> Any:
    context = len(CONTEXT) if written["max_position_embeddings"] < len(CONTEXT) else None
    rope = read_config({**written, "architectures": ["LlamaForCausalLM"]}, context).rope
    frequencies = torch.tensor(rope.inverse_frequencies, dtype=torch.float64)

    def forward(x: Any, position_ids: Any) -> Any:
        angles = position_ids[..., None].double() * frequencies
        both = torch.cat((angles, angles), dim=-1)
        return both.cos() * rope.attention_factor, both.sin() * rope.attention_factor

    return forward


CONTEXT = prompt(100)


@pytest.mark.oracle
@pytest.mark.parametrize("name", CONFIGS)
def test_logits_are_those_of_transformers(name: str) -> None:
    """Our error against float64 is at most twice that of transformers at the same precision
    (root mean square), and no single logit is far off."""
    pytest.importorskip("transformers")
    written = config(**CONFIGS[name])
    written["rope_parameters"] = {"rope_theta": written.pop("rope_theta", 10000.0)}
    written["rope_parameters"] |= written.get("rope_scaling") or {"rope_type": "default"}
    reach = len(CONTEXT) if name == "dynamic" else None
    spec = read_config(written, reach)
    weights = random_weights(spec)
    single, double = oracle(written, weights, CONTEXT)
    theirs = single - double
    assert 0 < rms(theirs) < 1e-4 * rms(double)
    executor = TorchExecutor(attention="formula")
    load(executor, spec, weights)
    found = {"at once": whole(executor, spec, CONTEXT)}
    found["step by step"] = in_steps(executor, spec, CONTEXT, [40] + [1] * 60)
    for way, logits in found.items():
        ours = logits - double
        assert rms(ours) <= 2 * rms(theirs), way
        assert np.abs(ours).max() <= 4 * np.abs(theirs).max(), way


def rms(error: NDArray[Any]) -> float:
    return float(np.sqrt(np.mean(np.square(error, dtype=np.float64))))


@pytest.fixture(scope="module")
def spec() -> ModelSpec:
    return read_config(config())


@pytest.fixture(scope="module")
def exact(spec: ModelSpec) -> NDArray[Any]:
    """Our own float64 answer: the store holds float64 too, so nothing is rounded on the way."""
    executor = ready(TorchExecutor(attention="formula", dtype="float64"))
    logits = executor.run(flat([Piece(CONTEXT)]), ArrayStore(spec, "float64")).copy()
    assert logits.dtype == np.float64
    return np.asarray(logits)


@pytest.mark.parametrize("attention", ["formula", "tiled", "fast"])
def test_the_three_ways_of_attention_agree(
    attention: Any, spec: ModelSpec, exact: NDArray[Any]
) -> None:
    """S28: the plain formula's error sets the bound; 100 positions are two tiles."""
    plain = rms(whole(ready(TorchExecutor(attention="formula")), spec, CONTEXT) - exact)
    executor = ready(TorchExecutor(attention=attention))
    for sizes in ([100], [1] * 100, [63, 1, 1, 35], [7] * 14 + [2]):
        error = in_steps(executor, spec, CONTEXT, sizes) - exact
        assert rms(error) <= 2 * plain
        assert np.abs(error).max() < 1e-4


@pytest.mark.parametrize("attention", ["formula", "tiled", "fast"])
def test_a_batch_is_its_sequences(attention: Any, spec: ModelSpec) -> None:
    """Several sequences in one step, at different stages, on shuffled blocks, are each alone."""
    executor = ready(TorchExecutor(attention=attention))
    prompts = [prompt(n, seed) for seed, n in enumerate([1, 37, 11, 70])]
    alone = [whole(executor, spec, ids) for ids in prompts]
    blocks = np.random.default_rng(3).permutation(64).reshape(4, 16).tolist()
    store = ArrayStore(spec)
    cuts = [0, 20, 10, 64]
    first = [Piece(p[:c], 0, b) for p, c, b in zip(prompts, cuts, blocks, strict=True) if c]
    second = [Piece(p[c:], c, b) for p, c, b in zip(prompts, cuts, blocks, strict=True)]
    executor.run(flat(first), store)
    logits = executor.run(flat(second), store)
    wanted = np.concatenate([rows[cut:] for rows, cut in zip(alone, cuts, strict=True)])
    np.testing.assert_allclose(logits, wanted, rtol=0, atol=2e-5)
    rows = executor.run(flat(second, last_rows_only=True), store)
    assert rows.shape == (4, VOCAB)
    np.testing.assert_allclose(rows, [rows_[-1] for rows_ in alone], rtol=0, atol=2e-5)


def test_keys_and_values_are_read_back_rounded(spec: ModelSpec) -> None:
    """Also those of this step: one step and many see the same rounded numbers (S26)."""
    executor = ready(TorchExecutor(attention="formula"))
    store = ArrayStore(spec, "float16")
    once = executor.run(flat([Piece(CONTEXT)]), store).copy()
    assert np.abs(once - whole(executor, spec, CONTEXT)).max() > 1e-4  # rounding is seen
    store, found = ArrayStore(spec, "float16"), []
    for start in range(0, 100, 10):
        found.append(executor.run(flat([Piece(CONTEXT[start : start + 10], start)]), store).copy())
    np.testing.assert_allclose(np.concatenate(found), once, rtol=0, atol=2e-3)
    poisoned, _ = store.layer(0).read(np.array([0]))
    assert np.isnan(poisoned).all()  # a slot that no position owns was never written


def test_stale_memory_is_never_read(spec: ModelSpec) -> None:
    """A block that another sequence has left full gives the same answer as a fresh one."""
    executor = ready(TorchExecutor())
    store = ArrayStore(spec)
    fresh = executor.run(flat([Piece(CONTEXT[:30])]), store).copy()
    executor.run(flat([Piece(prompt(90, seed=8))]), store)
    assert np.array_equal(executor.run(flat([Piece(CONTEXT[:30])]), store), fresh)


def test_trace_has_the_same_bits_and_names_every_operator(spec: ModelSpec) -> None:
    executor = ready(TorchExecutor())
    batch = flat([Piece(CONTEXT[:12]), Piece([5, 6], 0, [0])], last_rows_only=True)
    plain = executor.run(batch, ArrayStore(spec)).copy()
    logits, times = executor.trace(batch, ArrayStore(spec))
    assert np.array_equal(logits, plain)
    layer = ["norm", "linear", "rope", "linear", "rope", "linear", "store", "attend", "linear"]
    layer += ["add", "norm", "linear", "linear", "activation", "linear", "add"]
    assert [time.name for time in times] == ["embed", *layer, *layer, "norm", "head"]
    assert all(time.ms >= 0 for time in times)
    assert (times[0].shape, times[-1].shape) == ((14, 24), (2, VOCAB))
    assert times[0].num_bytes == 14 * 24 * 4
    assert times[-1].num_bytes == VOCAB * 24 * 4
    attend = next(time for time in times if time.name == "attend")
    assert (attend.shape, attend.num_bytes) == ((14, 48), 2 * (12 + 2) * 16 * 4)
    assert attend.num_macs == 2 * (78 + 3) * 48  # 1 + … + 12 positions, and 1 + 2
    assert times[-1].num_macs == 2 * VOCAB * 24
    assert next(time for time in times if time.name == "linear").num_macs == 14 * 48 * 24


def test_weights_are_held_once_and_sources_let_go(spec: ModelSpec) -> None:
    executor = TorchExecutor()
    source = ArraySource("w", np.ones((7, 3), np.float32))
    executor.load_weight(source)
    executor.alias("same", "w")
    assert executor.memory() == Held(weights_bytes=7 * 3 * 4, scratch_bytes=0)
    assert source.released == 1


@pytest.mark.parametrize(
    ("options", "field"),
    [
        ({"device": "tpu"}, "device"),
        pytest.param({"device": "x" * 10**6}, "device", id="long"),
        ({"attention": "x"}, "attention"),
        ({"dtype": "x"}, "dtype"),
    ],
)
def test_an_unknown_option_is_refused_by_name(options: dict[str, Any], field: str) -> None:
    with pytest.raises(InvalidRequest, match=f"{field}: must be one of") as refused:
        TorchExecutor(**options)
    assert len(str(refused.value)) < 300


def test_cuda_is_refused_where_there_is_none(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(torch.cuda, "is_available", lambda: False)
    with pytest.raises(InvalidRequest, match="device: 'cuda'"):
        TorchExecutor(device="cuda")


@pytest.mark.gpu
def test_cuda_gives_the_same_values(spec: ModelSpec, exact: NDArray[Any]) -> None:
    if not torch.cuda.is_available():
        pytest.skip("no CUDA device")
    found = whole(ready(TorchExecutor(device="cuda")), spec, CONTEXT)
    assert np.abs(found - exact).max() < 1e-4


@pytest.mark.parametrize(
    ("piece", "word"),
    [
        (Piece([VOCAB]), "token id"),
        (Piece([-1]), "token id"),
        (Piece([1], start=256), "position"),
        (Piece([1] * 513), "513 tokens"),
    ],
)
def test_a_batch_outside_the_limits_is_our_fault(piece: Piece, word: str, spec: ModelSpec) -> None:
    with pytest.raises(EngineError, match=word):
        ready(TorchExecutor()).run(flat([piece]), ArrayStore(spec))
    with pytest.raises(EngineError, match="before it was prepared"):
        TorchExecutor().run(flat([Piece([1])]), ArrayStore(spec))
