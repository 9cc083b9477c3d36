"""What the program inside a legacy PyTorch file says, found without running anything.

Owns: the few opcodes that a saved state dict consists of, and the six names it may mention.
May not know: archives, files on disk, arrays.
Read next: `torch_bin.py` (from this to tensors).
Seen in: `firsthand lab legacy-file`.

A pickle is a program for a small stack machine, which may call any function by name; that is
how such a file takes over who opens it. Here the machine has no calls. A name becomes a value,
and a call of one of six known names becomes a value of this module; any other opcode or name
ends the reading. Source: the protocol's published opcode list, and what PyTorch writes since
1.6. Limits: 2,000,000 steps, 512 bytes for a global's name.
"""

from __future__ import annotations

import struct
from collections.abc import Callable
from typing import Any

from firsthand.errors import CheckpointError, UnsupportedModel
from firsthand.values import dataclass

MAX_STEPS = 2_000_000
MAX_GLOBAL_BYTES = 512
MAX_RANK = 8

STORAGE_KINDS = {
    "torch.FloatStorage": "F32",
    "torch.HalfStorage": "F16",
    "torch.BFloat16Storage": "BF16",
}
_ORDERED_DICT = "collections.OrderedDict"
_REBUILD_TENSOR = "torch._utils._rebuild_tensor_v2"
_REBUILD_PARAMETER = "torch._utils._rebuild_parameter"
_CALLABLE = (_ORDERED_DICT, _REBUILD_TENSOR, _REBUILD_PARAMETER)


@dataclass(frozen=True, slots=True)
class Global:
    """A name that the program mentions."""

    name: str


@dataclass(frozen=True, slots=True)
class StorageRef:
    """A run of numbers in the archive's entry data/`key`."""

    kind: str
    key: str
    num_elements: int


@dataclass(frozen=True, slots=True)
class TensorRef:
    """A view of a storage; `first` and `strides` count elements. Not yet checked for bounds."""

    storage: StorageRef
    first: int
    shape: tuple[int, ...]
    strides: tuple[int, ...]


def read_program(program: bytes, file: str) -> Any:
    """The one value that the program leaves: dicts, lists, tuples, plain values, TensorRefs.

    Raises CheckpointError naming the byte and the opcode or global that is refused.
    """
    machine = _Machine(program, file)
    for _ in range(MAX_STEPS):
        code = machine.take(1)
        if code == b".":
            return machine.result()
        action = _ACTIONS.get(code)
        if action is None:
            raise machine.fault(f"the opcode {code!r} is not allowed")
        action(machine)
    raise machine.fault(f"more than {MAX_STEPS} steps")


