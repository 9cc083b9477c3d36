"""Options are declared once, mean what `generation` means by them, and become typed values."""

from __future__ import annotations

import inspect
from dataclasses import asdict, fields

import pytest

from firsthand.cli.generate import CHAT_SAMPLING
from firsthand.cli.options import (
    LOADING,
    SAMPLING,
    AsJson,
    Loading,
    Model,
    Sampling,
    flat,
    logit_bias,
)
from firsthand.errors import InvalidRequest
from firsthand.generation.load_options import LoadKeywords, LoadOptions
from firsthand.generation.options import Options, read_options

# One sequence; the defaults.
NOT_ON_THE_COMMAND_LINE = {"max_sequences", "max_step_tokens", "max_logit_rows"} | {
    "max_batch_size",
    "max_batch_wait_s",
    "min_batch_size",
}
NOBODY_ELSE_IS_THERE = {"priority", "tenant", "cache_salt", "timeout_s"}
FOR_PROGRAMS = {"response_format", "grammar", "prompt_logprobs"}


def names(group: type[Loading] | type[Sampling]) -> set[str]:
    return {field.name for field in fields(group)}


def test_every_option_of_generation_is_there() -> None:
    """`logprobs` is an option of `run` alone."""
    left_out = {"logprobs"} | NOBODY_ELSE_IS_THERE | FOR_PROGRAMS
    assert names(Sampling) | left_out == set(Options.__annotations__)
    assert names(Loading) | NOT_ON_THE_COMMAND_LINE == set(LoadKeywords.__annotations__)


def test_the_defaults_are_those_of_generation() -> None:
    assert read_options(asdict(SAMPLING), frozenset()) == read_options({}, frozenset())
    chosen = asdict(LOADING) | {"disabled_rules": ()}
    assert LoadOptions(**chosen) == LoadOptions()


def test_a_group_of_options_becomes_one_value() -> None:
    seen = []

    def command(
        model: Model,
        sampling: Sampling = CHAT_SAMPLING,
        loading: Loading = LOADING,
        as_json: AsJson = False,
    ) -> None:
        seen.append((model, sampling, loading, as_json))

    given = {"model": "m", "as_json": True, **asdict(Sampling(top_k=3)), **asdict(LOADING)}
    flat(command)(**given)
    assert seen == [("m", Sampling(top_k=3), LOADING, True)]


def test_the_defaults_of_a_group_are_those_of_the_command() -> None:
    def command(sampling: Sampling = CHAT_SAMPLING) -> None: ...

    parameters = inspect.signature(flat(command)).parameters
    assert set(parameters) == names(Sampling)
    assert parameters["max_tokens"].default == 1024
    assert parameters["repetition_guard"].default is True
    assert parameters["top_p"].default == 1.0


def test_logit_bias() -> None:
    assert logit_bias(["15=-2.5", "7=1"]) == {15: -2.5, 7: 1.0}
    assert logit_bias(None) == {}


@pytest.mark.parametrize("pairs", [["15"], ["a=1"], ["1="], ["=1"], ["1=1", "1=2"], ["1=2=3"]])
def test_a_bad_logit_bias_is_named(pairs: list[str]) -> None:
    with pytest.raises(InvalidRequest, match="logit_bias"):
        logit_bias(pairs)


@pytest.mark.parametrize("pair", ["x" * 10**6, "9" * 5000 + "=1"], ids=["text", "digits"])
def test_a_bad_logit_bias_is_shown_in_short(pair: str) -> None:
    with pytest.raises(InvalidRequest, match="must be ID=BIAS") as refused:
        logit_bias([pair])
    assert len(str(refused.value)) < 300
