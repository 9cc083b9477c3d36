"""What every body has in common: strictness, and the fields that several routes share.

Owns: the base of all bodies; the fields of sampling, of stopping and of the ignore list, with
their ranges, and how they become the options of a generation.
May not know: routes, engines, how an answer looks.
Read next: `chat.py`, `completions.py`.

A field that is not declared is refused by name. One that OpenAI's API has and this server does
not is declared `Unsupported`, so that the refusal says so; null is nobody's wish, and passes. A
lenient server leaves both out (`../leniency.py`). What is `Essential` is refused there too: without
it the answer would be one to another question.
"""

from __future__ import annotations

import re
from typing import Annotated, Any, Literal

from pydantic import AfterValidator, BaseModel, BeforeValidator, ConfigDict, Field
from pydantic_core import PydanticCustomError

from firsthand.errors import InvalidRequest
from firsthand.generation.options import MAX_NAME_LENGTH, Options
from firsthand.request import (
    MAX_BIASED_TOKENS,
    MAX_CHOICES,
    MAX_GRAMMAR_CHARS,
    MAX_LOGPROBS,
    MAX_SEED,
    MAX_STOP_IDS,
    MAX_TOP_K,
    MIN_REPETITION_PENALTY,
    Grammar,
    Priority,
    RepetitionGuard,
)
from firsthand.text.grammars import MAX_OPTIONS, of_structured
from firsthand.text.stops import MAX_STOP_CHARS, MAX_STOPS

MAX_ID = 2**31 - 1
MAX_TOKENS = 2**31 - 1
MAX_PRIORITY = 1000
MAX_PARTS = 4096  # of one message
OTHER_MEDIA = frozenset(  # kinds of parts that clients of OpenAI and vLLM send
    ("image_url", "input_audio", "audio_url", "video_url", "file", "input_image")
) | {"input_file", "image", "audio", "video", "document"}
REQUEST_ID = r"^[A-Za-z0-9_-]{1,128}$"


def _refuse(value: object) -> object:
    if value is not None:
        raise PydanticCustomError("unsupported_parameter", "this server does not support it")
    return value


def _refuse_always(value: object) -> object:
    if value is not None:
        raise PydanticCustomError("unsupported_question", "this server does not support it")
    return value


def _has_no_place(value: object) -> object:
    if value is not None:
        raise PydanticCustomError("misplaced", "has no place in a message of this role")
    return value


def _is_text(value: object) -> object:
    if isinstance(value, str) and value in OTHER_MEDIA:
        message = "this server takes text only, no images, audio, video or files"
        raise PydanticCustomError("unsupported_question", message)
    return value


def _is_text_block(value: object) -> object:
    _is_text(value.get("type") if isinstance(value, dict) else None)
    return value


def _only_false(value: bool) -> bool:
    if value:
        raise PydanticCustomError("unsupported_parameter", "this server supports only false")
    return value


OnlyFalse = Annotated[bool, AfterValidator(_only_false), Field(json_schema_extra={"const": False})]
Unsupported = Annotated[None, BeforeValidator(_refuse)]
OnlyText = BeforeValidator(_is_text)  # of the `type` of a part
TextBlocks = BeforeValidator(_is_text_block)  # of a part that is told by its `type`
Essential = Annotated[None, BeforeValidator(_refuse_always)]
Misplaced = Annotated[None, BeforeValidator(_has_no_place)]
TokenId = Annotated[int, Field(ge=0, le=MAX_ID)]
Name = Annotated[str, Field(max_length=512)]
StopString = Annotated[str, Field(min_length=1, max_length=MAX_STOP_CHARS)]
Number = Annotated[float, Field(allow_inf_nan=False)]


def _few_biases(value: object) -> object:
    if isinstance(value, dict) and len(value) > MAX_BIASED_TOKENS:
        raise PydanticCustomError("too_long", f"takes {MAX_BIASED_TOKENS} tokens at most")
    return value


# The first fault of a list ends its reading: a list may be long, and each fault would be written.
Biases = Annotated[dict[str, Number], BeforeValidator(_few_biases)]
PriorityWord = Literal["urgent", "normal", "background"]
PriorityInput = Annotated[int, Field(ge=-MAX_PRIORITY, le=MAX_PRIORITY)] | PriorityWord


