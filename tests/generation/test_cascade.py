"""Two real models: whoever answers, its bits are those that it gives alone, and the same request is
always decided alike."""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import replace
from pathlib import Path
from typing import Any

import pytest

from firsthand.cascade.calibration import Calibration
from firsthand.cascade.confidence import score_of
from firsthand.cascade.decision import SURE, TOO_LONG, UNSURE
from firsthand.cli.micro_model import write_micro_model
from firsthand.errors import InvalidRequest
from firsthand.generation import LLM, Completion
from firsthand.generation.calibrated import side_of
from firsthand.generation.cascade import Cascade, CascadeStream
from firsthand.generation.load_options import LoadOptions
from tests.generation.test_llm import bits

pytestmark = pytest.mark.native

WINDOW = 6
PROMPTS = [f"{word} {number}" for number, word in enumerate(("abc", "hello", "q", "1 2 3") * 3)]
OPTIONS: list[dict[str, Any]] = [
    {"seed": 4, "temperature": 0, "max_tokens": 12},
    {"seed": 5, "temperature": 0.7, "max_tokens": 9, "logprobs": 2},
    {"seed": 6, "max_tokens": 3},
]


@pytest.fixture(scope="module")
def large_folder(tmp_path_factory: pytest.TempPathFactory) -> Path:
    return write_micro_model(tmp_path_factory.mktemp("large"), seed=9, context_length=640)


def made(small: Path, large: Path, least: float) -> Calibration:
    """By which a score of `least` is worth enough."""
    sides = (side_of(small, LoadOptions()), side_of(large, LoadOptions()))
    steps = ((-1000.0, 0.25), (least, 0.75))
    return Calibration(*sides, "text", "mean", WINDOW, 0.5, steps, 9, 12, 0.1)


@pytest.fixture(scope="module")
def other_folder(tmp_path_factory: pytest.TempPathFactory) -> Path:
    return write_micro_model(tmp_path_factory.mktemp("other"), seed=4)


@pytest.fixture(scope="module")
def cascade(micro_folder: Path, large_folder: Path, other_folder: Path) -> Iterator[Cascade]:
    with LLM(micro_folder, threads=1) as small, LLM(large_folder, threads=1) as large:
        yield halved(Cascade(small, large, made(micro_folder, large_folder, -1.0)), OPTIONS[0])


