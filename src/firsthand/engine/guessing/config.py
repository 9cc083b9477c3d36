"""How to guess: the options of speculation, checked.

Owns: their names (vLLM's), defaults and ranges.
May not know: files, what a guesser does with them.
Read next: `speculation.py`.
"""

from __future__ import annotations

from collections.abc import Mapping
from typing import Literal, get_args

from firsthand.checks import check_choice, check_integer, meant, shown
from firsthand.errors import InvalidRequest
from firsthand.files import strict_json
from firsthand.values import dataclass

Method = Literal["ngram", "draft_model"]
FIELD = "speculative_config"
MAX_GUESSES = 32
MAX_LOOKUP = 64
MAX_STEP_GUESSES = 64  # of all sequences together: each takes a row of logits


@dataclass(frozen=True, slots=True)
class GuessConfig:
    """`method` ngram: prompt lookup of `prompt_lookup_min` to `prompt_lookup_max` tokens.
    draft_model: by the model called `model`. At most `num_speculative_tokens` of a sequence are
    guessed in a step; with `adaptive`, as many as pay. Raises InvalidRequest."""

    method: Method = "ngram"
    num_speculative_tokens: int = 8
    prompt_lookup_min: int = 2
    prompt_lookup_max: int = 8
    model: str = ""
    adaptive: bool = True

    def __post_init__(self) -> None:
        check_choice(f"{FIELD}.method", self.method, get_args(Method))
        check_integer(
            f"{FIELD}.num_speculative_tokens", self.num_speculative_tokens, 1, MAX_GUESSES
        )
        check_integer(f"{FIELD}.prompt_lookup_max", self.prompt_lookup_max, 1, MAX_LOOKUP)
        check_integer(
            f"{FIELD}.prompt_lookup_min", self.prompt_lookup_min, 1, self.prompt_lookup_max
        )
        if not isinstance(self.model, str):
            raise InvalidRequest(f"{FIELD}.model", f"is a model's name, not {shown(self.model)}")
        if not isinstance(self.adaptive, bool):
            raise InvalidRequest(
                f"{FIELD}.adaptive", f"is true or false, not {shown(self.adaptive)}"
            )
        if self.method == "draft_model" and not self.model:
            raise InvalidRequest(f"{FIELD}.model", "must name the draft of method draft_model")
        if self.method == "ngram" and self.model:
            raise InvalidRequest(f"{FIELD}.model", "goes with method draft_model, not with ngram")


LOOKUP_OPTIONS = ("prompt_lookup_min", "prompt_lookup_max")


def guess_config(given: object) -> GuessConfig | None:
    """From a mapping, or None. A method that is not given follows from a `model`, and of the two
    lookups the one that is not given from the other. Raises InvalidRequest, naming the entry."""
    if given is None:
        return None
    if not isinstance(given, Mapping):
        raise InvalidRequest(FIELD, f"must be an object with names and values, not {shown(given)}")
    entries = {
        name.replace("-", "_") if isinstance(name, str) else name: value
        for name, value in given.items()
    }
    if len(entries) != len(given):
        raise InvalidRequest(FIELD, "has an entry twice, with dashes and without")
    for name in entries:
        if name not in GuessConfig.__slots__:
            names = GuessConfig.__slots__
            hint = meant(name, names) if isinstance(name, str) else ""
            known = ", ".join(names)
            raise InvalidRequest(FIELD, f"{shown(name)} is none of {known}{hint}")
    entries.setdefault("method", "draft_model" if "model" in entries else "ngram")
    lookups = [name for name in LOOKUP_OPTIONS if name in entries]
    if lookups and entries["method"] != "ngram":
        raise InvalidRequest(f"{FIELD}.{lookups[0]}", "goes with method ngram")
    least, most = (entries.get(name) for name in LOOKUP_OPTIONS)
    if most is None and isinstance(least, int):
        entries["prompt_lookup_max"] = max(least, GuessConfig().prompt_lookup_max)
    if least is None and isinstance(most, int):
        entries["prompt_lookup_min"] = min(most, GuessConfig().prompt_lookup_min)
    return GuessConfig(**entries)


def read_guess_config(text: str | None) -> dict[str, object] | None:
    """The mapping that a text in JSON stands for. Raises InvalidRequest."""
    if not text:
        return None
    try:
        found = strict_json(text)
    except ValueError as error:
        raise InvalidRequest(FIELD, f"is no JSON: {shown(str(error))}") from None
    if not isinstance(found, dict):
        raise InvalidRequest(FIELD, f"must be a JSON object, not {shown(found)}")
    return found
