"""The options of one generation: names, defaults, and how they become typed values.

Owns: the keyword arguments of `generate`, `stream`, `chat` and `stream_chat`.
May not know: models, text, who calls.
Read next: `request.py`, which checks the ranges.

None always means the default. The defaults are those of OpenAI's API: temperature 1, top_p 1,
every other filter and penalty off. What a model's generation_config.json says about sampling is
not mixed in: a request means the same on every model.
"""

from __future__ import annotations

import secrets
from collections.abc import Iterable, Mapping, Sequence
from dataclasses import replace
from typing import Any, TypedDict

from firsthand.checks import check_choice, check_integer, check_number, nearest, shown
from firsthand.errors import InvalidRequest
from firsthand.request import (
    MAX_CHOICES,
    MAX_SEED,
    Grammar,
    Pooling,
    Priority,
    RepetitionGuard,
    Request,
    SamplingParams,
    StopRules,
)
from firsthand.text.grammars import of_response_format, of_structured
from firsthand.text.stops import parse_stop
from firsthand.values import dataclass

DEFAULT_MAX_TOKENS = 256
MAX_NAME_CHARS = 80  # of an unknown option, in the error
MAX_NAME_LENGTH = 256  # of a tenant or a salt
MAX_TIMEOUT_S = 30 * 86_400.0


class Options(TypedDict, total=False):
    """Keyword arguments of a generation, beside `n`; `read_options` states each default."""

    max_tokens: int | None  # 256; beyond the context, the generation ends when that is full; 0
    # generates nothing, for `prompt_logprobs` alone
    min_tokens: int | None  # 0; no end token or stop id ends it before so many tokens
    temperature: float | None  # 1.0; 0 is greedy
    top_k: int | None  # 0: off
    top_p: float | None  # 1.0: off
    min_p: float | None  # 0.0: off
    repetition_penalty: float | None  # 1.0: off
    presence_penalty: float | None  # 0.0: off
    frequency_penalty: float | None  # 0.0: off
    logit_bias: Mapping[int, float] | None  # none; added to the logits of these token ids
    logprobs: int | None  # off; how many alternatives beside the token's own logprob
    prompt_logprobs: (
        int | None
    )  # off; of the prompt's tokens, and how many alternatives beside each
    seed: int | None  # drawn from the operating system, and reported back
    stop: str | Sequence[str] | None  # none; the text ends before the first of these
    stop_token_ids: Iterable[int] | None  # none
    ignore_end: bool | None  # False; True: the model's end tokens are ordinary ones
    repetition_guard: RepetitionGuard | bool | None  # off; True: the guard's defaults
    priority: str | None  # "normal"; or "urgent", "background"
    tenant: str | None  # ""; whose request it is, for fairness between tenants
    cache_salt: str | None  # ""; blocks of the cache are shared within one salt only
    adapter: str | None  # ""; of those that the model was loaded with, the one that answers
    timeout_s: float | None  # none; seconds from the call, after which it ends with "deadline"
    response_format: Mapping[str, Any] | None  # text; or {"type": "json_object"}, "json_schema"
    grammar: Grammar | Mapping[str, Any] | None  # none; {"json" | "regex" | "choice" | "grammar"}


_SAMPLING = (
    "temperature",
    "top_k",
    "top_p",
    "min_p",
    "repetition_penalty",
    "presence_penalty",
    "frequency_penalty",
    "logprobs",
)


@dataclass(frozen=True, slots=True)
class Checked:
    """The options of one generation, typed and in range. `seed` None: draw one per request.

    `n` sequences go on from the prompt, sequence `index` with seed + index. `timeout_s` counts from
    the call; it becomes a time of the engine's clock when that is known.
    """

    sampling: SamplingParams
    stop: StopRules
    stop_strings: tuple[str, ...]
    seed: int | None
    n: int
    priority: Priority
    tenant: str
    cache_salt: str
    timeout_s: float | None
    grammar: Grammar | None = None
    prompt_logprobs: int | None = None
    pooling: Pooling | None = None
    adapter: str = ""


def request_of(
    checked: Checked, number: int, token_ids: tuple[int, ...], called_s: float
) -> Request:
    """For an engine whose clock was at `called_s` when the call began."""
    timeout_s = checked.timeout_s
    return Request(
        request_id=f"request-{number}",
        prompt_token_ids=token_ids,
        sampling=checked.sampling,
        stop=checked.stop,
        seed=fresh_seed() if checked.seed is None else checked.seed,
        n=checked.n,
        priority=checked.priority,
        tenant=checked.tenant,
        cache_salt=checked.cache_salt,
        deadline_s=None if timeout_s is None else called_s + timeout_s,
        grammar=checked.grammar,
        prompt_logprobs=checked.prompt_logprobs,
        pooling=checked.pooling,
        adapter=checked.adapter,
    )