def halved(cascade: Cascade, given: dict[str, Any]) -> Cascade:
    """It is sure of half of the answers."""
    scores = sorted(score(cascade.small, prompt, given) for prompt in PROMPTS)
    steps = ((-1000.0, 0.25), (scores[len(scores) // 2], 0.75))
    return Cascade(cascade.small, cascade.large, replace(cascade.calibration, steps=steps))


def score(llm: LLM, prompt: str, given: dict[str, Any]) -> float:
    alone = llm.generate(prompt, **{**given, "logprobs": 0})
    return score_of("mean", WINDOW, [one.logprob for one in alone.logprobs or ()])


@pytest.mark.parametrize("given", OPTIONS)
def test_the_answer_is_that_of_the_chosen_model_alone(
    cascade: Cascade, given: dict[str, Any]
) -> None:
    reasons, cascade = set(), halved(cascade, given)
    for prompt in PROMPTS:
        stream = cascade.stream(prompt, **given)
        least = cascade.calibration.steps[1][0]
        sure = score(cascade.small, prompt, given) >= least
        assert stream.decision.reason == (SURE if sure else UNSURE)
        chosen = cascade.small if sure else cascade.large
        assert bits(answer(stream)) == bits(chosen.generate(prompt, **given))
        again = cascade.generate(prompt, **given)
        assert again.decision == stream.decision
        reasons.add(stream.decision.reason)
    assert reasons == {SURE, UNSURE}, "both were seen"


def answer(stream: CascadeStream) -> Completion:
    """Piece by piece: the pieces are the whole."""
    chunks = list(stream)
    found = stream.completion()
    assert "".join(one.text for one in chunks) == found.text
    assert [i for one in chunks for i in one.token_ids] == list(found.token_ids)
    assert all((one.logprobs is None) == (found.logprobs is None) for one in chunks)
    return found


def test_both_costs_are_told(cascade: Cascade) -> None:
    streams = [cascade.generate(prompt, temperature=0, max_tokens=12) for prompt in PROMPTS]
    for stream in streams:
        told, decision = stream.told.to_dict(), stream.decision
        small, large = stream.told.small, stream.told.large
        assert small is not None and small.output_tokens > 0
        assert small.cost == (small.prompt_tokens + small.output_tokens) * small.parameters
        assert (large is not None) is decision.escalated is told["escalated"]
        assert told["answered_by"] == (large or small).model
        num_tokens = len(stream.completion().token_ids)
        assert (large or small).output_tokens == num_tokens
        assert decision.confidence == (0.25 if decision.escalated else 0.75)


def test_of_several_answers_the_least_sure_one_decides(cascade: Cascade) -> None:
    given: dict[str, Any] = {"seed": 3, "temperature": 1.0, "max_tokens": 8}
    for prompt in PROMPTS[:4]:
        stream = cascade.generate(prompt, n=3, **given)
        alone = [{**given, "seed": 3 + number} for number in range(3)]
        least = cascade.calibration.steps[1][0]
        sure = all(score(cascade.small, prompt, one) >= least for one in alone)
        assert stream.decision.reason == (SURE if sure else UNSURE)
        chosen = cascade.small if sure else cascade.large
        found = [bits(one) for one in stream.completions()]
        assert found == [bits(one) for one in chosen.generate(prompt, n=3, **given)]


def test_a_prompt_that_is_too_long_for_the_small_one_is_the_large_ones(cascade: Cascade) -> None:
    prompt = "a" * 600
    stream = cascade.generate(prompt, seed=1, temperature=0, max_tokens=4)
    assert (stream.decision.reason, stream.told.small) == (TOO_LONG, None)
    alone = cascade.large.generate(prompt, seed=1, temperature=0, max_tokens=4)
    assert bits(stream.completion()) == bits(alone)


@pytest.mark.parametrize("name", ["logit_bias", "stop_token_ids", "adapter"])
def test_what_one_model_alone_could_understand_is_refused(cascade: Cascade, name: str) -> None:
    given: dict[str, Any] = {"logit_bias": {3: 1.0}, "stop_token_ids": [3], "adapter": "x"}
    with pytest.raises(InvalidRequest) as refused:
        cascade.generate("a", **{name: given[name]})
    assert refused.value.field == name
    with pytest.raises(InvalidRequest):
        cascade.generate([1, 2])  # type: ignore[arg-type]


def test_closing_it_frees_both(cascade: Cascade) -> None:
    for prompt in PROMPTS:
        stream = cascade.stream(prompt, max_tokens=400, ignore_end=True)
        next(iter(stream))
        stream.close()
    for llm in (cascade.small, cascade.large):
        assert len(llm.generate("a", max_tokens=2, ignore_end=True).token_ids) == 2


def test_a_file_opens_its_two_models_and_no_others(
    micro_folder: Path, large_folder: Path, other_folder: Path, tmp_path: Path
) -> None:
    path = tmp_path / "quick.json"
    path.write_bytes(made(micro_folder, large_folder, -1.0).content())
    with Cascade.open(path, threads=1) as cascade:
        assert cascade.chat([{"role": "user", "content": "a"}], max_tokens=2).completion()
    known = made(micro_folder, large_folder, -1.0)
    path.write_bytes(replace(known, small=replace(known.small, model=str(other_folder))).content())
    with pytest.raises(InvalidRequest) as refused:
        Cascade.open(path, threads=1)
    assert refused.value.field == "small"


@pytest.mark.model
@pytest.mark.slow
def test_two_real_models_that_share_no_vocabulary(smollm2_path: Path, gemma3_path: Path) -> None:
    prompts = ["The capital of France is", "one, two, three,", "Zyx qwv", "A rose is a kind of"]
    given: dict[str, Any] = {"seed": 1, "temperature": 0, "max_tokens": 8}
    known = made(smollm2_path, gemma3_path, -1.0)
    options: dict[str, Any] = {"threads": 1, "max_context": 128, "max_sequences": 1}
    with LLM(smollm2_path, **options) as small, LLM(gemma3_path, **options) as large:
        scores = sorted(score(small, prompt, given) for prompt in prompts)
        steps = ((-1000.0, 0.25), (scores[2], 0.75))
        cascade = Cascade(small, large, replace(known, steps=steps))
        streams = [cascade.stream(prompt, **given) for prompt in prompts]
        assert sum(stream.decision.escalated for stream in streams) == 2
        for prompt, stream in zip(prompts, streams, strict=True):
            chosen = large if stream.decision.escalated else small
            assert bits(answer(stream)) == bits(chosen.generate(prompt, **given))
