"""What the generating routes do alike: from a prompt and options to answers that run.

Owns: the limit on choices, options that come as headers, the field names that an error uses.
May not know: the form of a body or of an answer.
Read next: `chat.py`, `../asking.py`.
"""

from __future__ import annotations

import logging
import re
from collections.abc import Iterator, Mapping, Sequence
from contextlib import contextmanager
from dataclasses import replace

from starlette.requests import Request
from starlette.responses import Response

from firsthand.errors import ContextLengthExceeded, InvalidRequest
from firsthand.generation.completion import Completion
from firsthand.generation.options import Options
from firsthand.generation.service import Prompt, Service
from firsthand.observe.metrics import example_of
from firsthand.observe.recorder import Recorder
from firsthand.request import Grammar
from firsthand.server.answers import Answers
from firsthand.server.asides import note_ignored, note_said
from firsthand.server.asking import Ask, Submitted, submit_all
from firsthand.server.errors import JSON
from firsthand.server.guard.call import Call, call_of
from firsthand.server.guard.refusal import Refused
from firsthand.server.headers import at_end, request_id_of, timeout_of
from firsthand.server.house import House
from firsthand.server.sse import encode_json
from firsthand.server.wire.base import NO_TIER, TIERS, Ignored, Sampling, priority_of
from firsthand.text.effort import Effort, effort_variables
from firsthand.values import dataclass

_LOG = logging.getLogger(__name__)
MAX_CHOICES_PER_BODY = 256  # prompts × n
MAX_META_NAME, MAX_META = 64, 512  # characters, as OpenAI has them


@dataclass(frozen=True, slots=True)
class Asked:
    """Whom a body asks, and what it says of the answer's form. `keeps_markers`: control tokens are
    part of the text, for whoever reads it looks for one. `pooling`: a vector is wanted, no text.
    `scored`: log-probabilities are wanted here, which the body may not have asked for."""

    endpoint: str
    model: str
    service: Service
    body: Sampling
    keeps_markers: bool = False
    pooling: str | None = None
    scored: bool = False


async def check_grammar(service: Service, options: Options) -> None:
    """What the text has to be can be compiled. Raises InvalidRequest."""
    grammar = options.get("grammar")
    if isinstance(grammar, Grammar):
        await service.check_grammar(grammar)


def submit(
    house: House, request: Request, asked: Asked, prompts: Sequence[Prompt], options: Options
) -> Answers:
    """Every prompt, admitted and submitted. Raises InvalidRequest, Refused and what the service
    raises; then nothing runs."""
    body = asked.body
    n = body.n or 1
    if n * len(prompts) > MAX_CHOICES_PER_BODY:
        raise InvalidRequest(
            "n" if n > 1 else "prompt",
            f"{len(prompts)} prompts, {n} times, are over {MAX_CHOICES_PER_BODY} answers",
        )
    if asked.model in house.adapters:
        options = {**options, "adapter": asked.model}
    if house.repetition_guard and asked.pooling is None:
        options = {"repetition_guard": True, **options}
    asks = [
        Ask(
            request.scope,
            asked.endpoint,
            asked.model,
            asked.service,
            prompt,
            limited(options, asked.service, prompt),
            n,
            bool(body.stream),
            asked.pooling,
            scored=asked.scored,
            open_ended="max_tokens" not in options,
        )
        for prompt in prompts
    ]
    submitted = submit_all(
        house.admission,
        asks,
        skip_special_tokens=body.skip_special_tokens is not False and not asked.keeps_markers,
        include_stop_string=bool(body.include_stop_str_in_output),
    )
    name, key_id = request_id_of(request.scope), call_of(request.scope).caller.key_id
    for one in submitted:
        house.live.name(asked.service, one.stream.request_id, name, key_id)

    scope, service = request.scope, asked.service  # not the request: a stream may be open for long
    recorder, model = house.recorder, service.model.name
    call = call_of(scope)
    _record(recorder, call, asked, submitted)
    example = example_of(call.request_id, call.trace)
    requests = {one.stream.request_id: one.stream.request for one in submitted}

    def finished(engine_id: str, completion: Completion) -> None:
        scope["state"]["finish_reason"] = completion.finish_reason
        try:
            recorder.finished(model, engine_id, completion)
            house.metrics.finished(service, requests[engine_id], completion, example)
        except Exception:  # whoever counts is no reason for an answer to fail
            _LOG.exception("the end of an answer could not be counted")

    hides = asked.scored and options.get("logprobs") is None
    answers = Answers(submitted, n, request_id_of(scope), finished, hides_logprobs=hides)
    at_end(scope, answers.close)
    return answers


