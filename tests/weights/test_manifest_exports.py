"""A manifest in another tool's form: a CycloneDX ML-BOM."""

from __future__ import annotations

import json
from pathlib import Path

import pytest

from firsthand.canonical import canonical
from firsthand.cli.micro_model import write_micro_model
from firsthand.weights.manifest import Manifest, read_manifest
from firsthand.weights.manifest_writing import Told, make_manifest, write_manifest
from firsthand.weights.ml_bom import VERSION, ml_bom
from firsthand.weights.sums import Sums

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