class Strict(BaseModel):
    """The base of every body that comes in."""

    model_config = ConfigDict(
        extra="forbid",
        strict=True,
        allow_inf_nan=False,
        frozen=True,
        protected_namespaces=(),
        populate_by_name=False,
    )


class Reply(BaseModel):
    """The base of what goes out: it documents; replies are built as plain values."""

    model_config = ConfigDict(extra="allow", protected_namespaces=())


class Ignored(Strict):
    """The ignore list: fields that change nothing here and are taken without a word; but for the
    tier, which says how urgent it is."""

    user: Name | None = None
    metadata: Annotated[dict[str, str], Field(max_length=16)] | None = None
    store: OnlyFalse | None = None
    service_tier: Name | None = None
    safety_identifier: Name | None = None
    prompt_cache_key: Name | None = None
    prompt_cache_retention: Name | None = None


class StreamOptions(Strict):
    include_usage: bool | None = None
    include_obfuscation: OnlyFalse | None = None
    continuous_usage_stats: bool | None = None


class Repetition(Strict):
    """End an answer whose last `times` runs of up to `max_run` tokens are equal; what is not given
    is the guard's own."""

    max_run: int | None = None
    times: int | None = None


class StructuredOutputs(Strict):
    """vLLM's form: one of these, which all of the text has to be."""

    json_: Annotated[dict[str, Any] | str | None, Field(alias="json")] = None
    regex: Annotated[str, Field(min_length=1, max_length=MAX_GRAMMAR_CHARS)] | None = None
    choice: (
        Annotated[
            list[Annotated[str, Field(min_length=1)]], Field(min_length=1, max_length=MAX_OPTIONS)
        ]
        | None
    ) = None
    grammar: Annotated[str, Field(min_length=1, max_length=MAX_GRAMMAR_CHARS)] | None = None
    json_object: Literal[True] | None = None


class Sampling(Strict):
    """How tokens are chosen and where an answer ends, in OpenAI's words and in vLLM's."""

    model: Name | None = None
    temperature: Annotated[float, Field(ge=0, le=100)] | None = None
    top_p: Annotated[float, Field(gt=0, le=1)] | None = None
    top_k: Annotated[int, Field(ge=-1, le=MAX_TOP_K)] | None = None
    min_p: Annotated[float, Field(ge=0, le=1)] | None = None
    repetition_penalty: Annotated[float, Field(ge=MIN_REPETITION_PENALTY, le=100)] | None = None
    presence_penalty: Annotated[float, Field(ge=-2, le=2)] | None = None
    frequency_penalty: Annotated[float, Field(ge=-2, le=2)] | None = None
    logit_bias: Biases | None = None
    seed: Annotated[int, Field(ge=-(2**63), le=MAX_SEED)] | None = None
    n: Annotated[int, Field(ge=1, le=MAX_CHOICES)] | None = None
    stop: StopString | Annotated[list[StopString], Field(max_length=MAX_STOPS)] | None = None
    stop_token_ids: Annotated[list[TokenId], Field(max_length=MAX_STOP_IDS)] | None = None
    ignore_eos: bool | None = None
    min_tokens: Annotated[int, Field(ge=0, le=MAX_TOKENS)] | None = None
    skip_special_tokens: bool | None = None
    include_stop_str_in_output: bool | None = None
    priority: PriorityInput | None = None
    return_token_ids: bool | None = None
    timings_per_token: bool | None = None
    firsthand_timings: bool | None = None
    stream: bool | None = None
    stream_options: StreamOptions | None = None
    prompt_logprobs: Annotated[int, Field(ge=0, le=MAX_LOGPROBS)] | None = None
    structured_outputs: StructuredOutputs | None = None
    repetition_guard: bool | Repetition | None = None
    cache_salt: Annotated[str, Field(min_length=1, max_length=MAX_NAME_LENGTH)] | None = None
    request_id: Annotated[str, Field(pattern=REQUEST_ID)] | None = None
    truncate_prompt_tokens: Annotated[int, Field(ge=-1, le=MAX_TOKENS)] | None = None
    add_special_tokens: bool | None = None
    chat_template: Essential = None
    documents: Essential = None
    guided_json: Essential = None
    guided_regex: Essential = None
    guided_choice: Essential = None
    guided_grammar: Essential = None

    @property
    def wants_timings(self) -> bool:
        return bool(self.timings_per_token or self.firsthand_timings)

    @property
    def wants_usage_chunk(self) -> bool:
        return self.stream_options is not None and bool(self.stream_options.include_usage)

    @property
    def wants_usage_always(self) -> bool:
        options = self.stream_options
        return options is not None and bool(options.continuous_usage_stats)


