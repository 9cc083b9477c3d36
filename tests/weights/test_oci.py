"""A model goes out as an OCI image layout and comes back the same, also through skopeo.

Owns: proof of `weights/oci.py`, `weights/oci_import.py` and `weights/tar_stream.py`.
May not know: registries.
"""

from __future__ import annotations

import gzip
import hashlib
import io
import json
import shutil
import subprocess
import tarfile
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest

from firsthand.cli.micro_model import write_micro_model
from firsthand.errors import (
    BadHash,
    CheckpointError,
    FirsthandError,
    InvalidRequest,
    UnsupportedModel,
)
from firsthand.weights import oci
from firsthand.weights.manifest import signature_path
from firsthand.weights.manifest_writing import Told, make_manifest, write_manifest
from firsthand.weights.oci import export_layout
from firsthand.weights.oci_import import import_layout
from firsthand.weights.sums import Sums
from firsthand.weights.verifying import verify

FILES = ("LICENSE", "config.json", "model.safetensors", "tokenizer.json", "tokenizer_config.json")


@pytest.fixture(scope="module")
def folder(tmp_path_factory: pytest.TempPathFactory) -> Path:
    made = write_micro_model(tmp_path_factory.mktemp("model"))
    (made / "LICENSE").write_text("Apache-2.0")
    (made / "code.py").write_text("raise SystemExit")
    return made


@pytest.fixture
def layout(folder: Path, tmp_path: Path) -> Path:
    export_layout(folder, tmp_path / "layout", "v1")
    return tmp_path / "layout"


def same(one: Path, other: Path) -> bool:
    return all((one / name).read_bytes() == (other / name).read_bytes() for name in FILES)


def test_out_and_back(folder: Path, layout: Path, tmp_path: Path) -> None:
    done = import_layout(layout, tmp_path / "back")
    assert done.files == FILES and done.skipped == ()
    assert sorted(path.name for path in (tmp_path / "back").iterdir()) == sorted(FILES)
    assert same(folder, tmp_path / "back")
    again = export_layout(tmp_path / "back", tmp_path / "again", "v1")
    shutil.copytree(tmp_path / "back", tmp_path / "elsewhere" / "back")
    moved = export_layout(tmp_path / "elsewhere" / "back", tmp_path / "moved", "v2")
    assert moved.digest == again.digest  # the same model under the same name
    with pytest.raises(InvalidRequest, match="exists"):
        import_layout(layout, tmp_path / "back")


def test_the_words_of_the_form(layout: Path) -> None:
    top = json.loads((layout / "index.json").read_bytes())["manifests"][0]
    manifest = json.loads(blob(layout, top).read_bytes())
    assert manifest["artifactType"] == "application/vnd.cncf.model.manifest.v1+json"
    kinds = {layer["annotations"]["org.cncf.model.filepath"]: layer for layer in manifest["layers"]}
    assert list(kinds) == list(FILES)
    weight = kinds["model.safetensors"]
    assert weight["mediaType"] == "application/vnd.cncf.model.weight.v1.raw"
    assert kinds["LICENSE"]["mediaType"] == "application/vnd.cncf.model.doc.v1.raw"
    config = json.loads(blob(layout, manifest["config"]).read_bytes())
    assert config["config"] == {"architecture": "transformer", "format": "safetensors"}
    assert config["descriptor"]["family"] == "llama"
    assert config["modelfs"]["diffIds"] == [layer["digest"] for layer in manifest["layers"]]


def test_skopeo_copies_it(folder: Path, layout: Path, tmp_path: Path) -> None:
    """The program of Debian; it compares each blob with its digest."""
    if shutil.which("skopeo") is None:
        pytest.skip("skopeo is not installed")
    copy = tmp_path / "copy"
    command = ["skopeo", "copy", "--insecure-policy", f"oci:{layout}:v1", f"oci:{copy}:v2"]
    subprocess.run(command, check=True, capture_output=True, timeout=60)
    import_layout(copy, tmp_path / "back", "v2")
    assert same(folder, tmp_path / "back")


def test_a_gguf_file(tmp_path: Path) -> None:
    gguf = pytest.importorskip("gguf")
    path = tmp_path / "one.gguf"
    writer = gguf.GGUFWriter(path, "llama")
    writer.write_header_to_file()
    writer.write_kv_data_to_file()
    writer.write_tensors_to_file()
    writer.close()
    export_layout(path, tmp_path / "layout", "v1")
    assert import_layout(tmp_path / "layout", tmp_path / "back").files == ("one.gguf",)


