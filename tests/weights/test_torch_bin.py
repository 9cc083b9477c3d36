"""The legacy reader: state dicts as they are, and nothing that a file says is ever run."""

from __future__ import annotations

import os
import pickle
import random
import struct
import zipfile
from collections import OrderedDict
from pathlib import Path
from typing import Any

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from firsthand.errors import CheckpointError, FirsthandError, ModelNotFound, UnsupportedModel
from firsthand.weights import torch_opcodes
from firsthand.weights.torch_bin import open_torch
from firsthand.weights.torch_opcodes import read_program
from tests.weights import attacks as a

TYPED = (CheckpointError, UnsupportedModel)
SIX = struct.pack("<6f", *range(6))


def archive(path: Path, value: bytes) -> Path:
    return a.torch_archive(path / "a.bin", a.program(value), {"0": SIX})


def refused(path: Path) -> FirsthandError:
    with pytest.raises(TYPED) as caught:
        open_torch(path)
    assert str(path) in str(caught.value)
    return caught.value


def floats(path: Path, name: str = "t") -> list[float]:
    content = open_torch(path).read(name).tobytes()
    return list(struct.unpack(f"<{len(content) // 4}f", content))


def test_a_hand_made_file(tmp_path: Path) -> None:
    path = archive(tmp_path, a.pk_dict(t=a.pk_tensor([2, 3], [3, 1])))
    found = open_torch(path)
    assert found.tensors["t"].shape == (2, 3)
    assert (found.tensors["t"].kind, found.tensors["t"].num_bytes) == ("F32", 24)
    assert floats(path) == [0, 1, 2, 3, 4, 5]
    found.release("t")
    found.close()


@pytest.mark.parametrize(
    ("shape", "strides", "first", "expected"),
    [
        ([3, 2], [1, 3], 0, [0, 3, 1, 4, 2, 5]),
        ([2], [3], 1, [1, 4]),
        ([], [], 5, [5]),
        ([1, 2], [2**62, 1], 4, [4, 5]),
        ([0, 3], [3, 1], 0, []),
    ],
)
def test_views(
    tmp_path: Path, shape: list[int], strides: list[int], first: int, expected: list[float]
) -> None:
    """Transposed, spaced, scalar, a stride that is never used, empty."""
    assert floats(archive(tmp_path, a.pk_dict(t=a.pk_tensor(shape, strides, first)))) == expected


@pytest.mark.parametrize(
    ("shape", "strides", "first"),
    [
        ([7], [1], 0),
        ([6], [1], 1),
        ([2, 3], [4, 1], 0),
        ([1], [1], 6),
        ([2], [2**62], 0),
        ([2**40], [0], 0),
        ([2**32, 2**32], [0, 0], 0),
        ([2**62, 2**62], [1, 1], 0),
        ([-1], [1], 0),
        ([2], [-1], 1),
        ([2], [1], -1),
        ([1] * 9, [1] * 9, 0),
        ([2, 3], [1], 0),
    ],
)
def test_s_1_views_that_leave_their_storage(
    tmp_path: Path, shape: list[int], strides: list[int], first: int
) -> None:
    refused(archive(tmp_path, a.pk_dict(t=a.pk_tensor(shape, strides, first))))


def test_many_views_can_not_make_a_small_file_large(tmp_path: Path) -> None:
    tensors = {f"t{n}": a.pk_tensor([5], [1], n) for n in range(2)}
    assert "overlaps other views" in str(refused(archive(tmp_path, a.pk_dict(**tensors))))
    halves = {"x": a.pk_tensor([2, 1], [3, 1]), "y": a.pk_tensor([2, 2], [3, 1], 1)}
    path = archive(tmp_path, a.pk_dict(**halves))
    assert (floats(path, "x"), floats(path, "y")) == ([0, 3], [1, 2, 4, 5])


@pytest.mark.parametrize(
    "storage",
    [a.pk_storage(count=5), a.pk_storage(count=7), a.pk_storage(count=-1), a.pk_storage("1"),
     a.pk_storage("../data.pkl"), a.pk_storage(kind="HalfStorage"), a.pk_storage(count=2**60)],
)  # fmt: skip
def test_storages_that_are_not_what_they_say(tmp_path: Path, storage: bytes) -> None:
    refused(archive(tmp_path, a.pk_dict(t=a.pk_tensor([1], [1], 0, storage))))


@pytest.mark.parametrize("kind", ["DoubleStorage", "LongStorage", "BoolStorage", "QInt8Storage"])
def test_other_number_types_are_refused_by_name(tmp_path: Path, kind: str) -> None:
    storage = a.pk_storage(kind=kind)
    error = refused(archive(tmp_path, a.pk_dict(t=a.pk_tensor([1], [1], 0, storage))))
    assert isinstance(error, UnsupportedModel)
    assert f"torch.{kind}" in str(error)


