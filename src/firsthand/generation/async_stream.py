"""The text of one request, awaited piece by piece.

Owns: what a reader gets per wait, and that nobody who leaves is computed for.
May not know: processes, frames, HTTP.
Read next: `texts.py` (events become texts), `remote_stream.py`.
"""

from __future__ import annotations

import asyncio
import weakref

from firsthand.errors import FirsthandError
from firsthand.generation.completion import Chunk, Completion
from firsthand.generation.remote_stream import RemoteStream
from firsthand.generation.service_values import Prompt, StreamUsage
from firsthand.generation.texts import Texts
from firsthand.request import Finish, Request


class AsyncTextStream:
    """An async iterator of `Chunk` (index, text, token ids, logprobs; the last one of each of the
    n sequences has its `Completion` with finish, usage, seed and report with the timings).

    A reader that is slower than the engine gets larger chunks. With n = 1 a fault of the engine
    raises EngineError from `__anext__`; with more it is the finish reason ERROR of the sequences
    that it hit. When the engine's process is lost, EngineUnavailable is raised, whatever n is.
    Closing, dropping or leaving it before the end aborts the request: its blocks are free before
    the next step. A wait that is cancelled loses nothing; one reader at a time.
    """

    def __init__(self, events: RemoteStream, texts: Texts, prompt: Prompt) -> None:
        self._events = events
        self._texts = texts
        self._prompt = prompt
        # Runs also when the stream is dropped, on whichever thread collects it.
        loop = asyncio.get_running_loop()
        self._abandon = weakref.finalize(self, _close_on, loop, events)
        self._abandon.atexit = False

    @property
    def request(self) -> Request:
        """As the engine has it."""
        return self._events.request

    @property
    def request_id(self) -> str:
        """The service's own, never a caller's."""
        return self._events.request.request_id

    @property
    def seed(self) -> int:
        """Of the request: given, or drawn."""
        return self._events.request.seed

    @property
    def prompt(self) -> Prompt:
        return self._prompt

    @property
    def usage(self) -> StreamUsage:
        """So far; after the last chunk, all of it."""
        return self._texts.usage

    def __aiter__(self) -> AsyncTextStream:
        return self

    async def __anext__(self) -> Chunk:
        choices = self._texts.choices
        event = await self._events.get()
        while choices[event.index].ended:  # what its abort crossed
            event = await self._events.get()
        choice = choices[event.index]
        finish = self._texts.take(event)
        while finish is None:
            more = self._events.get_more(choice.index)
            if more is None:
                break
            event, finish = more, self._texts.take(more)
        if self._texts.ended:
            self.close()
        elif finish is not None and event.finish is None:  # a stop string
            self._events.close_index(choice.index)
        fault = self._texts.fault(finish)
        if fault is not None:
            raise fault
        chunk = choice.chunk()
        choice.was_given()
        return chunk

    def error_of(self, finish: Finish) -> FirsthandError:
        """That of a sequence which ended by a fault; see `Texts.error_of`."""
        return self._texts.error_of(finish)

    async def completions(self) -> list[Completion]:
        """Read to the end; one per sequence, in the order of their index."""
        async for _ in self:
            pass
        return self._texts.completions()

    def close(self) -> None:
        """Abort what is left; no-op after the end, may be called again."""
        self._abandon.detach()
        self._events.close()

    async def __aenter__(self) -> AsyncTextStream:
        return self

    async def __aexit__(self, *_: object) -> None:
        self.close()


def _close_on(loop: asyncio.AbstractEventLoop, events: RemoteStream) -> None:
    if not loop.is_closed():
        loop.call_soon_threadsafe(events.close)
