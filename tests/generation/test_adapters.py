"""Adapters against peft, through the files that it saves: logits, tokens, and equal bits.

Owns: the proof that a row with an adapter is computed as peft computes it, and that neither it nor
its neighbours depend on each other. May not know: how an adapter is read or added.
Read next: `weights/adapters.py`.
"""

from __future__ import annotations

import copy
import shutil
from collections.abc import Iterator
from dataclasses import dataclass
from itertools import pairwise
from pathlib import Path
from typing import Any

import numpy as np
import pytest
from numpy.typing import NDArray

pytest.importorskip("peft")
pytest.importorskip("transformers")
import peft
import torch
from safetensors.torch import load_file

from firsthand.compute.batch import FlatBatch
from firsthand.compute.fusion import RULES
from firsthand.errors import InvalidRequest
from firsthand.generation.llm import LLM
from firsthand.generation.load_options import LoadOptions
from firsthand.generation.loading import LoadedModel, load_model
from firsthand.generation.reading import slots_of
from firsthand.weights.merging import merge
from tests.models.tiny_families import build, greedy, oracle

pytestmark = [
    *(pytest.mark.oracle, pytest.mark.torch, pytest.mark.native),
    pytest.mark.filterwarnings("ignore:.is_gradient_checkpointing. is deprecated:FutureWarning"),
]

ATTENTION = ["q_proj", "k_proj", "v_proj", "o_proj"]
# Of each family, two adapters as peft is told of them.
ADAPTERS: dict[str, tuple[dict[str, Any], dict[str, Any]]] = {
    "llama": (
        {"target_modules": "all-linear", "r": 4, "lora_alpha": 9},
        {
            "target_modules": ["q_proj", "down_proj", "lm_head"],
            "r": 20,
            "lora_alpha": 3,
            "use_rslora": True,
        },
    ),
    "qwen2": (
        {"target_modules": ["v_proj", "up_proj"], "r": 1, "lora_alpha": 2},
        {
            "target_modules": ATTENTION,
            "r": 6,
            "lora_alpha": 5,
            "rank_pattern": {"k_proj": 3, "layers.1.self_attn.q_proj": 7},
            "alpha_pattern": {"^model.layers.0.self_attn.o_proj": 11},
        },
    ),
    "gemma2": (
        {"target_modules": ["gate_proj", "up_proj", "down_proj"], "r": 8, "lora_alpha": 8},
        {"target_modules": "all-linear", "r": 3, "lora_alpha": 4, "layers_to_transform": None},
    ),
    "phi3": (
        {"target_modules": "all-linear", "r": 5, "lora_alpha": 6},
        {"target_modules": ["qkv_proj"], "r": 16, "lora_alpha": 16},
    ),
    "qwen2 moe": (
        {"target_modules": ATTENTION, "r": 4, "lora_alpha": 4},
        {
            "target_modules": ["q_proj", "shared_expert.down_proj"],
            "target_parameters": ["mlp.experts.gate_up_proj", "mlp.experts.down_proj"],
            "r": 3,
            "lora_alpha": 4,
        },
    ),
    "mixtral": (
        {"target_modules": [], "target_parameters": ["experts.down_proj"], "r": 4, "lora_alpha": 5},
        {"target_modules": ["v_proj"], "target_parameters": ["experts.gate_up_proj"], "r": 2},
    ),
}
NAMES = ("first", "second")


@dataclass(frozen=True)
class Made:
    """Models of peft by the adapter's name, "" for the plain one; and the folders."""

    models: dict[str, Any]
    folder: Path
    adapters: dict[str, str]


@pytest.fixture(scope="module", params=ADAPTERS)
def made(request: pytest.FixtureRequest, tmp_path_factory: pytest.TempPathFactory) -> Made:
    folder = tmp_path_factory.mktemp("base")
    base = build(request.param, folder)
    models, adapters = {"": base}, {}
    for seed, (name, settings) in enumerate(zip(NAMES, ADAPTERS[request.param], strict=True)):
        model = adapted(copy.deepcopy(base), settings, seed)
        path = tmp_path_factory.mktemp(name)
        model.save_pretrained(path, save_embedding_layers=False)
        models[name], adapters[name] = model.base_model.model, str(path)
    return Made(models, folder, adapters)