def test_the_same_bytes_are_an_alias(tmp_path: Path) -> None:
    """The head gives way to the embedding, even if it comes first."""
    same = a.pk_tensor([6], [1])
    items = {"lm_head.weight": same, "embed": same, "other": a.pk_tensor([0], [1])}
    found = open_torch(archive(tmp_path, a.pk_dict(**items)))
    assert dict(found.aliases) == {"lm_head.weight": "embed"}
    assert list(found.tensors) == ["embed", "other"]


@pytest.mark.parametrize("key", ["state_dict", "model"])
def test_a_wrapped_state_dict(tmp_path: Path, key: str) -> None:
    inner = a.pk_dict(t=a.pk_tensor([6], [1]))
    assert list(open_torch(archive(tmp_path, a.pk_dict(**{key: inner}))).tensors) == ["t"]


@pytest.mark.parametrize(
    ("value", "message"),
    [
        (a.pk_dict(optimizer=a.pk_dict(t=a.pk_tensor([6], [1]))), "'optimizer'"),
        (a.pk_dict(model=a.pk_dict(t=a.pk_tensor([6], [1])), epoch=a.pk_int(3)), "no tensor"),
        (a.pk_dict(model=a.pk_dict(a=a.pk_dict())), "'a'"),
        (a.pk_dict(t=b"N"), "'t'"),
        (a.pk_tensor([6], [1]), "no state dict"),
        (b"}", "no state dict"),
        (b"]", "no state dict"),
        (a.pk_dict(**{"": a.pk_tensor([6], [1])}), "name"),
        (a.pk_dict(**{"n" * 513: a.pk_tensor([6], [1])}), "name"),
    ],
)
def test_what_is_no_state_dict(tmp_path: Path, value: bytes, message: str) -> None:
    assert message in str(refused(archive(tmp_path, value)))


class Attack:
    """Its pickle calls `function(*arguments)` where a real unpickler reads it."""

    def __init__(self, function: Any, *arguments: Any) -> None:
        self.call = (function, arguments)

    def __reduce__(self) -> Any:
        return self.call


def hostile(canary: Path) -> list[Any]:
    touch = f"open({str(canary)!r}, 'w').close()"
    return [
        Attack(os.system, f"touch {canary}"),
        Attack(eval, touch),
        Attack(exec, touch),
        Attack(getattr, "text", "upper"),
        Attack(open, str(canary), "w"),
        {"t": Attack(os.system, f"touch {canary}")},
        OrderedDict(t=Attack(os.mkdir, str(canary))),
        [Attack(Path.touch, canary)],
    ]


@pytest.mark.parametrize("case", range(8))
@pytest.mark.parametrize("protocol", [0, 1, 2, 4, 5])
def test_s_5_nothing_is_run(tmp_path: Path, case: int, protocol: int) -> None:
    canary = tmp_path / "canary"
    content = pickle.dumps(hostile(canary)[case], protocol)
    error = refused(a.torch_archive(tmp_path / "a.bin", content))
    assert "global" in str(error) or "opcode" in str(error) or "protocol" in str(error)
    assert not canary.exists()
    pickle_file = tmp_path / "a.pkl"
    pickle_file.write_bytes(content)
    refused(pickle_file)
    assert not canary.exists()


@pytest.mark.parametrize(
    "value",
    [
        b"cos\nsystem\n(" + a.pk_text("touch canary") + b"tR",
        b"(cos\nsystem\n" + a.pk_text("touch canary") + b"o",
        b"(" + a.pk_text("touch canary") + b"ios\nsystem\n",
        a.pk_text("os") + a.pk_text("system") + b"\x93",
        b"ctorch\n_utils._rebuild_tensor_v2\n",
        b"ctorch._utils\n_rebuild_tensor_v2.__globals__\n",
        b"ccollections\nOrderedDict.fromkeys\n",
        b"cbuiltins\ndict\n",
        b"ctorch.storage\n_load_from_bytes\n",
        b"\x82\x01",
        b"cos\n" + b"s" * 5000 + b"\n",
        b"c\xff\n\xff\n",
        b"ccollections\nOrderedDict\n(" + a.pk_dict() + b"tR",
        b"ccollections\nOrderedDict\n)\x81",
        b"ctorch._utils\n_rebuild_tensor_v2\n)R",
        b"ctorch.FloatStorage\n)R",
        b"ctorch\nFloatStorage\n(K\x06tR",
        a.pk_text("storage") + b"Q",
        b"Pstorage\n",
        b"B\xff\xff\xff\xff",
        b"\x8d" + b"\xff" * 8,
        b"X\xff\xff\xff\xff",
        b"\x8b\xff\xff\xff\x7f",
        b"]]a0",
        b"}]]s",
        b"}(" + a.pk_text("a") + b"NX\x01\0\0\0aNu",
        b"}(" + a.pk_text("a") + b"u",
        b"}K\x01Ns",
        b"u", b"t", b"s", b"R", b"b", b"Q", b"a", b"h\x07", b"q\x01", b"}}", b"(}", b"",
    ],
)  # fmt: skip
def test_programs_that_are_refused(tmp_path: Path, value: bytes) -> None:
    error = refused(archive(tmp_path, value))
    assert "data.pkl" in str(error)


