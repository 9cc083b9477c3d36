"""A GGUF model in several files: one checkpoint, or refused by name.

Owns: proof of `weights/gguf_parts.py`, and of everybody who lists, opens or hashes such parts.
Read next: `test_gguf.py`, the single file; `tests/models/test_family_gguf.py`, parts that the
`gguf` library wrote.
"""

from __future__ import annotations

from contextlib import closing
from pathlib import Path
from typing import Any

import pytest

from firsthand.config import Environment
from firsthand.errors import BadHash, CheckpointError, FirsthandError, ModelNotFound
from firsthand.weights.catalogue import describe, resolve
from firsthand.weights.folder import model_in
from firsthand.weights.gguf import open_gguf
from firsthand.weights.gguf_parts import first_parts, part_names, title
from firsthand.weights.hub import choose_files
from firsthand.weights.listing import list_models
from firsthand.weights.manifest import manifest_path
from firsthand.weights.manifest_writing import Told, make_manifest, write_manifest
from firsthand.weights.model_names import HubId
from firsthand.weights.oci import export_layout
from firsthand.weights.oci_import import import_layout
from firsthand.weights.sums import Sums
from firsthand.weights.verifying import verify
from tests.weights import attacks as a

NAMES = [f"m-{number:05}-of-00003.gguf" for number in (1, 2, 3)]
NAME = a.gguf_key("general.name", a.STR, "one")


def part(
    number: Any = 0,
    count: int = 3,
    total: int = 3,
    *,
    keys: tuple[bytes, ...] = (),
    tensor: str | None = None,
    kind: int = a.U16,
) -> bytes:
    """One part as llama.cpp's gguf-split writes it, with a tensor of its own."""
    split = [
        a.gguf_key("split.no", kind, number),
        a.gguf_key("split.count", a.U16, count),
        a.gguf_key("split.tensors.count", a.I32, total),
    ]
    name = f"t{number}" if tensor is None else tensor
    return a.gguf([*keys, *split], [a.gguf_tensor(name, [8], 0, 0)], name[:1].encode() * 32)


def put(folder: Path, **changed: bytes | None) -> list[Path]:
    """Three parts; `changed` has the content of the second or third, None: it is not there."""
    contents = {"first": part(keys=(NAME,)), "second": part(1), "third": part(2), **changed}
    paths = [folder / name for name in NAMES]
    for path, content in zip(paths, contents.values(), strict=True):
        if content is not None:
            path.write_bytes(content)
    return paths


def test_whichever_is_named_all_are_opened(tmp_path: Path) -> None:
    paths = put(tmp_path)
    for path in paths:
        with closing(open_gguf(path)) as found:
            assert found.path == str(paths[0])
            assert [file.path for file in found.files] == [str(one.resolve()) for one in paths]
            assert {name: one.file for name, one in found.tensors.items()} == {
                f"t{number}": str(one) for number, one in enumerate(paths)
            }
            assert found.raw("t2").tobytes() == b"t" * 32
            assert found.metadata["general.name"] == "one"
    assert model_in(tmp_path) == model_in(tmp_path, NAMES[2]) == paths[0]


REFUSED: list[tuple[str, dict[str, bytes | None], str, str]] = [
    ("missing", {"second": None}, NAMES[1], "is missing, one of 3 parts"),
    ("other count", {"second": part(1, count=4)}, NAMES[1], "split.count is 4, but by its name"),
    ("no split at all", {"third": a.gguf([], [])}, NAMES[2], "split.count is 0"),
    ("other place", {"second": part(2)}, NAMES[1], "split.no is 2, but by its name it is 1"),
    ("other total", {"third": part(2, total=4)}, NAMES[2], "another model: of 4 tensors"),
    ("total that is wrong", {"third": a.gguf([
        a.gguf_key("split.no", a.U16, 2), a.gguf_key("split.count", a.U16, 3),
        a.gguf_key("split.tensors.count", a.I32, 3)], [])}, NAMES[0], "have 2 tensors, not"),
    ("doubled tensor", {"third": part(2, tensor="t0")}, NAMES[2], f"stands in .*{NAMES[0]}"),
    ("of another name", {"second": part(1, keys=(a.gguf_key("general.name", a.STR, "two"),))},
     NAMES[1], "of another model: its general.name"),
    ("with a key of its own", {"second": part(1, keys=(a.gguf_key("x", a.ARR, (a.U8, [1])),))},
     NAMES[1], "of another model: its x"),
    ("place of a text", {"second": part("1", kind=a.STR)}, NAMES[1], "split.no is not a whole"),
    ("place below 0", {"second": part(-1, kind=a.I16)}, NAMES[1], "split.no is not a whole"),
    ("no GGUF", {"third": b"<!doctype html>"}, NAMES[2], "is not GGUF"),
]  # fmt: skip


@pytest.mark.parametrize(
    ("changed", "file", "message"), [row[1:] for row in REFUSED], ids=[row[0] for row in REFUSED]
)
def test_parts_that_are_no_model(
    tmp_path: Path, changed: dict[str, bytes | None], file: str, message: str
) -> None:
    paths = put(tmp_path, **changed)
    with pytest.raises(CheckpointError, match=message) as caught:
        open_gguf(paths[0])
    assert file in str(caught.value)


