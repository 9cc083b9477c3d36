"""What passes between a service and its engine's process: frozen values, as frames of bytes.

Owns: which messages exist, how an error crosses with its class and fields, the size of a frame.
May not know: sockets, processes, who waits for what.
Read next: `child.py` and `remote.py`, the two ends.

A frame is its length in four bytes (big-endian) and so many bytes of MessagePack, which msgspec
checks against the types below: a value of our own is as valid behind the border as before it, and
nothing is ever pickled. A frame that is too long or is none of these ends the connection.
"""

from __future__ import annotations

import struct
from typing import Generic, TypeVar

import msgspec

from firsthand import errors
from firsthand.engine.facts import StepFacts
from firsthand.errors import CapacityExceeded, CheckpointError, EngineError, InvalidRequest
from firsthand.generation.load_options import LoadOptions
from firsthand.generation.report import AdapterFacts, LoadTimes, Memory
from firsthand.request import Request, TokenEvent
from firsthand.scheduling.limits import Limits
from firsthand.scheduling.picture import Picture

MAX_FRAME_BYTES = 32 << 20
MAX_FAULT_CHARS = 2000
_LENGTH = struct.Struct(">I")


class LoadModel(msgspec.Struct, frozen=True, tag=True):
    """The first frame of all: what to load. Faults can be put in where `chaos` says so."""

    model: str
    options: LoadOptions
    chaos: bool = False


class Submit(msgspec.Struct, frozen=True, tag=True):
    request: Request


class Abort(msgspec.Struct, frozen=True, tag=True):
    """`index` None: the whole request."""

    request_id: str
    index: int | None = None


class Ping(msgspec.Struct, frozen=True, tag=True):
    """To be answered by the step loop, between two steps."""

    number: int


class Look(msgspec.Struct, frozen=True, tag=True):
    """To be answered between two steps by a picture of who runs and who waits."""


class Pace(msgspec.Struct, frozen=True, tag=True):
    """How fast steps may follow each other: not at all but for the next `num_steps`, or with so
    much time between two of them."""

    paused: bool = False
    num_steps: int = 0
    delay_s: float = 0.0


class Disturb(msgspec.Struct, frozen=True, tag=True):
    """Put a fault in, for so long; see `faults.py`."""

    name: str
    seconds: float
    amount: float


class Fault(msgspec.Struct, frozen=True):
    """An exception of the tree in `errors.py`, or what comes nearest to one that is not."""

    kind: str
    message: str
    fields: tuple[str | None, ...] = ()


class EngineFacts(msgspec.Struct, frozen=True):
    """What is true of an engine from its first step to its last. The longest step is an
    estimate from the warm-up: `limits.max_step_tokens` tokens, in time and in processor time."""

    limits: Limits
    num_blocks: int
    block_size: int
    block_bytes: int
    load: LoadTimes
    memory: Memory
    longest_step_ms: float
    longest_step_cpu_ms: float
    adapters: dict[str, AdapterFacts] = {}


class Loading(msgspec.Struct, frozen=True, tag=True):
    """How far the load is, in bytes of the model's files."""

    done_bytes: int
    total_bytes: int


class Ready(msgspec.Struct, frozen=True, tag=True):
    engine: EngineFacts


class Failed(msgspec.Struct, frozen=True, tag=True):
    """The load failed, or the engine ends by a fault outside any step's boundary."""

    fault: Fault


class Stepped(msgspec.Struct, frozen=True, tag=True):
    """The events of one step with its facts; or, without, those of aborts between two steps."""

    events: tuple[TokenEvent, ...]
    facts: StepFacts | None = None


class Declined(msgspec.Struct, frozen=True, tag=True):
    """A request that was submitted is not run; none of its events will come."""

    request_id: str
    fault: Fault


class Disturbed(msgspec.Struct, frozen=True, tag=True):
    """The answer to `Disturb`; `fault`: why it was refused."""

    fault: Fault | None = None