def _record(recorder: Recorder, call: Call, asked: Asked, submitted: Sequence[Submitted]) -> None:
    """Without a guard nobody would tell of a call's end."""
    if not call.request_id:
        return
    arrival = call.arrives(asked.endpoint, asked.model, streams=bool(asked.body.stream))
    model = asked.service.model
    adapter = model.adapters.get(asked.model)
    for one in submitted:
        prompt = one.stream.prompt
        recorder.submitted(
            arrival,
            model.name,
            one.stream.request,
            prompt.called_s,
            prompt.tokenized_s,
            None if adapter is None else adapter.sha256,
        )


def limited(options: Options, service: Service, prompt: Prompt) -> Options:
    """A copy. Without a limit of its own, an answer may fill the model's context."""
    room = service.model.context_length - prompt.num_tokens
    return {"max_tokens": max(1, room), **options}


def cut(prompt: Prompt, service: Service, body: Sampling, options: Options) -> Prompt:
    """By `truncate_prompt_tokens`: its last tokens; of -1, as many as leave room for the answer."""
    kept = body.truncate_prompt_tokens
    if kept == -1:
        kept = max(1, service.model.context_length - (options.get("max_tokens") or 1))
    if kept is None or prompt.num_tokens <= kept:
        return prompt
    return replace(prompt, token_ids=prompt.token_ids[-kept:])


def header_options(request: Request) -> Options:
    """`X-Priority` and `X-Request-Deadline-Ms`; a body's own priority gives way to the header."""
    options: Options = {}
    priority = request.headers.get("x-priority")
    if priority is not None:
        options["priority"] = _priority(priority)
    timeout_s = timeout_of(request.headers)
    if timeout_s is not None:
        options["timeout_s"] = timeout_s
    return options


def _priority(given: str) -> str:
    if given in ("urgent", "normal", "background"):
        return given
    if re.fullmatch(r"-?[0-9]{1,4}", given, re.ASCII):
        return priority_of(int(given))
    raise InvalidRequest("X-Priority", "takes a number, or urgent, normal or background")


def effort_of(
    request: Request, service: Service, effort: Effort | None, field: str
) -> dict[str, str | bool]:
    """A caller's effort in the words of the model's template. One that knows no such switch leaves
    it without effect, and then it is told so: `field` is its name."""
    if effort is None:
        return {}
    variables = effort_variables(service.model.chat_template, effort)
    note_said(request.scope, "reasoning_effort", effort)
    if not variables:
        note_ignored(request.scope, field)
    return variables


def note_asides(house: House, request: Request, body: Ignored) -> None:
    """What a caller says of itself is content: it is kept where token ids are."""
    tier = body.service_tier
    if tier in (*TIERS, *NO_TIER):
        note_said(request.scope, "service_tier", tier)
    elif tier is not None:
        note_ignored(request.scope, "service_tier")
    if house.recorder.records_content:
        for name in ("user", "safety_identifier"):
            note_said(request.scope, name, getattr(body, name))
        if body.metadata:
            bounded = {
                name[:MAX_META_NAME]: text[:MAX_META] for name, text in body.metadata.items()
            }
            note_said(request.scope, "metadata", bounded)


@contextmanager
def naming(names: Mapping[str, str]) -> Iterator[None]:
    """Let an error call a field what this route's callers call it; `name[` stands for whatever lies
    in a list of that name."""
    try:
        yield
    except Refused as refused:
        raise replace(refused, param=names.get(refused.param or "", refused.param)) from refused
    except InvalidRequest as error:
        name = names.get(error.field) or names.get(error.field.partition("[")[0] + "[")
        if name is None or name == error.field:
            raise
        kind = ContextLengthExceeded if isinstance(error, ContextLengthExceeded) else InvalidRequest
        raise kind(name, error.message) from error


def json_reply(value: object, headers: Mapping[str, str] | None = None) -> Response:
    return Response(encode_json(value), headers=headers, media_type=JSON)