def test_a_list_that_holds_itself() -> None:
    with pytest.raises(CheckpointError, match="end with one value"):
        read_program(b"]q\x00h\x00a" * 2 + b".", "x")


def test_the_number_of_steps_is_bounded(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(torch_opcodes, "MAX_STEPS", 1000)
    assert read_program(b"]" + b"]a" * 499 + b".", "x") == [[]] * 499
    with pytest.raises(CheckpointError, match="more than 1000 steps"):
        read_program(b"]" + b"]a" * 500 + b".", "x")


def test_nesting_without_end_is_only_data() -> None:
    """A tuple in a tuple, 100,000 deep: no function of ours follows it."""
    assert isinstance(read_program(b")" + b"\x85" * 100_000 + b".", "x"), tuple)


def test_s_10_cut_and_flipped(tmp_path: Path) -> None:
    content = archive(tmp_path, a.pk_dict(t=a.pk_tensor([2, 3], [3, 1]))).read_bytes()
    path = tmp_path / "b.bin"
    for end in range(len(content)):
        path.write_bytes(content[:end])
        refused(path)
    rng = random.Random(11)
    for _ in range(400):
        changed = bytearray(content)
        for _ in range(rng.randint(1, 3)):
            changed[rng.randrange(len(changed))] = rng.randrange(256)
        path.write_bytes(changed)
        try:
            found = open_torch(path)
        except TYPED:
            continue
        for name, tensor in found.tensors.items():
            assert found.read(name).nbytes == tensor.num_bytes
        found.close()


OPCODES = b"}](N\x88\x89)\x85\x86\x87tuseaqrhjcQRb.K\x01M\x8aGX\x8c\x93\x94\x95\x80\x02"


@settings(deadline=None, max_examples=500)
@given(st.lists(st.sampled_from(OPCODES), max_size=40))
def test_random_programs_end_in_a_value_or_a_typed_error(codes: list[int]) -> None:
    try:
        read_program(bytes(codes), "x")
    except TYPED:
        return


# The archive


def test_compressed_archives_are_refused(tmp_path: Path) -> None:
    """A deflated entry is how a small file becomes a large one."""
    entries = {"archive/data.pkl": a.program(b"}"), "archive/data/0": bytes(1000)}
    path = a.stored_zip(tmp_path / "a.bin", entries, zipfile.ZIP_DEFLATED)
    assert "compressed" in str(refused(path))


@pytest.mark.parametrize(
    ("entries", "message"),
    [
        ({"x": b""}, "0 data.pkl"),
        ({"a/data.pkl": b"", "b/data.pkl": b""}, "2 data.pkl"),
        ({"a/data.pkl": a.program(b"}"), "a/code/x.py": b""}, "TorchScript"),
        ({"a/data.pkl": a.program(b"}"), "a/constants.pkl": b""}, "TorchScript"),
        ({"a/data.pkl": a.program(b"}"), "a/byteorder": b"big"}, "big-endian"),
    ],
)
def test_other_archives(tmp_path: Path, entries: dict[str, bytes], message: str) -> None:
    assert message in str(refused(a.stored_zip(tmp_path / "a.bin", entries)))


def test_an_entry_twice(tmp_path: Path) -> None:
    path = a.stored_zip(tmp_path / "a.bin", {"a/data.pkl": b"N.", "a/data.pk1": b"N."})
    path.write_bytes(path.read_bytes().replace(b"data.pk1", b"data.pkl"))
    assert "stands there twice" in str(refused(path))


@pytest.mark.parametrize("comment", [b"PK\x05\x06", b"PK\x05\x06" + bytes(18)])
def test_a_false_end_record(tmp_path: Path, comment: bytes) -> None:
    path = archive(tmp_path, b"}")
    path.write_bytes(path.read_bytes() + comment)
    refused(path)


def test_files_that_are_none(tmp_path: Path) -> None:
    with pytest.raises(ModelNotFound):
        open_torch(tmp_path / "none.bin")
    (tmp_path / "empty.bin").touch()
    assert "empty" in str(refused(tmp_path / "empty.bin"))
    (tmp_path / "a.bin").write_bytes(b"\x93NUMPY" + bytes(100))
    assert "NumPy" in str(refused(tmp_path / "a.bin"))


# The library that owns the format


@pytest.mark.torch
@pytest.mark.oracle
def test_what_torch_saves(tmp_path: Path) -> None:
    import torch

    base = torch.arange(24.0)
    state: dict[str, Any] = dict(torch.nn.Linear(3, 4).state_dict())
    state |= {
        "half.t": torch.randn(5, 6).half().t(),
        "bfloat": torch.randn(7).bfloat16(),
        "parameter": torch.nn.Parameter(torch.randn(2, 2)),
        "scalar": torch.tensor(3.0),
        "empty": torch.zeros(0, 3),
        "left": base[:12].view(3, 4),
        "right": base[12:],
    }
    for saved in (
        state,
        OrderedDict(state),
        {"state_dict": state},
        torch.nn.Linear(2, 2).state_dict(),
    ):
        path = tmp_path / "a.bin"
        torch.save(saved, path)
        found = open_torch(path)
        expected = saved.get("state_dict", saved)
        assert set(found.tensors) == set(expected)
        for name, tensor in expected.items():
            plain = tensor.detach().contiguous().reshape(-1).view(torch.uint8)
            assert found.tensors[name].shape == tuple(tensor.shape)
            assert found.read(name).tobytes() == plain.numpy().tobytes()
        found.close()


@pytest.mark.torch
@pytest.mark.oracle
def test_what_torch_saves_and_we_refuse(tmp_path: Path) -> None:
    import torch

    cases: list[tuple[Any, str]] = [
        (torch.nn.Linear(2, 2), "torch.nn.modules.linear.Linear"),
        ({"t": torch.zeros(2).double()}, "torch.DoubleStorage"),
        ({"t": torch.zeros(2).long()}, "torch.LongStorage"),
        ({"t": torch.zeros(2, 2).to_sparse()}, "rebuild_sparse"),
        ({"t": torch.zeros(1).expand(1000)}, "storage of 1 elements"),
    ]
    path = tmp_path / "a.bin"
    for value, message in cases:
        torch.save(value, path)
        assert message in str(refused(path))
    torch.save({"t": torch.zeros(2)}, path, _use_new_zipfile_serialization=False)
    assert "before PyTorch 1.6" in str(refused(path))


def wide_zip(entries: dict[str, bytes]) -> bytes:
    """An archive all of whose sizes and places stand in 64-bit records, as in a large file."""
    body, directory = b"", b""
    ones = 0xFFFFFFFF
    for name, content in entries.items():
        raw, size = name.encode(), len(content)
        extra = struct.pack("<HHQQQ", 1, 24, size, size, len(body))
        directory += struct.pack("<4sHHHHHHIII", b"PK\x01\x02", 45, 45, 0, 0, 0, 0, 0, ones, ones)
        directory += struct.pack("<HHHHHII", len(raw), len(extra), 0, 0, 0, 0, ones) + raw + extra
        body += struct.pack("<4sHHHHHIII", b"PK\x03\x04", 45, 0, 0, 0, 0, 0, ones, ones)
        body += struct.pack("<HH", len(raw), 0) + raw + content
    end = struct.pack("<4sQHHII", b"PK\x06\x06", 44, 45, 45, 0, 0)
    end += struct.pack("<QQQQ", len(entries), len(entries), len(directory), len(body))
    end += struct.pack("<4sIQI", b"PK\x06\x07", 0, len(body) + len(directory), 1)
    end += struct.pack("<4sHHHHIIH", b"PK\x05\x06", 0, 0, 0xFFFF, 0xFFFF, ones, ones, 0)
    return body + directory + end


def test_64_bit_records(tmp_path: Path) -> None:
    """Sound, then cut and changed everywhere."""
    program = a.program(a.pk_dict(t=a.pk_tensor([6], [1])))
    content = wide_zip({"x/data.pkl": program, "x/data/0": SIX})
    path = tmp_path / "a.bin"
    path.write_bytes(content)
    assert floats(path) == [0, 1, 2, 3, 4, 5]
    for place in range(len(content)):
        path.write_bytes(content[:place] + b"\xff" + content[place + 1 :])
        try:
            open_torch(path).close()
        except TYPED:
            continue