class Logprobs(Strict):
    """Chat's form: a switch, and how many alternatives."""

    logprobs: bool | None = None
    top_logprobs: Annotated[int, Field(ge=0, le=MAX_LOGPROBS)] | None = None


def options_of(body: Sampling) -> Options:
    """The options of a generation that all routes read alike; raises InvalidRequest."""
    if body.stream_options is not None and not body.stream:
        raise InvalidRequest("stream_options", "only a stream has them")
    if body.wants_usage_always and not body.wants_usage_chunk:
        raise InvalidRequest("stream_options.continuous_usage_stats", "needs include_usage: true")
    if body.truncate_prompt_tokens == 0:
        raise InvalidRequest("truncate_prompt_tokens", "nothing would be left; -1: what fits")
    if body.prompt_logprobs is not None and body.stream:
        raise InvalidRequest("prompt_logprobs", "a stream has none; ask for the whole answer")
    top_k = body.top_k
    given: dict[str, Any] = {
        "temperature": body.temperature,
        "top_p": body.top_p,
        "top_k": 0 if top_k == -1 else top_k,  # -1 is vLLM's word for off
        "min_p": body.min_p,
        "repetition_penalty": body.repetition_penalty,
        "presence_penalty": body.presence_penalty,
        "frequency_penalty": body.frequency_penalty,
        "logit_bias": None if body.logit_bias is None else _bias(body.logit_bias),
        "seed": None if body.seed is None else body.seed % (MAX_SEED + 1),
        "stop": body.stop,
        "stop_token_ids": body.stop_token_ids,
        "ignore_end": body.ignore_eos,
        "min_tokens": body.min_tokens,
        "prompt_logprobs": body.prompt_logprobs,
        "grammar": _grammar(body.structured_outputs),
        "repetition_guard": _guard(body.repetition_guard),
        "cache_salt": body.cache_salt,
        "priority": None if body.priority is None else priority_of(body.priority),
    }
    options: Options = {}
    options.update({name: value for name, value in given.items() if value is not None})  # type: ignore[typeddict-item]
    return options


def priority_of(given: int | str) -> str:
    """Lower is earlier, as in vLLM: below 0 is urgent, above 0 background. Or the word itself."""
    if isinstance(given, str):
        return given
    if given == 0:
        return Priority.NORMAL.value
    return (Priority.URGENT if given < 0 else Priority.BACKGROUND).value


def _guard(given: bool | Repetition | None) -> RepetitionGuard | bool | None:
    if not isinstance(given, Repetition):
        return given
    try:
        return RepetitionGuard(**given.model_dump(exclude_none=True))
    except InvalidRequest as error:
        name = error.field.removeprefix("repetition.")
        raise InvalidRequest(f"repetition_guard.{name}", error.message) from error


TIERS = {"flex": Priority.BACKGROUND.value, "priority": Priority.URGENT.value}
NO_TIER = ("auto", "default")


def tier_options(body: Ignored) -> Options:
    """The class that OpenAI's tier stands for; the body's own `priority` goes before it."""
    priority = TIERS.get(body.service_tier or "")
    return {} if priority is None else {"priority": priority}


def _grammar(given: StructuredOutputs | None) -> Grammar | None:
    if given is None:
        return None
    return of_structured(given.model_dump(by_alias=True, exclude_none=True))


def _bias(given: dict[str, float]) -> dict[int, float]:
    bias: dict[int, float] = {}
    for name, value in given.items():
        if not re.fullmatch(r"[0-9]{1,10}", name, re.ASCII):
            raise InvalidRequest("logit_bias", "its names are token ids")
        if int(name) in bias:
            raise InvalidRequest("logit_bias", f"token {int(name)} is given twice")
        bias[int(name)] = value
    return bias
