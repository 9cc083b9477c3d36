"""A manifest in other tools' forms: ModelPack in OCI's layout, and a CycloneDX ML-BOM."""

from __future__ import annotations

import hashlib
import json
import shutil
import subprocess
from pathlib import Path
from typing import Any

import pytest

from firsthand.canonical import canonical
from firsthand.cli.micro_model import write_micro_model
from firsthand.errors import BadHash, InvalidRequest
from firsthand.weights.manifest import Manifest, files_of, read_manifest
from firsthand.weights.manifest_writing import Told, make_manifest, write_manifest
from firsthand.weights.ml_bom import VERSION, ml_bom
from firsthand.weights.model_pack import ARTIFACT, CONFIG, FILE_PATH, write_model_pack
from firsthand.weights.sums import Sums
from firsthand.weights.verifying import verify

TOLD = Told(
    name="micro",
    version="1.2",
    data_hash="ab" * 32,
    contract_hash="cd" * 32,
    config_hash="ef" * 32,
    hyper_parameters={"lr": 0.001, "schedule": {"kind": "cosine", "warmup": 10}},
    evaluation={"perplexity": 12.5, "tasks": {"qa": 0.5}},
    parents=("12" * 32,),
)


@pytest.fixture
def model(tmp_path: Path) -> Path:
    folder = tmp_path / "micro"
    folder.mkdir()
    write_micro_model(folder)
    (folder / "README.md").write_text("A model.\n")
    write_manifest(folder, make_manifest(folder, TOLD, Sums(None)))
    return folder


def manifest_of(model: Path) -> Manifest:
    found = read_manifest(model)
    assert found is not None
    return found


@pytest.mark.oracle
def test_the_bill_of_materials_is_valid_by_the_specifications_library(model: Path) -> None:
    schema = pytest.importorskip("cyclonedx.schema")
    validation = pytest.importorskip("cyclonedx.validation.json")
    bom = ml_bom(manifest_of(model))
    validator = validation.JsonStrictValidator(schema.SchemaVersion.V1_6)
    assert validator.validate_str(json.dumps(bom)) is None
    bom["components"][0]["type"] = "nonsense"  # the library would say so
    assert validator.validate_str(json.dumps(bom)) is not None


def test_the_bill_names_every_file_and_what_the_model_was_made_of(model: Path) -> None:
    manifest = manifest_of(model)
    bom = ml_bom(manifest)
    assert canonical(bom) == canonical(ml_bom(manifest))
    assert bom["specVersion"] == VERSION
    component = bom["metadata"]["component"]
    files = {one["name"]: one["hashes"][0]["content"] for one in component["components"]}
    assert files == {one.path: one.sha256 for one in manifest.files}
    card = component["modelCard"]
    metrics = {
        one["type"]: one["value"] for one in card["quantitativeAnalysis"]["performanceMetrics"]
    }
    assert metrics == {"perplexity": "12.5", "tasks.qa": "0.5"}
    properties = {one["name"]: one["value"] for one in card["properties"]}
    assert properties["firsthand:hyper_parameters.schedule.kind"] == "cosine"
    (data,) = bom["components"]
    assert card["modelParameters"]["datasets"] == [{"ref": data["bom-ref"]}]
    assert data["hashes"][0]["content"] == "ab" * 32
    assert component["pedigree"]["ancestors"][0]["name"] == "12" * 32


def blob(folder: Path, described: dict[str, Any]) -> bytes:
    """Its content, whose size and hash are those that were said."""
    algorithm, sha256 = described["digest"].split(":")
    content: bytes = (folder / "blobs" / algorithm / sha256).read_bytes()
    assert hashlib.sha256(content).hexdigest() == sha256
    assert len(content) == described["size"]
    return content


def test_a_model_pack_is_an_oci_layout_with_every_file(model: Path, tmp_path: Path) -> None:
    folder, back = tmp_path / "pack", tmp_path / "back"
    digest = write_model_pack(model, manifest_of(model), folder)
    assert json.loads((folder / "oci-layout").read_bytes()) == {"imageLayoutVersion": "1.0.0"}
    (described,) = json.loads((folder / "index.json").read_bytes())["manifests"]
    assert described["digest"] == digest
    found = json.loads(blob(folder, described))
    assert found["artifactType"] == ARTIFACT
    assert found["config"]["mediaType"] == CONFIG
    config = json.loads(blob(folder, found["config"]))
    assert config["descriptor"]["revision"] == manifest_of(model).sha256
    assert config["config"]["format"] == "safetensors"
    assert config["modelfs"]["diffIds"] == [one["digest"] for one in found["layers"]]
    kinds = {}
    for layer in found["layers"]:
        name = layer["annotations"][FILE_PATH]
        kinds[name] = layer["mediaType"].removeprefix("application/vnd.cncf.model.")
        back.mkdir(exist_ok=True)
        (back / name).write_bytes(blob(folder, layer))
    assert kinds["model.safetensors"] == "weight.v1.raw"
    assert kinds["tokenizer.json"] == "weight.config.v1.raw"
    assert kinds["README.md"] == "doc.v1.raw"
    assert verify(back, Sums(None)) == manifest_of(model)
    with pytest.raises(InvalidRequest, match="not empty"):
        write_model_pack(model, manifest_of(model), folder)


def test_a_model_pack_of_one_file(tmp_path: Path) -> None:
    model = tmp_path / "small.gguf"
    model.write_bytes(b"GGUF and the rest")
    manifest = make_manifest(model, Told(), Sums(None))
    write_model_pack(model, manifest, tmp_path / "pack")
    model.write_bytes(b"GGUF and the Rest")
    with pytest.raises(BadHash, match=r"small\.gguf: its hash is"):
        write_model_pack(model, manifest, tmp_path / "again")
    assert dict(files_of(model)).keys() == {"small.gguf"}


@pytest.mark.oracle
def test_skopeo_copies_a_model_pack(model: Path, tmp_path: Path) -> None:
    """As to a registry."""
    skopeo = shutil.which("skopeo")
    if skopeo is None:
        pytest.skip("skopeo is not here")
    folder, copy = tmp_path / "pack", tmp_path / "copy"
    digest = write_model_pack(model, manifest_of(model), folder)
    command = [skopeo, "copy", "--insecure-policy", f"oci:{folder}:1.2", f"oci:{copy}:1.2"]
    subprocess.run(command, check=True, capture_output=True)
    (described,) = json.loads((copy / "index.json").read_bytes())["manifests"]
    assert described["digest"] == digest