def test_the_same_key_again_is_no_fault(tmp_path: Path) -> None:
    """And each file has the alignment that it says itself."""
    alignment = a.gguf_key("general.alignment", a.U32, 32)
    put(tmp_path, second=part(1, keys=(NAME, alignment)))
    assert len(open_gguf(tmp_path / NAMES[1]).tensors) == 3


@pytest.mark.parametrize("name", ["m.gguf", "m-00000-of-00003.gguf", "m-00001-of-65535.gguf"])
@pytest.mark.parametrize("count", [3, 65_535])
def test_s_2_a_part_by_another_name_opens_nothing_else(
    tmp_path: Path, name: str, count: int
) -> None:
    (tmp_path / name).write_bytes(part(count=count))
    with pytest.raises(CheckpointError, match=rf"one of {count} parts, but not called") as caught:
        open_gguf(tmp_path / name)
    assert ("512 are read" in str(caught.value)) == (count > 512)


def test_s_2_a_link_out_of_the_folder(tmp_path: Path) -> None:
    folder = tmp_path / "model"
    folder.mkdir()
    paths = put(folder)
    paths[2].rename(tmp_path / "elsewhere")
    paths[2].symlink_to(tmp_path / "elsewhere")
    with pytest.raises(CheckpointError, match="leads out of its folder"):
        open_gguf(paths[0])


def test_names() -> None:
    assert part_names("q4/m-00002-of-00003.gguf") == tuple(f"q4/{name}" for name in NAMES)
    for other in ("m.gguf", "m-1-of-3.gguf", "m-00004-of-00003.gguf", "m-00001-of-00513.gguf"):
        assert part_names(other) == (other,)
    assert len(part_names("m-00001-of-00512.gguf")) == 512
    assert first_parts(["a.gguf", NAMES[2], NAMES[1]]) == ["a.gguf", NAMES[0]]
    assert [title(name) for name in (NAMES[1], "a.gguf", "folder")] == ["m", "a", "folder"]


def test_a_folder_and_the_list(tmp_path: Path) -> None:
    env = Environment(home=tmp_path / "home", hf_cache=tmp_path / "hf")
    folder = env.hf_cache / "models--org--name" / "snapshots" / ("a" * 40)
    folder.mkdir(parents=True)
    paths = put(folder)
    (row,) = list_models(env)
    assert (row.name, row.complete) == (f"org/name@{'a' * 40}:{NAMES[0]}", True)
    assert row.size_bytes == sum(path.stat().st_size for path in paths)
    assert resolve(str(paths[1]), env).path == resolve(row.name, env).path == paths[0]
    described = describe(str(paths[2]), env, lambda _: None)
    assert [file.name for file in described.files] == NAMES
    paths[0].unlink()
    (row,) = list_models(env)
    assert not row.complete
    for model in (str(paths[1]), str(folder), f"org/name@{'a' * 40}:{NAMES[2]}"):
        with pytest.raises(CheckpointError, match=f"incomplete: missing {NAMES[0]}"):
            resolve(model, env)


def test_a_manifest_holds_all_parts(tmp_path: Path) -> None:
    paths = put(tmp_path)
    manifest = make_manifest(paths[0], Told(), Sums(None))
    assert (manifest.name, [file.path for file in manifest.files]) == ("m", NAMES)
    write_manifest(paths[0], manifest)
    assert verify(paths[0], Sums(None)) == manifest
    paths[2].write_bytes(part(2).replace(b"tttt", b"uuuu"))
    with pytest.raises(BadHash, match=NAMES[2]):
        verify(paths[0], Sums(None))
    put(tmp_path)
    content = manifest_path(paths[0]).read_bytes()
    manifest_path(paths[0]).unlink()
    (tmp_path / "single.gguf").write_bytes(paths[1].read_bytes())
    single = make_manifest(tmp_path / "single.gguf", Told(), Sums(None))
    assert single.content() != content
    lacking = type(manifest)(**{**_fields(manifest), "files": manifest.files[:2]})
    write_manifest(paths[0], lacking)
    with pytest.raises(BadHash, match=f"names no {NAMES[2]}"):
        verify(paths[0], Sums(None))


def _fields(value: Any) -> dict[str, Any]:
    return {name: getattr(value, name) for name in value.__dataclass_fields__}


def test_an_oci_layout_has_all_parts(tmp_path: Path) -> None:
    paths = put(tmp_path)
    export_layout(paths[0], tmp_path / "layout", "v1")
    assert [*import_layout(tmp_path / "layout", tmp_path / "back").files] == NAMES
    assert [(tmp_path / "back" / name).read_bytes() for name in NAMES] == [
        path.read_bytes() for path in paths
    ]


def test_the_hubs_list() -> None:
    def choose(*names: str, file: str | None = None) -> list[str]:
        return choose_files([*names], HubId("org", "tiny", file=file))

    assert choose("config.json", *reversed(NAMES)) == NAMES
    inner = [f"q4/{name}" for name in NAMES]
    assert choose(*NAMES, *inner, file=inner[1]) == inner
    with pytest.raises(ModelNotFound, match=f"no {NAMES[1]}, one of 3 parts"):
        choose(NAMES[0], NAMES[2])
    with pytest.raises(FirsthandError) as caught:
        choose(*NAMES, "b.gguf")
    assert str(caught.value).endswith(f"org/tiny:b.gguf, org/tiny:{NAMES[0]}")