def test_a_manifest_goes_along_and_still_holds(folder: Path, tmp_path: Path) -> None:
    model = tmp_path / "model"
    shutil.copytree(folder, model)
    manifest = make_manifest(model, Told(name="micro", version="1.2"), Sums(None))
    write_manifest(model, manifest)
    signature_path(model).write_text("signed")
    done = export_layout(model, tmp_path / "layout", manifest=manifest)
    assert done.tag == "1.2" and {"code.py", "manifest.json"} < set(done.files)
    top = json.loads((tmp_path / "layout" / "index.json").read_bytes())["manifests"][0]
    written = json.loads(blob(tmp_path / "layout", top).read_bytes())
    config = json.loads(blob(tmp_path / "layout", written["config"]).read_bytes())
    assert config["descriptor"]["revision"] == manifest.sha256
    (model / "LICENSE").write_text("another")
    with pytest.raises(BadHash, match="LICENSE: its hash is"):
        export_layout(model, tmp_path / "again", manifest=manifest)
    assert not (tmp_path / "again").exists()


def test_an_imported_model_is_verified_as_the_one_that_went_out(
    folder: Path, tmp_path: Path
) -> None:
    model = tmp_path / "model"
    shutil.copytree(folder, model, ignore=shutil.ignore_patterns("*.py"))
    manifest = make_manifest(model, Told(name="micro", version="1.2"), Sums(None))
    write_manifest(model, manifest)
    export_layout(model, tmp_path / "layout", manifest=manifest)
    import_layout(tmp_path / "layout", tmp_path / "back")
    assert verify(tmp_path / "back", Sums(None)) == manifest


def blob(layout: Path, descriptor: dict[str, Any]) -> Path:
    return layout / "blobs" / "sha256" / str(descriptor["digest"]).removeprefix("sha256:")


def rewritten(layout: Path, change: Callable[[dict[str, Any]], None]) -> None:
    """The manifest, changed, under its new hash."""
    index = json.loads((layout / "index.json").read_bytes())
    top = index["manifests"][0]
    manifest = json.loads(blob(layout, top).read_bytes())
    change(manifest)
    top |= put(layout, json.dumps(manifest).encode())
    (layout / "index.json").write_text(json.dumps(index))


def put(layout: Path, content: bytes) -> dict[str, Any]:
    found = {"digest": f"sha256:{hashlib.sha256(content).hexdigest()}", "size": len(content)}
    blob(layout, found).write_bytes(content)
    return found


def archive(folder: Path, form: int, **extra: tarfile.TarInfo) -> bytes:
    stream = io.BytesIO()
    with tarfile.open(fileobj=stream, mode="w", format=form) as tar:
        tar.add(folder, "./", filter=lambda info: info if info.isdir() else None, recursive=False)
        for name in FILES:
            tar.add(folder / name, f"./{name}")
        for info in extra.values():
            tar.addfile(info, io.BytesIO(b"x" * info.size))
    return stream.getvalue()


FORMS = (tarfile.USTAR_FORMAT, tarfile.GNU_FORMAT, tarfile.PAX_FORMAT)


@pytest.mark.parametrize("form", FORMS)
@pytest.mark.parametrize("packed", [False, True], ids=["tar", "gzip"])
def test_layers_that_are_archives(
    folder: Path, layout: Path, tmp_path: Path, form: int, packed: bool
) -> None:
    long = tarfile.TarInfo("deep/" * 30 + "vocab.json")
    long.size = 5
    hidden = tarfile.TarInfo("./.gitattributes")
    content = archive(folder, form, long=long, hidden=hidden)
    kind = "application/vnd.cncf.model.weight.v1.tar" + ("+gzip" if packed else "")
    layer = {"mediaType": kind, **put(layout, gzip.compress(content) if packed else content)}
    code = {"mediaType": "application/vnd.cncf.model.code.v1.tar", "digest": "", "size": 0}
    rewritten(layout, of_layers(layer, code))
    done = import_layout(layout, tmp_path / "back")
    assert set(done.files) == {*FILES, long.name}
    assert done.skipped == (".gitattributes", "code")
    assert same(folder, tmp_path / "back")


def hostile(name: str, kind: bytes = tarfile.REGTYPE) -> tarfile.TarInfo:
    info = tarfile.TarInfo(name)
    info.type, info.linkname = kind, "/etc/passwd"
    return info


@pytest.mark.parametrize(
    "info",
    [
        hostile("../out"),
        hostile("/etc/out"),
        hostile("a/../../out"),
        hostile("config.json"),  # there twice
        hostile("link", tarfile.SYMTYPE),
        hostile("link", tarfile.LNKTYPE),
        hostile("device", tarfile.CHRTYPE),
        hostile("pipe", tarfile.FIFOTYPE),
    ],
    ids=lambda info: f"{info.name} {info.type!r}",
)
def test_s_8_nothing_but_plain_files_comes_out_of_an_archive(
    folder: Path, layout: Path, tmp_path: Path, info: tarfile.TarInfo
) -> None:
    content = archive(folder, tarfile.PAX_FORMAT, bad=info)
    layer = {"mediaType": "application/vnd.cncf.model.weight.v1.tar", **put(layout, content)}
    rewritten(layout, of_layers(layer))
    with pytest.raises(CheckpointError):
        import_layout(layout, tmp_path / "back")
    assert not (tmp_path / "back").exists() and not (tmp_path / "out").exists()
    assert [path.name for path in tmp_path.iterdir()] == ["layout"]


