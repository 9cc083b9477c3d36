"""The output of a response as items: reasoning, messages, calls of functions, as the text comes.

Owns: which item a piece of the answer belongs to, and the events that tell of it.
May not know: routes, how a text is read (`text/answers.py`), the rest of a response.
Read next: `routes/responses.py`.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence
from dataclasses import field
from typing import Any

from firsthand.generation.completion import TokenLogprob
from firsthand.server import writing
from firsthand.text.answers import AnswerForm, AnswerReader, Piece
from firsthand.text.tool_calls import CallDelta
from firsthand.values import dataclass

Send = Callable[..., bytes]


@dataclass(slots=True)
class _Open:
    """The item that the text is going into. `call` is its number, of a call."""

    kind: str  # reasoning, message or function_call
    item: dict[str, Any]
    text: str = ""
    call: int = -1
    logprobs: list[dict[str, Any]] = field(default_factory=list)


class Items:
    """`add` each piece of the text, then `finish`; both give events, made by `send(name, …)`. What
    has ended is in `done`."""

    def __init__(self, form: AnswerForm, send: Send) -> None:
        self._reader = AnswerReader(form)
        self._is_plain = form.is_plain
        self._send = send
        self._open: _Open | None = None
        self.done: list[dict[str, Any]] = []

    @property
    def num_reasoning_chars(self) -> int:
        return self._reader.answer.num_reasoning_chars

    def begin(self) -> list[bytes]:
        """A text that can only be a message is one before it comes."""
        return self._go_to("message") if self._is_plain else []

    def add(self, text: str, logprobs: Sequence[TokenLogprob] | None) -> list[bytes]:
        return self._put(self._reader.add(text), logprobs_of(logprobs))

    def finish(self, status: str) -> list[bytes]:
        """`status` is that of the last item, unless it is a call that broke off; an answer without
        any is an empty message."""
        events = self._put(self._reader.finish(), [])
        if self._open is None and not self.done:
            events += self._go_to("message")
        is_call = self._open is not None and self._open.kind == "function_call"
        whole = not is_call or self._reader.ends_with_calls
        return events + self._close(status if whole else "incomplete")

    def _put(self, piece: Piece, logprobs: list[dict[str, Any]]) -> list[bytes]:
        events: list[bytes] = []
        if piece.reasoning:
            events += self._go_to("reasoning") + self._delta(piece.reasoning)
        if piece.content or (logprobs and self._is_plain):
            events += self._go_to("message") + self._delta(piece.content, logprobs)
        for delta in piece.calls:
            events += self._put_call(delta)
        return events

    def _put_call(self, delta: CallDelta) -> list[bytes]:
        events: list[bytes] = []
        if delta.name is not None:
            events += self._close("completed")
            item = {
                "type": "function_call",
                "id": writing.new_id("fc_"),
                "call_id": writing.new_id("call_"),
                "name": delta.name,
                "arguments": "",
                "status": "in_progress",
            }
            events += self._begin(_Open("function_call", item, call=delta.number))
        is_its = self._open is not None and self._open.call == delta.number
        return events + (self._delta(delta.arguments) if is_its and delta.arguments else [])

    def _go_to(self, kind: str) -> list[bytes]:
        """Be in an item of that kind."""
        if self._open is not None and self._open.kind == kind:
            return []
        events = self._close("completed")
        if kind == "reasoning":
            item: dict[str, Any] = {
                "type": kind,
                "id": writing.new_id("rs_"),
                "summary": [],
                "content": [],
                "status": "in_progress",
            }
            return events + self._begin(_Open(kind, item))
        item = {
            "type": "message",
            "id": writing.new_id("msg_"),
            "status": "in_progress",
            "role": "assistant",
            "content": [],
        }
        opened = _Open(kind, item)
        events += self._begin(opened)
        return [*events, self._send("content_part.added", **self._place(opened), part=part("", []))]

    def _begin(self, opened: _Open) -> list[bytes]:
        self._open = opened
        added = self._send("output_item.added", output_index=len(self.done), item=opened.item)
        return [added]

    def _delta(self, text: str, logprobs: list[dict[str, Any]] | None = None) -> list[bytes]:
        opened = self._open
        assert opened is not None, "its caller has opened one"
        opened.text += text
        match opened.kind:
            case "message":
                opened.logprobs += logprobs or []
                place = self._place(opened)
                name = "output_text.delta"
                return [self._send(name, **place, delta=text, logprobs=logprobs or [])]
            case "reasoning":
                return [self._send("reasoning_text.delta", **self._place(opened), delta=text)]
            case _:
                place = self._of_item(opened)
                return [self._send("function_call_arguments.delta", **place, delta=text)]

    def _close(self, status: str) -> list[bytes]:
        opened, self._open = self._open, None
        if opened is None:
            return []
        place, text = self._place(opened), opened.text
        opened.item = {**opened.item, "status": status}
        match opened.kind:
            case "message":
                whole = part(text, opened.logprobs)
                opened.item["content"] = [whole]
                said = {"text": text, "logprobs": opened.logprobs}
                events = [
                    self._send("output_text.done", **place, **said),
                    self._send("content_part.done", **place, part=whole),
                ]
            case "reasoning":
                opened.item["content"] = [{"type": "reasoning_text", "text": text}]
                events = [self._send("reasoning_text.done", **place, text=text)]
            case _:
                opened.item["arguments"] = text
                name = opened.item["name"]
                of_item = self._of_item(opened)
                done = "function_call_arguments.done"
                events = [self._send(done, **of_item, name=name, arguments=text)]
        index = len(self.done)
        self.done.append(opened.item)
        return [*events, self._send("output_item.done", output_index=index, item=opened.item)]

    def _of_item(self, opened: _Open) -> dict[str, Any]:
        return {"item_id": opened.item["id"], "output_index": len(self.done)}

    def _place(self, opened: _Open) -> dict[str, Any]:
        return {**self._of_item(opened), "content_index": 0}


def part(text: str, logprobs: list[dict[str, Any]]) -> dict[str, Any]:
    return {"type": "output_text", "text": text, "annotations": [], "logprobs": logprobs}


def logprobs_of(entries: Sequence[TokenLogprob] | None) -> list[dict[str, Any]]:
    found = writing.chat_logprobs(entries)
    content: list[dict[str, Any]] = [] if found is None else found["content"]
    return content