def read_pooling(pooling: str, options: Mapping[str, Any]) -> Checked:
    """For one vector of the prompt, and no text. Raises InvalidRequest."""
    check_choice("pooling", pooling, tuple(Pooling))
    checked = read_options({**options, "max_tokens": 0}, frozenset())
    return replace(checked, pooling=Pooling(pooling))


def read_options(options: Mapping[str, Any], end_token_ids: frozenset[int]) -> Checked:
    """Raises InvalidRequest on an unknown name, with a suggestion, or on a value out of range."""
    check_names(options, {*Options.__annotations__, "n"})
    given = {name: value for name, value in options.items() if value is not None}
    sampling: dict[str, Any] = {name: given[name] for name in _SAMPLING if name in given}
    if "logit_bias" in given:
        sampling["logit_bias"] = _logit_bias(given["logit_bias"])
    seed = given.get("seed")
    if seed is not None:
        check_integer("seed", seed, 0, MAX_SEED)
    max_tokens = given.get("max_tokens", DEFAULT_MAX_TOKENS)
    n = given.get("n", 1)
    check_integer("n", n, 1, MAX_CHOICES)
    timeout_s = given.get("timeout_s")
    if timeout_s is not None:
        check_number("timeout_s", timeout_s, 0.0, MAX_TIMEOUT_S, low_open=True)
    return Checked(
        sampling=SamplingParams(**sampling),
        stop=StopRules(
            max_tokens=max_tokens,
            min_tokens=given.get("min_tokens", 0),
            end_token_ids=end_token_ids,
            stop_token_ids=_stop_token_ids(given.get("stop_token_ids", ())),
            ignore_end=_flag("ignore_end", given.get("ignore_end", False)),
            repetition=_guard(given.get("repetition_guard", False)),
        ),
        stop_strings=parse_stop(given.get("stop")),
        seed=seed,
        n=n,
        priority=_priority(given.get("priority", Priority.NORMAL)),
        tenant=_name("tenant", given.get("tenant", "")),
        cache_salt=_name("cache_salt", given.get("cache_salt", "")),
        timeout_s=timeout_s,
        grammar=_grammar(given),
        prompt_logprobs=given.get("prompt_logprobs"),
        adapter=_name("adapter", given.get("adapter", "")),
    )


def check_names(given: Iterable[str], known: Iterable[str]) -> None:
    """Raise InvalidRequest on the first name that is not known, with the nearest one that is."""
    choices = sorted(known)
    for name in given:
        if name not in choices:
            name = name[:MAX_NAME_CHARS]
            near = nearest(name, choices)
            hint = f"did you mean {near!r}?" if near else f"known are {', '.join(choices)}"
            raise InvalidRequest(name, f"no such option; {hint}")


def _grammar(given: Mapping[str, Any]) -> Grammar | None:
    """What the text has to be; that it can be compiled is not known here."""
    asked, form = given.get("grammar"), given.get("response_format")
    by_format = None if form is None else of_response_format(form)
    if asked is None:
        return by_format
    if by_format is not None:
        raise InvalidRequest("grammar", "not together with a response_format")
    return asked if isinstance(asked, Grammar) else of_structured(asked, "grammar")


def fresh_seed() -> int:
    """64 bits from the operating system, so that no two unseeded requests are alike."""
    return secrets.randbits(64)


def _logit_bias(given: object) -> tuple[tuple[int, float], ...]:
    if not isinstance(given, Mapping):
        raise InvalidRequest("logit_bias", "must map token ids to numbers")
    return tuple(given.items())


def _stop_token_ids(given: object) -> frozenset[int]:
    if isinstance(given, str | bytes) or not isinstance(given, Iterable):
        raise InvalidRequest("stop_token_ids", "must be a list of token ids")
    token_ids = list(given)
    for token_id in token_ids:
        # Before the set: there, True would be 1.
        check_integer("stop_token_ids", token_id, 0)
    return frozenset(token_ids)


def _priority(given: object) -> Priority:
    check_choice("priority", given, tuple(Priority))
    return Priority(str(given))


def _name(field: str, given: object) -> str:
    if not isinstance(given, str):
        raise InvalidRequest(field, f"must be text, not {shown(given)}")
    if len(given) > MAX_NAME_LENGTH:
        raise InvalidRequest(field, f"must have at most {MAX_NAME_LENGTH} characters")
    return given


def _flag(name: str, given: object) -> bool:
    if not isinstance(given, bool):
        raise InvalidRequest(name, f"must be True or False, not {shown(given)}")
    return given


def _guard(given: object) -> RepetitionGuard | None:
    if isinstance(given, RepetitionGuard):
        return given
    return RepetitionGuard() if _flag("repetition_guard", given) else None