def test_s_10_an_archive_cut_anywhere(folder: Path, layout: Path, tmp_path: Path) -> None:
    small = tmp_path / "small"
    small.mkdir()
    for name in FILES:
        (small / name).write_bytes((folder / name).read_bytes()[:700])
    for packed in (False, True):
        content = archive(small, tarfile.PAX_FORMAT)
        content = gzip.compress(content) if packed else content[: -20 * 512]  # but the zeros
        kind = "application/vnd.cncf.model.weight.v1.tar" + ("+gzip" if packed else "")
        for size in range(1, len(content) - 600, 331):
            layer = {"mediaType": kind, **put(layout, content[:size])}
            rewritten(layout, of_layers(layer))
            with pytest.raises(FirsthandError):
                import_layout(layout, tmp_path / "back")
            blob(layout, layer).unlink()
    assert not (tmp_path / "back").exists()


def of_layers(*layers: dict[str, Any]) -> Callable[[dict[str, Any]], None]:
    return lambda manifest: manifest.update(layers=list(layers))


def renamed(name: str) -> Callable[[dict[str, Any]], None]:
    def change(manifest: dict[str, Any]) -> None:
        manifest["layers"][0]["annotations"] = {oci.FILE_PATH: name}

    return change


def layer_of(kind: str) -> Callable[[dict[str, Any]], None]:
    return lambda manifest: manifest["layers"][0].update(mediaType=kind)


@pytest.mark.parametrize(
    ("change", "error", "word"),
    [
        (renamed("../up"), CheckpointError, "no file of a model"),
        (renamed("config.json"), CheckpointError, "there twice"),
        (renamed("/abs"), CheckpointError, "no file of a model"),
        (lambda m: m["layers"][0].pop("annotations"), CheckpointError, "filepath"),
        (lambda m: m["layers"][0].update(size=1), CheckpointError, "should have 1"),
        (lambda m: m["layers"][0].update(digest="sha256:../../x"), CheckpointError, "descriptor"),
        (lambda m: m["layers"][0].update(digest="sha256:" + "0" * 64), CheckpointError, "opened"),
        (lambda m: m.update(layers="x"), CheckpointError, "no list"),
        (lambda m: m.update(layers=[]), FirsthandError, "no model"),
        (layer_of("application/vnd.cncf.model.weight.v1.tar+zstd"), UnsupportedModel, "zstd"),
        (layer_of("application/vnd.oci.image.layer.v1.tar"), UnsupportedModel, "not read"),
    ],
)
def test_what_is_not_as_it_says_is_refused(
    layout: Path, tmp_path: Path, change: Any, error: type[Exception], word: str
) -> None:
    rewritten(layout, change)
    with pytest.raises(error, match=word):
        import_layout(layout, tmp_path / "back")
    assert not (tmp_path / "back").exists()


def test_one_wrong_bit(layout: Path, tmp_path: Path) -> None:
    for path in sorted((layout / "blobs" / "sha256").iterdir()):
        content = bytearray(path.read_bytes())
        content[len(content) // 2] ^= 1
        path.write_bytes(content)
        with pytest.raises(CheckpointError, match="hash"):
            import_layout(layout, tmp_path / "back")
        content[len(content) // 2] ^= 1
        path.write_bytes(content)
    import_layout(layout, tmp_path / "back")


def test_which_manifest(layout: Path, tmp_path: Path) -> None:
    index = json.loads((layout / "index.json").read_bytes())
    other = json.loads(json.dumps(index["manifests"][0]))
    other["annotations"][oci.TAG] = "v2"
    index["manifests"].append(other)
    (layout / "index.json").write_text(json.dumps(index))
    with pytest.raises(InvalidRequest, match="'v1', 'v2'"):
        import_layout(layout, tmp_path / "back")
    import_layout(layout, tmp_path / "back", "v2")
    (layout / "oci-layout").write_text('{"imageLayoutVersion": "2.0"}')
    with pytest.raises(UnsupportedModel):
        import_layout(layout, tmp_path / "other", "v2")


def test_an_image_of_a_container_is_none(layout: Path, tmp_path: Path) -> None:
    def change(manifest: dict[str, Any]) -> None:
        del manifest["artifactType"]
        manifest["config"]["mediaType"] = "application/vnd.oci.image.config.v1+json"

    rewritten(layout, change)
    with pytest.raises(UnsupportedModel, match="no ModelPack"):
        import_layout(layout, tmp_path / "back")
