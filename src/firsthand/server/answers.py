"""The streams of one body, read as one.

Owns: which choice a piece belongs to (prompt by prompt, n of each), that everything is closed
whichever way the reading ends, and which ends are failures.
May not know: wire formats, sockets.
Read next: `writing.py`, which turns pieces and completions into replies.
"""

from __future__ import annotations

import asyncio
from collections import deque
from collections.abc import AsyncGenerator, Awaitable, Callable, Sequence
from contextlib import aclosing
from dataclasses import replace
from typing import Any, TypeVar

from starlette.requests import Request

from firsthand.errors import FirsthandError
from firsthand.generation.completion import Chunk, Completion, without_logprobs
from firsthand.generation.service import AsyncTextStream, StreamUsage
from firsthand.request import FinishReason
from firsthand.server.asking import Submitted
from firsthand.server.guard.refusal import Refused, client_gone
from firsthand.server.writing import usage

T = TypeVar("T")


class Answers:
    """What was submitted for one body: each prompt `n` times. Read it once."""

    def __init__(
        self,
        submitted: Sequence[Submitted],
        n: int,
        request_id: str,
        on_finish: Callable[[str, Completion], None],
        *,
        hides_logprobs: bool = False,
    ) -> None:
        """`hides_logprobs`: they were not asked for by whoever reads `chunks`."""
        self._submitted = submitted
        self._n = n
        self.request_id = request_id
        self._on_finish = on_finish
        self._hides = hides_logprobs
        self._closed = False
        self._held: deque[tuple[int, Chunk]] = deque()
        self._source = self._read()
        self.more: Callable[[], dict[str, Any]] = dict  # fields of the reply, so far

    @property
    def num_choices(self) -> int:
        return self._n * len(self._submitted)

    @property
    def prompt_token_ids(self) -> list[tuple[int, ...]]:
        return [one.stream.prompt.token_ids for one in self._submitted]

    @property
    def usage(self) -> StreamUsage:
        """Summed over the prompts, so far."""
        each = [one.stream.usage for one in self._submitted]
        return StreamUsage(
            prompt_tokens=sum(usage.prompt_tokens for usage in each),
            completion_tokens=sum(usage.completion_tokens for usage in each),
            cached_tokens=sum(usage.cached_tokens for usage in each),
            draft_tokens=sum(usage.draft_tokens for usage in each),
            accepted_tokens=sum(usage.accepted_tokens for usage in each),
        )

    async def hold(self, enough: Callable[[int, Chunk], bool]) -> None:
        """Read ahead, until the pieces are enough or there are no more; `chunks` begins with them,
        for whoever calls it. Raises as it does."""
        async for index, chunk in self._source:
            self._held.append((index, chunk))
            if enough(index, chunk):
                return

    async def give_up(self) -> list[str]:
        """Nobody gets these answers, and they cost their caller nothing. The engine's ids."""
        if not self._closed:
            self._closed = True
            for one in self._submitted:
                one.stream.close()
                one.ticket.withdraw()
        await self._source.aclose()
        return [one.stream.request_id for one in self._submitted]

    def chunks(self) -> AsyncGenerator[tuple[int, Chunk], None]:
        """Every piece with the index of its choice, as they come. Raises an error where an answer
        ended by a failure; what it had until then is given first."""
        return self._from_held() if self._held or self._hides else self._source

    async def _from_held(self) -> AsyncGenerator[tuple[int, Chunk], None]:
        async with aclosing(self._source) as source:
            while self._held:
                yield self._given(*self._held.popleft())
            async for index, chunk in source:
                yield self._given(index, chunk)

    def _given(self, index: int, chunk: Chunk) -> tuple[int, Chunk]:
        return index, without_logprobs(chunk) if self._hides else chunk

    async def _read(self) -> AsyncGenerator[tuple[int, Chunk], None]:
        ended = False
        source = self._single() if len(self._submitted) == 1 else self._merged()
        try:
            async with aclosing(source):
                async for index, chunk in source:
                    one = self._submitted[index // self._n]
                    if chunk.completion is not None:
                        one.ticket.finished(chunk.completion)
                        self._on_finish(one.stream.request_id, chunk.completion)
                    failure = self._failure(one, chunk.completion)
                    yield index, chunk if failure is None else replace(chunk, completion=None)
                    if failure is not None:
                        raise failure
            ended = True
        finally:
            self.close(ended=ended)

    async def completions(self) -> list[Completion]:
        """Read to the end; by index. Raises as `chunks`."""
        found: dict[int, Completion] = {}
        async with aclosing(self.chunks()) as chunks:
            async for index, chunk in chunks:
                if chunk.completion is not None:
                    found[index] = chunk.completion
        return [found[index] for index in sorted(found)]

    def close(self, *, ended: bool = False) -> None:
        """Give up what has not ended; only the first call counts."""
        if self._closed:
            return
        self._closed = True
        for one in self._submitted:
            one.stream.close()
            one.ticket.close(one.stream.usage, ended=ended)

    async def _single(self) -> AsyncGenerator[tuple[int, Chunk], None]:
        async for chunk in self._submitted[0].stream:
            yield chunk.index, chunk

    async def _merged(self) -> AsyncGenerator[tuple[int, Chunk], None]:
        """Whichever stream has something, in the order of the prompts within one turn."""
        streams = [one.stream for one in self._submitted]
        reading = {_next(stream): position for position, stream in enumerate(streams)}
        try:
            while reading:
                done, _ = await asyncio.wait(reading, return_when=asyncio.FIRST_COMPLETED)
                for task in sorted(done, key=reading.__getitem__):
                    position = reading.pop(task)
                    chunk = task.result()
                    if chunk is not None:
                        reading[_next(streams[position])] = position
                        yield position * self._n + chunk.index, chunk
        finally:
            for task in reading:
                task.cancel()
            await asyncio.gather(*reading, return_exceptions=True)

    def _failure(self, one: Submitted, completion: Completion | None) -> FirsthandError | None:
        """What is told of an end that is no answer."""
        if completion is None:
            return None
        num = completion.usage.completion_tokens
        match completion.finish.reason:
            case FinishReason.DEADLINE:
                when = f"after {num} tokens" if num else "before the first token"
                status = 504 if num else 408
                message = f"the deadline passed {when}"
                used = usage(self.usage) if num else None
                told = (status, message, "deadline_exceeded")
                return Refused(*told, outcome="deadline", usage=used)
            case FinishReason.CANCELLED if one.ticket.spent:
                message = f"ended after {num} tokens: the machine's memory is spent"
                return Refused(503, message, "degraded", retry_after_s=1.0, outcome="memory")
            case FinishReason.CANCELLED:
                message = f"ended by the operator after {num} tokens"
                return Refused(503, message, "cancelled", outcome="cancelled")
            case FinishReason.ERROR:
                return one.stream.error_of(completion.finish)
            case _:
                return None


def _next(stream: AsyncTextStream) -> asyncio.Task[Chunk | None]:
    return asyncio.create_task(_next_or_none(stream))


async def _next_or_none(stream: AsyncTextStream) -> Chunk | None:
    try:
        return await anext(stream)
    except StopAsyncIteration:  # which a task cannot raise
        return None


async def unless_gone(request: Request, work: Awaitable[T]) -> T:
    """The result of `work`, which is cancelled when the client goes; then Refused (never sent)."""
    task = asyncio.ensure_future(work)
    watcher = asyncio.create_task(_gone(request))
    try:
        await asyncio.wait((task, watcher), return_when=asyncio.FIRST_COMPLETED)
        if not task.done():
            raise client_gone()
        return task.result()
    finally:
        for each in (task, watcher):
            each.cancel()
        await asyncio.gather(task, watcher, return_exceptions=True)


async def _gone(request: Request) -> None:
    while (await request.receive())["type"] != "http.disconnect":
        pass