def adapted(base: Any, settings: dict[str, Any], seed: int) -> Any:
    """A model of peft whose adapter is as large as what it is added to."""
    model = peft.get_peft_model(base, peft.LoraConfig(task_type="CAUSAL_LM", **settings)).eval()
    torch.manual_seed(seed)
    with torch.no_grad():
        for name, values in model.named_parameters():
            if "lora_" in name:
                values.normal_(0.0, values.shape[-1] ** -0.5)
    return model


@pytest.fixture(scope="module", autouse=True)
def one_thread() -> Iterator[None]:
    before = torch.get_num_threads()
    torch.set_num_threads(1)
    yield
    torch.set_num_threads(before)


def options(made: Made, **changes: Any) -> LoadOptions:
    chosen: dict[str, Any] = {"quantization": "none", "kv_dtype": "float32", "max_sequences": 4}
    chosen |= {"max_step_tokens": 128, "max_logit_rows": 128, "lora": made.adapters}
    return LoadOptions(**(chosen | changes))


def prompt(length: int, seed: int = 1) -> list[int]:
    return [int(x) for x in np.random.default_rng(seed).integers(0, 256, length)]


@dataclass(frozen=True)
class Piece:
    """Tokens `start` … `stop` of a prompt in place `sequence` of the store, with its adapter."""

    sequence: int
    start: int
    ids: list[int]
    adapter: str


