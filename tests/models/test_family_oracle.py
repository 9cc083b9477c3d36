"""Every family against transformers, through the files that it saves and the real loader.

Owns: the proof that a family's file computes the family, on both executors, and that the promise of
equal bits holds for each. May not know: other executors than through `load_model`.
Read next: `tiny_families.py`.
"""

from __future__ import annotations

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
from firsthand.generation.llm import LLM
from firsthand.generation.load_options import LoadOptions
from firsthand.generation.loading import LoadedModel, load_model
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
    """N-4. Our error against float64 is at most twice that of transformers at the same precision
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
