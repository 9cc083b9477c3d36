"""The events of one request between the engine's process and their reader.

Owns: the order, the wait, and what a close, an abort or a lost engine means for the reader.
May not know: text, processes, who puts the events in.
Read next: `async_stream.py` (the reader), `remote.py` (who puts them in).
"""

from __future__ import annotations

import asyncio
from collections import deque
from collections.abc import Callable
from dataclasses import replace

from firsthand.errors import FirsthandError
from firsthand.request import PromptPart, Request, TokenEvent


class RemoteStream:
    """The events of one request, in order; one reader. As `engine.worker.EventStream`, awaited.

    It holds at most n · (max_tokens + 1) events, for a request gives no more. It keeps the tokens
    that came, so that another engine can go on where this one was lost: `rest`.
    """

    def __init__(self, request: Request, abort: Callable[[str, int | None], None]) -> None:
        self.request = request
        self._abort = abort
        self._events: deque[TokenEvent] = deque()
        self._num_unread = len(request.beginnings)  # finishes that the reader has not seen
        self._num_open = self._num_unread  # finishes that have not come
        self._begun = {index: list(tokens) for index, tokens in request.beginnings.items()}
        self._num_scores = 0  # of the prompt's tokens, that came
        self._num_again = 0  # of them, that come once more
        self._fault: FirsthandError | None = None
        self._waiter: asyncio.Future[None] | None = None

    def put(self, event: TokenEvent) -> bool:
        """True: that was the last event."""
        if event.prompt is not None:
            event = self._not_again(event, event.prompt)
        if event.token_id is not None:
            self._begun[event.index].append(event.token_id)
        self._events.append(event)
        self._wake()
        if event.finish is not None:
            self._num_open -= 1
            del self._begun[event.index]
        return self._num_open == 0

    def rest(self) -> Request:
        """What there is still to do, for another engine. Whatever it tells once more of the prompt
        is left out when it is `put`."""
        self._num_again = self._num_scores
        begun = [self._begun.get(index) for index in range(self.request.n)]
        tokens = tuple(None if one is None else tuple(one) for one in begun)
        return replace(self.request, begun=tokens if any(one != () for one in tokens) else ())

    @property
    def open_indexes(self) -> tuple[int, ...]:
        """Sequences whose finish has not come."""
        return tuple(self._begun)

    @property
    def has_failed(self) -> bool:
        return self._fault is not None

    def fail(self, fault: FirsthandError) -> None:
        """No more events will come; the reader gets those that did, then `fault`."""
        self._fault = fault
        self._wake()

    async def get(self) -> TokenEvent:
        """Raises StopAsyncIteration after the last, or after `close`."""
        while self._num_unread > 0 and not self._events:
            if self._fault is not None:
                self._num_unread = 0
                raise self._fault
            self._waiter = asyncio.get_running_loop().create_future()
            await self._waiter
        if self._num_unread <= 0:
            raise StopAsyncIteration
        return self._next()

    def get_more(self, index: int) -> TokenEvent | None:
        """The next event if it is there already, and of that sequence."""
        if self._num_unread <= 0 or not self._events or self._events[0].index != index:
            return None
        return self._next()

    def close(self) -> None:
        """Abort what is left. May be called again."""
        if self._num_unread > 0:
            self._num_unread = 0
            self._events.clear()
            self._wake()
            self._abort(self.request.request_id, None)

    def close_index(self, index: int) -> None:
        """Abort one sequence; its finish still comes, unless it has come."""
        if self._num_unread > 0:
            self._abort(self.request.request_id, index)

    def _not_again(self, event: TokenEvent, part: PromptPart) -> TokenEvent:
        num_known = min(self._num_again, len(part.scores))
        self._num_again -= num_known
        self._num_scores += len(part.scores) - num_known
        return event._replace(prompt=replace(part, scores=part.scores[num_known:]))

    def _next(self) -> TokenEvent:
        event = self._events.popleft()
        if event.finish is not None:
            self._num_unread -= 1
        return event

    def _wake(self) -> None:
        waiter, self._waiter = self._waiter, None
        if waiter is not None and not waiter.done():
            waiter.set_result(None)
