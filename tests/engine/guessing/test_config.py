"""The options of speculation, by their names."""

from __future__ import annotations

from typing import Any

import pytest

from firsthand.engine.guessing.config import GuessConfig, guess_config, read_guess_config
from firsthand.errors import InvalidRequest
from firsthand.generation.load_options import LoadOptions

WRONG: list[tuple[Any, str]] = [
    ("ngram", "speculative_config: must be an object"),
    ({"method": "eagle"}, r"speculative_config\.method: must be one of ngram, draft_model"),
    ({"num_speculative_tokens": 0}, r"num_speculative_tokens: must be at least 1 and at most 32"),
    ({"num_speculative_tokens": True}, "num_speculative_tokens: must be an integer"),
    ({"prompt_lookup_max": 65}, "prompt_lookup_max: must be at least 1 and at most 64"),
    ({"prompt_lookup_min": 5, "prompt_lookup_max": 4}, "prompt_lookup_min: must be at least 1 and"),
    ({"method": "draft_model"}, r"speculative_config\.model: must name the draft"),
    ({"method": "ngram", "model": "x"}, r"speculative_config\.model: goes with method draft_model"),
    ({"model": 3}, r"speculative_config\.model: is a model's name"),
    ({"model": "x", "prompt_lookup_min": 2}, "prompt_lookup_min: goes with method ngram"),
    ({"num_speculative_token": 3}, "did you mean num-speculative-tokens"),
    ({"adaptive": "no"}, r"speculative_config\.adaptive: is true or false"),
    ({3: 4}, "speculative_config: 3 is none of"),
]


@pytest.mark.parametrize(("given", "words"), WRONG)
def test_what_is_wrong_is_refused_by_name(given: Any, words: str) -> None:
    with pytest.raises(InvalidRequest, match=words):
        LoadOptions(speculative_config=given)


def test_what_is_left_out_follows() -> None:
    assert guess_config(None) is None
    assert guess_config({}) == guess_config({"prompt-lookup-min": 2}) == GuessConfig()
    found = guess_config({"model": "small", "num_speculative_tokens": 3})
    assert found is not None and (found.method, found.model) == ("draft_model", "small")
    longer = guess_config({"prompt_lookup_min": 12})
    assert longer is not None and longer.prompt_lookup_max == 12
    shorter = guess_config({"prompt_lookup_max": 1})
    assert shorter is not None and shorter.prompt_lookup_min == 1


def test_a_text_is_json_or_refused() -> None:
    assert read_guess_config(None) is None
    assert read_guess_config('{"method": "ngram"}') == {"method": "ngram"}
    with pytest.raises(InvalidRequest, match="an entry twice"):
        guess_config({"prompt-lookup-min": 2, "prompt_lookup_min": 3})
    for text in ("{", "[]", '{"a": 1, "a": 2}', "[" * 100_000):
        with pytest.raises(InvalidRequest, match="speculative_config"):
            read_guess_config(text)