def run(model: LoadedModel, *pieces: Piece) -> list[NDArray[np.float32]]:
    """(T, V) of each piece, from one step."""
    size = model.store.block_size
    num_blocks = -(-model.spec.context_length // size)
    ends = np.cumsum([0, *(len(one.ids) for one in pieces)])
    blocks = [
        [model.store.block_start(one.sequence * num_blocks + b) for b in range(num_blocks)]
        for one in pieces
    ]
    places = [np.arange(one.start, one.start + len(one.ids)) for one in pieces]
    names = tuple(one.adapter for one in pieces)
    step = FlatBatch(
        token_ids=np.array([token for one in pieces for token in one.ids], np.int32),
        positions=np.concatenate(places).astype(np.int32),
        row_starts=ends.astype(np.int32),
        block_starts=np.array(blocks, np.int64),
        block_size=size,
        logit_rows=np.arange(ends[-1], dtype=np.int32),
        adapters=names if any(names) else (),
    )
    logits = model.executor.run(step, model.store).copy()
    return [logits[a:b] for a, b in pairwise(ends)]


def rms(error: NDArray[Any]) -> float:
    return float(np.sqrt(np.mean(np.square(error, dtype=np.float64))))


def test_logits_are_those_of_peft(made: Made) -> None:
    """Three sequences in one step: one adapter, another, and none. Our error against float64 is at
    most twice that of transformers and peft at the same precision."""
    ids = prompt(40)
    pieces = [Piece(s, 0, ids, name) for s, name in enumerate(("first", "", "second"))]
    for executor in ("native", "torch"):
        model = load_model(made.folder, options(made, executor=executor))
        found = run(model, *pieces)
        for piece, logits in zip(pieces, found, strict=True):
            single, double = oracle(made.models[piece.adapter], model.spec, ids)
            theirs = single - double
            assert 0 < rms(theirs) < 1e-4 * rms(double)
            assert rms(logits - double) <= 2 * rms(theirs), (executor, piece.adapter)
            assert np.abs(logits - double).max() <= 4 * np.abs(theirs).max()
        assert rms(found[0] - found[1]) > 0.1 * rms(found[1]) < rms(found[2] - found[1]) * 100


def test_a_row_does_not_depend_on_its_company(made: Made) -> None:
    """F43. Alone = beside rows of another adapter, of none and of its own; whole = cut; 1 thread =
    3 threads, fused = as recorded; and a row without has the bits of a model without any."""
    model = load_model(made.folder, options(made, threads=1))
    plain = load_model(made.folder, options(made, threads=1, lora=None))
    ids = [prompt(length, seed) for seed, length in enumerate((37, 30, 21, 9))]
    names = ["first", "", "second", "first"]
    alone = [run(model, Piece(s, 0, ids[s], names[s]))[0] for s in range(4)]
    np.testing.assert_array_equal(run(plain, Piece(1, 0, ids[1], ""))[0], alone[1])
    every = tuple(rule.name for rule in RULES)
    more = (options(made, threads=3), options(made, disabled_rules=every))
    for other in (model, *(load_model(made.folder, one) for one in more)):
        first = run(other, *(Piece(s, 0, ids[s][:8], names[s]) for s in (3, 0, 1, 2)))
        rest = run(other, *(Piece(s, 8, ids[s][8:], names[s]) for s in (1, 2, 3, 0)))
        whole = {s: first[at] for at, s in enumerate((3, 0, 1, 2))}
        for at, s in enumerate((1, 2, 3, 0)):
            np.testing.assert_array_equal(np.concatenate((whole[s], rest[at])), alone[s])


def test_tokens_are_those_of_peft(made: Made) -> None:
    """Through the engine: prefixes are shared within one adapter only, and what is asked of a
    prompt is asked of its adapter."""
    with LLM(load_model(made.folder, options(made))) as llm:
        ids = prompt(40)
        for name in ("", "first", "second", "first"):
            wanted = greedy(made.models[name], ids, 8)
            given: dict[str, Any] = {"max_tokens": 8, "temperature": 0, "ignore_end": True}
            done = llm.generate(ids, adapter=name, prompt_logprobs=0, **given)
            assert list(done.token_ids) == wanted
            with torch.inference_mode():
                logits = made.models[name](torch.tensor([ids])).logits[0]
            scores = torch.log_softmax(logits.double(), dim=-1).numpy()
            told = [one.logprob for one in done.prompt_logprobs[1:]]
            expected = [scores[at, token] for at, token in enumerate(ids[1:])]
            np.testing.assert_allclose(told, expected, atol=2e-4)
        with pytest.raises(InvalidRequest, match="'third' is not here; there are: first, second"):
            llm.generate(ids, adapter="third")


@pytest.mark.parametrize("dtype", [torch.float32, torch.bfloat16])
def test_a_merged_model_is_that_of_peft(made: Made, tmp_path: Path, dtype: torch.dtype) -> None:
    """Each changed tensor is the exact sum, rounded once; peft's is at most two roundings away.
    transformers loads the folder, and so do we."""
    source = tmp_path / "source"
    source.mkdir()
    base = copy.deepcopy(made.models[""]).to(dtype)
    base.save_pretrained(source)
    for name in ("tokenizer.json", "tokenizer_config.json"):
        shutil.copy(made.folder / name, source)
    report = merge(source, Path(made.adapters["first"]), tmp_path / "merged", slots_of)
    theirs = peft.PeftModel.from_pretrained(base, made.adapters["first"]).merge_and_unload()
    ours = type(base).from_pretrained(tmp_path / "merged", dtype="auto").state_dict()
    plain = load_file(source / "model.safetensors")
    found = load_file(tmp_path / "merged" / "model.safetensors")
    assert found.keys() == plain.keys()
    assert sum(not torch.equal(plain[name], found[name]) for name in found) == report.num_changed
    before = made.models[""].state_dict()
    for name, wanted in theirs.state_dict().items():
        assert ours[name].dtype == dtype
        if name in found:  # experts are joined by transformers, and a tied head is the embedding
            assert torch.equal(ours[name], found[name])
        size = torch.finfo(dtype).eps * (before[name].abs() + wanted.abs()).float()
        assert bool(((ours[name] - wanted).abs() <= 2 * size + 2e-6).all()), name
    load_model(tmp_path / "merged", LoadOptions(quantization="none", max_sequences=1))
