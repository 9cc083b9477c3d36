"""Every family against transformers, through the files that it saves and the real loader.

Owns: the proof that a family's file computes the family, on both executors, and that the promise of
equal bits holds for each. May not know: other executors than through `load_model`.
Read next: `tiny_families.py`.
"""

from __future__ import annotations

import copy
import shutil
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import numpy as np
import pytest
from numpy.typing import NDArray

pytest.importorskip("transformers")
pytest.importorskip("torch")
import torch

from firsthand.cli.micro_model import VOCAB_SIZE
from firsthand.compute.batch import FlatBatch
from firsthand.errors import InvalidRequest
from firsthand.generation.llm import LLM
from firsthand.generation.load_options import LoadOptions
from firsthand.generation.loading import LoadedModel, load_model
from firsthand.models.spec import ModelSpec
from tests.models.tiny_families import CONFIGS, build, greedy, oracle

pytestmark = [pytest.mark.oracle, pytest.mark.torch, pytest.mark.native]

Logits = NDArray[np.float32]


@pytest.fixture(scope="module", params=CONFIGS)
def made(request: pytest.FixtureRequest, tmp_path_factory: pytest.TempPathFactory) -> Any:
    """(the model of transformers, the folder)"""
    folder = tmp_path_factory.mktemp("family")
    return build(request.param, folder), folder


@pytest.fixture(scope="module", autouse=True)
def one_thread() -> Iterator[None]:
    """So small a model is faster without others."""
    before = torch.get_num_threads()
    torch.set_num_threads(1)
    yield
    torch.set_num_threads(before)


def loaded(folder: Path, **changes: Any) -> LoadedModel:
    options: dict[str, Any] = {"quantization": "none", "kv_dtype": "float32", "max_sequences": 4}
    options |= {"max_step_tokens": 256, "max_logit_rows": 256}
    return load_model(folder, LoadOptions(**(options | changes)))


def prompt(length: int, seed: int = 1) -> list[int]:
    return [int(x) for x in np.random.default_rng(seed).integers(0, VOCAB_SIZE - 1, length)]