class _Machine:
    """A stack of values, the marks in it, and the memo that lets a value be named again."""

    def __init__(self, program: bytes, file: str) -> None:
        self.program = program
        self.file = file
        self.position = 0
        self.stack: list[Any] = []
        self.marks: list[int] = []
        self.memo: dict[int, Any] = {}

    def fault(self, message: str) -> CheckpointError:
        return CheckpointError(self.file, f"at byte {self.position} of data.pkl: {message}")

    def take(self, num_bytes: int) -> bytes:
        end = self.position + num_bytes
        if end > len(self.program):
            raise self.fault("the program is cut short")
        content = self.program[self.position : end]
        self.position = end
        return content

    def number(self, num_bytes: int, signed: bool = False) -> int:
        return int.from_bytes(self.take(num_bytes), "little", signed=signed)

    def line(self) -> str:
        end = self.program.find(b"\n", self.position, self.position + MAX_GLOBAL_BYTES)
        if end < 0:
            raise self.fault("a name does not end")
        return self.decoded(self.take(end + 1 - self.position)[:-1])

    def decoded(self, content: bytes) -> str:
        try:
            return content.decode("utf-8")
        except UnicodeDecodeError as error:
            raise self.fault("a string is not valid UTF-8") from error

    def push(self, value: Any) -> None:
        self.stack.append(value)

    def pop(self) -> Any:
        if len(self.stack) <= (self.marks[-1] if self.marks else 0):
            raise self.fault("the stack is empty")
        return self.stack.pop()

    def top(self) -> Any:
        value = self.pop()
        self.push(value)
        return value

    def pop_to_mark(self) -> list[Any]:
        if not self.marks:
            raise self.fault("there is no mark")
        mark = self.marks.pop()
        values = self.stack[mark:]
        del self.stack[mark:]
        return values

    def result(self) -> Any:
        if len(self.stack) != 1 or self.marks or self.position != len(self.program):
            raise self.fault("the program does not end with one value")
        return self.stack[0]

    # Each action below is one opcode.

    def skip_protocol(self) -> None:
        version = self.number(1)
        if not 2 <= version <= 5:
            raise self.fault(f"protocol {version} is not read")

    def set_mark(self) -> None:
        self.marks.append(len(self.stack))

    def build_tuple(self, size: int) -> None:
        values = [self.pop() for _ in range(size)]
        self.push(tuple(reversed(values)))

    def store(self, index: int) -> None:
        self.memo[index] = self.top()

    def load(self, index: int) -> None:
        if index not in self.memo:
            raise self.fault(f"nothing is remembered as {index}")
        self.push(self.memo[index])

    def add_items(self, values: list[Any]) -> None:
        target = self.top()
        if not isinstance(target, dict) or len(values) % 2:
            raise self.fault("items for something other than a dict")
        for key, value in zip(values[::2], values[1::2], strict=True):
            if not isinstance(key, str):
                raise self.fault("a key is not a string")
            if key in target:
                raise self.fault(f"the key {key[:80]!r} stands there twice")
            target[key] = value

    def add_item(self) -> None:
        value = self.pop()
        self.add_items([self.pop(), value])

    def append(self, values: list[Any]) -> None:
        target = self.top()
        if not isinstance(target, list):
            raise self.fault("values for something other than a list")
        target.extend(values)

    def name_global(self, module: str, attribute: str) -> None:
        """The gate: a name outside the list ends the reading here, before it means anything."""
        name = f"{module}.{attribute}"
        if "." in attribute or (name not in _CALLABLE and name not in STORAGE_KINDS):
            if module == "torch" and attribute.endswith("Storage"):
                raise UnsupportedModel(f"{self.file}: tensors of {name} are not converted")
            raise self.fault(f"names the global {name[:120]!r}, which is not allowed")
        self.push(Global(name))

    def name_global_from_stack(self) -> None:
        attribute, module = self.pop(), self.pop()
        if not isinstance(attribute, str) or not isinstance(module, str):
            raise self.fault("a global's name is not a string")
        self.name_global(module, attribute)

    def find_storage(self) -> None:
        match self.pop():
            case ("storage", Global(name), str(key), str(), int(count)) if name in STORAGE_KINDS:
                self.push(StorageRef(STORAGE_KINDS[name], key, count))
            case _:
                raise self.fault("an outside reference is not a storage")

    def call(self) -> None:
        """A call of a known name with arguments of the known form, as a value."""
        arguments, function = self.pop(), self.pop()
        match (function, arguments):
            case (Global("collections.OrderedDict"), ()):
                self.push({})
            case (
                Global("torch._utils._rebuild_tensor_v2"),
                (StorageRef() as storage, int(first), tuple(shape), tuple(strides), *_),
            ) if _are_counts((first, *shape, *strides)) and len(shape) == len(strides) <= MAX_RANK:
                self.push(TensorRef(storage, first, shape, strides))
            case (
                Global("torch._utils._rebuild_parameter"),
                (TensorRef() as tensor, bool(), dict()),
            ):
                self.push(tensor)
            case _:
                raise self.fault("a call is not of a form that a state dict has")

    def drop_state(self) -> None:
        """A state dict carries version notes as an attribute; they are nothing to us."""
        self.pop()
        if not isinstance(self.top(), dict):
            raise self.fault("a state for something other than a dict")


def _are_counts(values: tuple[Any, ...]) -> bool:
    return all(type(value) is int and 0 <= value < 2**63 for value in values)


_ACTIONS: dict[bytes, Callable[[_Machine], object]] = {
    b"\x80": _Machine.skip_protocol,
    b"\x95": lambda m: m.take(8),  # the length of a frame, which only hurries a reader
    b"(": _Machine.set_mark,
    b"N": lambda m: m.push(None),
    b"\x88": lambda m: m.push(True),
    b"\x89": lambda m: m.push(False),
    b"K": lambda m: m.push(m.number(1)),
    b"M": lambda m: m.push(m.number(2)),
    b"J": lambda m: m.push(m.number(4, signed=True)),
    b"\x8a": lambda m: m.push(m.number(m.number(1), signed=True)),
    b"G": lambda m: m.push(struct.unpack(">d", m.take(8))[0]),
    b"X": lambda m: m.push(m.decoded(m.take(m.number(4)))),
    b"\x8c": lambda m: m.push(m.decoded(m.take(m.number(1)))),
    b"}": lambda m: m.push({}),
    b"]": lambda m: m.push([]),
    b")": lambda m: m.push(()),
    b"\x85": lambda m: m.build_tuple(1),
    b"\x86": lambda m: m.build_tuple(2),
    b"\x87": lambda m: m.build_tuple(3),
    b"t": lambda m: m.push(tuple(m.pop_to_mark())),
    b"u": lambda m: m.add_items(m.pop_to_mark()),
    b"s": _Machine.add_item,
    b"e": lambda m: m.append(m.pop_to_mark()),
    b"a": lambda m: m.append([m.pop()]),
    b"q": lambda m: m.store(m.number(1)),
    b"r": lambda m: m.store(m.number(4)),
    b"\x94": lambda m: m.store(len(m.memo)),
    b"h": lambda m: m.load(m.number(1)),
    b"j": lambda m: m.load(m.number(4)),
    b"c": lambda m: m.name_global(m.line(), m.line()),
    b"\x93": _Machine.name_global_from_stack,
    b"Q": _Machine.find_storage,
    b"R": _Machine.call,
    b"b": _Machine.drop_state,
}