class Pong(msgspec.Struct, frozen=True, tag=True):
    """`has_reserve`: memory is not short."""

    number: int
    peak_rss_bytes: int
    has_reserve: bool = True


class Logged(msgspec.Struct, frozen=True, tag=True):
    """A line of the child's log; `fault` is the class of an exception, `stack` where it was."""

    level: int
    module: str
    message: str
    fault: str = ""
    stack: tuple[str, ...] = ()


class Seen(msgspec.Struct, frozen=True, tag=True):
    picture: Picture


ToChild = LoadModel | Submit | Abort | Ping | Look | Pace | Disturb
FromChild = Loading | Ready | Failed | Stepped | Declined | Disturbed | Pong | Logged | Seen

M = TypeVar("M")
_encoder = msgspec.msgpack.Encoder()


def encode(message: ToChild | FromChild) -> bytes:
    """The frame. Raises EngineError when the message is too long for one."""
    body = _encoder.encode(message)
    if len(body) > MAX_FRAME_BYTES:
        raise EngineError(f"a message of {len(body)} bytes, over {MAX_FRAME_BYTES}")
    return _LENGTH.pack(len(body)) + body


class FrameReader(Generic[M]):
    """Bytes as they come, messages as they are whole. One direction of one connection."""

    def __init__(self, decoder: msgspec.msgpack.Decoder[M]) -> None:
        self._decoder = decoder
        self._pending = bytearray()

    def feed(self, data: bytes) -> list[M]:
        """Raises EngineError on what is no frame of this direction; then the connection is done
        with."""
        pending = self._pending
        pending += data
        messages: list[M] = []
        start = 0
        while len(pending) - start >= _LENGTH.size:
            (length,) = _LENGTH.unpack_from(pending, start)
            if length > MAX_FRAME_BYTES:
                raise EngineError(f"a frame of {length} bytes, over {MAX_FRAME_BYTES}")
            end = start + _LENGTH.size + length
            if len(pending) < end:
                break
            messages.append(self._decode(bytes(pending[start + _LENGTH.size : end])))
            start = end
        del pending[:start]
        return messages

    def _decode(self, body: bytes) -> M:
        try:
            return self._decoder.decode(body)
        except (msgspec.MsgspecError, errors.FirsthandError) as error:
            raise EngineError(f"a frame that is none: {error}") from None


def child_reader() -> FrameReader[ToChild]:
    return FrameReader(msgspec.msgpack.Decoder(ToChild))


def parent_reader() -> FrameReader[FromChild]:
    return FrameReader(msgspec.msgpack.Decoder(FromChild))


def to_fault(error: BaseException) -> Fault:
    """The error as a value. Of one that is not of our tree, the class's name is in the text."""
    text = str(error)[:MAX_FAULT_CHARS]
    match error:
        case InvalidRequest():
            return Fault(type(error).__name__, text, (error.field,))
        case errors.SourceRefused():
            return Fault(type(error).__name__, text, (error.part,))
        case CheckpointError():
            return Fault(type(error).__name__, text, (error.file, error.tensor))
        case errors.FirsthandError():
            return Fault(type(error).__name__, text)
        case MemoryError():
            return Fault(CapacityExceeded.__name__, text or "out of memory")
        case _:
            return Fault(EngineError.__name__, f"{type(error).__name__}: {text}")


def from_fault(fault: Fault) -> errors.FirsthandError:
    """The exception again: its class, its fields, its text."""
    kind = getattr(errors, fault.kind, None)
    fields = fault.fields
    if not isinstance(kind, type) or not issubclass(kind, errors.FirsthandError):
        return EngineError(f"{fault.kind}: {fault.message}")
    if issubclass(kind, InvalidRequest | errors.SourceRefused):
        field = (fields and fields[0]) or "request"
        return kind(field, fault.message.removeprefix(f"{field}: "))
    if issubclass(kind, CheckpointError):
        file, tensor = fields if len(fields) == 2 else (None, None)
        before = str(kind(file or "", "", tensor))
        return kind(file or "", fault.message.removeprefix(before), tensor)
    return kind(fault.message)