def run(model: LoadedModel, *pieces: tuple[int, int, list[int]]) -> Logits:
    """(T, V) of one step: (sequence, first position, token ids) each."""
    size = model.store.block_size
    num_blocks = -(-model.spec.context_length // size)
    ends = np.cumsum([0, *(len(ids) for _, _, ids in pieces)])
    places = [np.arange(start, start + len(ids)) for _, start, ids in pieces]
    blocks = [
        [model.store.block_start(s * num_blocks + b) for b in range(num_blocks)]
        for s, _, _ in pieces
    ]
    step = FlatBatch(
        token_ids=np.array([token for _, _, ids in pieces for token in ids], np.int32),
        positions=np.concatenate(places).astype(np.int32),
        row_starts=ends.astype(np.int32),
        block_starts=np.array(blocks, np.int64),
        block_size=size,
        logit_rows=np.arange(ends[-1], dtype=np.int32),
    )
    return model.executor.run(step, model.store).copy()


def in_steps(model: LoadedModel, ids: list[int], *sizes: int) -> Logits:
    found, start = [], 0
    for size in sizes:
        found.append(run(model, (0, start, ids[start : start + size])))
        start += size
    assert start == len(ids)
    return np.concatenate(found)


def rms(error: NDArray[Any]) -> float:
    return float(np.sqrt(np.mean(np.square(error, dtype=np.float64))))


def test_logits_are_those_of_transformers(made: Any) -> None:
    """Our error against float64 is at most twice that of transformers at the same precision
    (root mean square), and no single logit is far off."""
    model, folder = made
    ids = prompt(150)
    native = loaded(folder)
    single, double = oracle(model, native.spec, ids)
    theirs = single - double
    assert 0 < rms(theirs) < 1e-4 * rms(double)
    assert np.abs(theirs).max() < 1e-4
    found = {"native": run(native, (0, 0, ids))}
    found["native, cached"] = in_steps(native, ids, 100, 1, 1, 20, *[1] * 28)
    for attention in ("formula", "tiled", "fast"):
        reference = loaded(folder, executor="torch", attention=attention)
        found[attention] = in_steps(reference, ids, 147, 1, 1, 1)
    for way, logits in found.items():
        error = logits - double
        assert rms(error) <= 2 * rms(theirs), way
        assert np.abs(error).max() <= 4 * np.abs(theirs).max(), way


# Text of many kinds; the vocabulary has one token for each byte.
TEXTS = (
    "The quick brown fox jumps over the lazy dog.",
    "Съешь ещё этих мягких французских булок, да выпей чаю",
    "敏捷的棕色狐狸跳过懒狗，然后睡着了。",
    "いろはにほへと ちりぬるを",
    "نص حكيم له سر قاطع وذو شأن عظيم",
    "ऋषियों को सताने वाले दुष्ट राक्षसों के राजा",
    "👩‍🚀🧪🚀 👨‍👩‍👧‍👦 — ok?",
    "e\u0301 and é, \u202eback\u202c, \ufeff, \x00, \t\n\r",
    "1, 2, 3, 3.14159, 1e-300, -0",
    "aaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaa",
)
NUM_PROMPTS = 15  # of each of fourteen models


def prompts_of(spec: ModelSpec, count: int) -> list[list[int]]:
    """Each text, the lengths beside every border, and random ones of random lengths."""
    # LongRoPE of transformers has another table for what is shorter than the trained context.
    least = 129 if spec.rope.kind == "longrope" else 1
    longest = spec.context_length
    windows = {layer for layer in spec.windows if layer} or {64}
    borders = [1, longest, *(w + by for w in windows for by in (-1, 0, 1))]
    rng = np.random.default_rng(5)
    lengths = borders + [int(n) for n in rng.integers(least, longest, count)]
    texts = [list(text.encode()) for text in TEXTS]
    found = [(text * longest)[: max(len(text), least)] for text in texts]
    found += [prompt(max(length, least), seed) for seed, length in enumerate(lengths)]
    return found[:count]


def check_prompts(made: Any, count: int) -> None:
    model, folder = made
    ours = loaded(folder)
    prompts = prompts_of(ours.spec, count)
    assert len(prompts) == count
    for ids in prompts:
        found = run(ours, (0, 0, ids))
        with torch.inference_mode():
            wanted = model(torch.tensor([ids])).logits[0].numpy()
        assert np.abs(found - wanted).max() <= 1e-4
        top = wanted.argmax(axis=1)[:, None]
        apart = np.take_along_axis(wanted, top, 1) - np.take_along_axis(
            wanted, found.argmax(axis=1)[:, None], 1
        )
        assert apart.max() <= 1e-3  # where another token is the likeliest, both nearly are


def test_n_4_logits_of_two_hundred_prompts(made: Any) -> None:
    """Fifteen prompts of each model; the soak has two hundred of each."""
    assert NUM_PROMPTS * len(CONFIGS) >= 200
    check_prompts(made, NUM_PROMPTS)


@pytest.mark.slow
@pytest.mark.soak
def test_n_4_logits_of_two_hundred_prompts_of_each_model(made: Any) -> None:
    check_prompts(made, 200)


def test_n_4_an_empty_prompt_is_refused(made: Any) -> None:
    """These models have no token to begin with; transformers refuses it as well."""
    model, folder = made
    with LLM(loaded(folder)) as llm, pytest.raises(InvalidRequest, match="prompt"):
        llm.generate("")
    with pytest.raises((ValueError, IndexError, RuntimeError)):
        greedy(model, [], 1)


def test_n_4_bfloat16(made: Any, tmp_path: Path) -> None:
    """Weights in bfloat16, as checkpoints have them, and the cache as it is by default. The others
    compute with the same weights in float32."""
    model, folder = made
    shutil.copytree(folder, tmp_path / "half")
    copy.deepcopy(model).to(torch.bfloat16).save_pretrained(tmp_path / "half")
    options = {"dtype": torch.float32, "attn_implementation": "eager"}
    exact = type(model).from_pretrained(tmp_path / "half", **options)
    # Of two experts that are nearly as good, a rounded cache may take the other: a step, no error.
    has_experts = hasattr(model.config, "num_experts_per_tok")
    ours = loaded(tmp_path / "half", kv_dtype="float32" if has_experts else "int16")
    for ids in prompts_of(ours.spec, NUM_PROMPTS):
        found = run(ours, (0, 0, ids)).astype(np.float64)
        with torch.inference_mode():
            wanted = exact(torch.tensor([ids])).logits[0].double().numpy()
        assert np.abs(found - wanted).max() <= 1e-2 * np.abs(wanted).max()
        p, q = (torch.from_numpy(x).log_softmax(-1) for x in (wanted, found))
        assert float((p.exp() * (p - q)).sum(-1).mean()) <= 1e-4


def test_bits_do_not_depend_on_company_cuts_or_threads(made: Any) -> None:
    """Batched = alone, chunked = whole, 1 thread = 3 threads, fused = as recorded."""
    _, folder = made
    model = loaded(folder, threads=1)
    prompts = [prompt(length, seed) for seed, length in enumerate((150, 1, 64, 37))]
    alone = [run(model, (0, 0, ids)) for ids in prompts]
    np.testing.assert_array_equal(in_steps(model, prompts[0], 63, 1, 1, 50, 35), alone[0])
    np.testing.assert_array_equal(in_steps(model, prompts[3], *[1] * 37), alone[3])
    for other in (model, loaded(folder, threads=3), loaded(folder, disabled_rules=every_rule())):
        parts = [(140, 10), (0, 1), (10, 54), (36, 1)]  # of each in the first step, the second
        first = run(other, *((s, 0, ids[:c]) for s, (ids, (c, _)) in both(prompts, parts) if c))
        second = run(other, *((s, c, ids[c:]) for s, (ids, (c, _)) in both(prompts, parts)))
        for s, whole in enumerate(alone):
            (at, count), (then, rest) = (
                (sum(part[step] for part in parts[:s]), parts[s][step]) for step in (0, 1)
            )
            joined = np.concatenate((first[at : at + count], second[then : then + rest]))
            np.testing.assert_array_equal(joined, whole)


def both(prompts: list[list[int]], parts: list[tuple[int, int]]) -> Any:
    return enumerate(zip(prompts, parts, strict=True))


def every_rule() -> list[str]:
    from firsthand.compute.fusion import RULES

    return [rule.name for rule in RULES]


def test_greedy_tokens_are_those_of_transformers(made: Any) -> None:
    """64 tokens for each of a batch of prompts of mixed lengths; again from the prefix cache."""
    model, folder = made
    ours = loaded(folder, max_step_tokens=48, max_logit_rows=4)
    # LongRoPE of transformers has another table for what is shorter than the trained context.
    lengths = (130, 150, 190) if ours.spec.rope.kind == "longrope" else (1, 40, 90)
    prompts = [prompt(length, seed) for seed, length in enumerate(lengths)]
    wanted = [greedy(model, ids, 64) for ids in prompts]
    with LLM(ours) as llm:
        for _ in range(2):
            found = llm.generate(prompts, max_tokens=64, temperature=0.0, ignore_end=True)
            assert [list(one.token_ids) for one in found] == wanted
