"""What passes between a door and a replica: frozen values, as frames of bytes.

Owns: which messages exist on that way beside those of an engine's process.
May not know: Ray, who waits for what.
Read next: `../generation/frames.py`, whose frames these are; `replica.py` and `link.py`, the ends.

Ray carries bytes; what they mean is checked here, as on the way to an engine's process. Times are
of the sender's clock: `Beat.clock_s` and `machine` tell how that stands to the reader's.
"""

from __future__ import annotations

import struct
from collections.abc import Iterator
from typing import TypeVar

import msgspec

from firsthand.errors import EngineError, FirsthandError
from firsthand.generation.frames import (
    Abort,
    Disturb,
    EngineFacts,
    Fault,
    Look,
    Pace,
    Seen,
    Stepped,
)
from firsthand.generation.load_options import LoadOptions
from firsthand.request import Request

DOOR_MARK = "+"  # between the name of a door and the rest of an id
_LENGTH = struct.Struct(">I")


class ReplicaOptions(msgspec.Struct, frozen=True):
    """What a replica is told to run. `version`: of the model, as the door has it; None: a path."""

    model: str
    load: LoadOptions
    hang_s: float
    max_requests: int
    chaos: bool = False
    version: str | None = None


class Begin(msgspec.Struct, frozen=True):
    """A request, under an id that begins with its door's name and a plus sign. `left_s` until its
    deadline."""

    request: Request
    left_s: float | None = None


class End(msgspec.Struct, frozen=True):
    """All of its events were given to the link; or `fault`: there will be no more of them, or none
    at all if it was not `taken`."""

    fault: Fault | None = None
    taken: bool = True


class Open(msgspec.Struct, frozen=True):
    """A door opens its link: whatever it had asked for before is forgotten."""

    door: str


class Alive(msgspec.Struct, frozen=True, tag=True):
    """A door is there, and says so now and then."""

    door: str


class Tell(msgspec.Struct, frozen=True):
    message: Abort | Look | Pace | Disturb | Alive


class Beat(msgspec.Struct, frozen=True, tag=True):
    """What a replica is, at least once a second. `facts` None: no engine of it was ever ready."""

    machine: str  # of its clock: one start of one machine
    clock_s: float
    pid: int | None
    takes_requests: bool
    reason: str
    num_restarts: int
    peak_rss_bytes: int
    memory_short: bool
    stalled_s: float
    silent_s: float
    cpu_s: float  # of Ray's process and its engine's, since they began
    facts: EngineFacts | None = None


FromReplica = Beat | Stepped | Seen

M = TypeVar("M")
_encoder = msgspec.msgpack.Encoder()
_from_replica: msgspec.msgpack.Decoder[FromReplica] = msgspec.msgpack.Decoder(FromReplica)


def door_of(wire_id: str) -> str:
    """Of the id under which a door sends a request."""
    return wire_id.partition(DOOR_MARK)[0]


def name_of(wire_id: str) -> str:
    """The request's id as its service knows it."""
    return wire_id.rpartition(DOOR_MARK)[2]


def packed(message: msgspec.Struct) -> bytes:
    return _encoder.encode(message)


def unpacked(data: bytes, kind: type[M]) -> M:
    """Raises EngineError for what is none."""
    try:
        return msgspec.msgpack.decode(data, type=kind)
    except (msgspec.MsgspecError, FirsthandError) as error:
        raise EngineError(f"a message that is none: {error}") from None


def joined(messages: list[FromReplica]) -> bytes:
    """All of them as one piece."""
    bodies = map(packed, messages)
    return b"".join(part for body in bodies for part in (_LENGTH.pack(len(body)), body))


def parted(data: bytes) -> Iterator[FromReplica]:
    """What was joined. Raises EngineError."""
    start = 0
    while start < len(data):
        if len(data) - start < _LENGTH.size:
            raise EngineError("a piece that was cut")
        (length,) = _LENGTH.unpack_from(data, start)
        start += _LENGTH.size
        try:
            yield _from_replica.decode(memoryview(data)[start : start + length])
        except (msgspec.MsgspecError, FirsthandError) as error:
            raise EngineError(f"a frame that is none: {error}") from None
        start += length
