"""From messages to a prompt, by the model's own chat template.

Owns: what a message may be, what a template gets to see, and that users' texts stay texts.
May not know: how rendering is bounded (`template_process.py`), token ids, requests.
Read next: `markers.py` (the guard), `template_process.py`.

Rules:
- A message has a `role` (system, developer, user, assistant or tool) and `content`: a text, or a
  list of parts `{"type": "text", "text": …}`, which are joined in order with nothing between.
  Null or no content is for an assistant's message that calls tools. Other fields pass through.
- The template comes with the model or from whoever runs the server, never with a request.
- Nothing is folded away: a template that knows no system role refuses it, and its words reach
  the user.
- Whatever strings a caller sent, in messages, tools or template variables, are guarded: a
  control token's text in them stays text in the prompt.
"""

from __future__ import annotations

from collections.abc import Iterator, Mapping, Sequence
from typing import Any

from firsthand.checks import shown
from firsthand.errors import InvalidRequest, TemplateError
from firsthand.text.markers import Guard
from firsthand.text.template_process import TemplateProcess
from firsthand.text.tokenizer import RenderedPrompt, Tokenizer

ROLES = ("system", "developer", "user", "assistant", "tool")
MAX_MESSAGES = 10_000
MAX_DEPTH = 32
_OWN_VARIABLES = frozenset(
    ("messages", "tools", "documents", "add_generation_prompt", "chat_template", "template")
) | {"strftime_now", "raise_exception"}


class ChatTemplate:
    """The template of one model. `source` overrides the model's own (an operator's file).

    A model without one is no error until a chat is asked for.
    """

    def __init__(
        self, tokenizer: Tokenizer, process: TemplateProcess, source: str | None = None
    ) -> None:
        self._controls = tokenizer.controls
        self._special_texts = dict(tokenizer.special_texts)
        self._process = process
        self.source = tokenizer.chat_template if source is None else source

    def check(self) -> None:
        """Raises InvalidRequest for `chat_template` where it cannot be compiled."""
        if self.source is not None:
            try:
                self._process.render(self.source, None)
            except TemplateError as error:
                raise InvalidRequest("chat_template", error.message) from None

    def render(
        self,
        messages: Sequence[Mapping[str, Any]],
        *,
        add_generation_prompt: bool = True,
        tools: Sequence[Mapping[str, Any]] | None = None,
        variables: Mapping[str, Any] | None = None,
        now_s: float | None = None,
    ) -> RenderedPrompt:
        """The prompt for `messages`. `tools` and `variables` (chat_template_kwargs) come from the
        server's requests; `now_s` is the time that the template sees, None the clock's.

        Raises InvalidRequest (no template; a message that breaks a rule), TemplateError.
        """
        if self.source is None:
            raise InvalidRequest("messages", "this model has no chat template; use completions")
        checked = check_messages(messages)
        variables = self._check_variables(variables or {})
        strings = _strings([checked, tools, variables])
        guard = Guard(self._controls, [self.source, *strings])
        text = self._process.render(
            self.source,
            {
                **self._special_texts,
                "documents": None,
                **{name: _guard_strings(value, guard) for name, value in variables.items()},
                "messages": [_guard_message(message, guard) for message in checked],
                "tools": _guard_strings(tools, guard),
                "add_generation_prompt": add_generation_prompt,
            },
            now_s,
        )
        return RenderedPrompt(text, guard.char if guard.char in text else "")

    def _check_variables(self, variables: Mapping[str, Any]) -> Mapping[str, Any]:
        for name in variables:
            if not isinstance(name, str) or not name.isidentifier():
                raise InvalidRequest(
                    "chat_template_kwargs", f"{shown(name)} is not a variable's name"
                )
            if name in _OWN_VARIABLES or name in self._special_texts or name.endswith("_token"):
                raise InvalidRequest("chat_template_kwargs", f"{shown(name)} cannot be set here")
        return variables


def check_messages(messages: object) -> list[dict[str, Any]]:
    """The messages with lists of text parts joined. Raises InvalidRequest, naming the place."""
    if not isinstance(messages, list | tuple):
        raise InvalidRequest("messages", "must be a list")
    if not messages:
        raise InvalidRequest("messages", "must hold at least one message")
    if len(messages) > MAX_MESSAGES:
        raise InvalidRequest("messages", f"at most {MAX_MESSAGES}, not {len(messages)}")
    return [_check_message(message, f"messages[{i}]") for i, message in enumerate(messages)]


def _check_message(message: object, where: str) -> dict[str, Any]:
    if not isinstance(message, Mapping):
        raise InvalidRequest(where, "must be an object with role and content")
    role = message.get("role")
    if not isinstance(role, str) or role not in ROLES:
        raise InvalidRequest(
            f"{where}.role", f"must be one of {', '.join(ROLES)}, not {shown(role)}"
        )
    content = message.get("content")
    if content is None:
        if role != "assistant" or not message.get("tool_calls"):
            raise InvalidRequest(f"{where}.content", "is missing")
        return dict(message)
    return {**message, "content": _content_text(content, f"{where}.content")}


def _content_text(content: object, where: str) -> str:
    if isinstance(content, str):
        return content
    if not isinstance(content, list | tuple):
        raise InvalidRequest(where, f"must be a text or a list, not {type(content).__name__}")
    texts = []
    for index, part in enumerate(content):
        if not isinstance(part, Mapping):
            raise InvalidRequest(f"{where}[{index}]", "must be an object with type and text")
        if part.get("type") != "text":
            raise InvalidRequest(
                f"{where}[{index}].type",
                f"{shown(part.get('type'))} is not supported; only 'text' is",
            )
        text = part.get("text")
        if not isinstance(text, str):
            raise InvalidRequest(f"{where}[{index}].text", "must be a text")
        texts.append(text)
    return "".join(texts)


def _strings(value: object, depth: int = 0) -> Iterator[str]:
    """Every string in a value of JSON's types, names included. Bounds its depth, too."""
    if depth > MAX_DEPTH:
        raise InvalidRequest("messages", f"nested more than {MAX_DEPTH} deep")
    if isinstance(value, str):
        yield value
    elif isinstance(value, Mapping):
        for name, item in value.items():
            if not isinstance(name, str):
                raise InvalidRequest("messages", f"{shown(name)} is a field's name, but no text")
            yield name
            yield from _strings(item, depth + 1)
    elif isinstance(value, list | tuple):
        for item in value:
            yield from _strings(item, depth + 1)


def _guard_message(message: Mapping[str, Any], guard: Guard) -> dict[str, Any]:
    """All of it guarded, but for what a caller does not choose: two names, and the role, which is
    one of a few words."""
    return {
        name if name in ("role", "content") else guard.protect(name): (
            value if name == "role" else _guard_strings(value, guard)
        )
        for name, value in message.items()
    }


def _guard_strings(value: Any, guard: Guard) -> Any:
    if isinstance(value, str):
        return guard.protect(value)
    if isinstance(value, Mapping):
        return {
            _guard_strings(name, guard): _guard_strings(item, guard) for name, item in value.items()
        }
    if isinstance(value, list | tuple):
        return [_guard_strings(item, guard) for item in value]
    return value
