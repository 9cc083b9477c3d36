"""A model's bill of materials: its manifest in the words of CycloneDX, an ML-BOM.

Owns: which field of a manifest is which of CycloneDX 1.6.
May not know: files; all that it says stands in the manifest.
Read next: `manifest.py`; the specification: cyclonedx.org/docs/1.6/json.
"""

from __future__ import annotations

import uuid
from collections.abc import Iterator, Mapping
from typing import Any, Final

from firsthand.canonical import canonical
from firsthand.weights.manifest import Manifest

VERSION: Final = "1.6"
_MODEL, _DATA = "model", "data"


def ml_bom(manifest: Manifest) -> dict[str, Any]:
    """The same for the same manifest, its serial number too."""
    data_hash = manifest.data.get("hash")
    engine = {"type": "application", "name": "firsthand", "version": manifest.engine_version}
    return {
        "$schema": f"http://cyclonedx.org/schema/bom-{VERSION}.schema.json",
        "bomFormat": "CycloneDX",
        "specVersion": VERSION,
        "serialNumber": f"urn:uuid:{uuid.uuid5(uuid.NAMESPACE_OID, manifest.sha256)}",
        "version": 1,
        "metadata": {
            "timestamp": manifest.created,
            "tools": {"components": [engine]},
            "component": _model(manifest),
        },
        "components": [] if data_hash is None else [_data(manifest)],
    }


def _model(manifest: Manifest) -> dict[str, Any]:
    found: dict[str, Any] = {
        "type": "machine-learning-model",
        "bom-ref": _MODEL,
        "name": manifest.name,
        "version": manifest.version,
        "hashes": _hashes(manifest.sha256_root),
        "components": [
            {
                "type": "file",
                "bom-ref": f"file:{one.path}",
                "name": one.path,
                "hashes": _hashes(one.sha256),
                "properties": _properties({"size": one.size}),
            }
            for one in manifest.files
        ],
        "modelCard": _card(manifest),
        "properties": _properties(
            {
                "manifest_sha256": manifest.sha256,
                "config_hash": manifest.config_hash,
                "quantization": manifest.quantization,
            }
        ),
    }
    if manifest.parents:
        parent = {"type": "machine-learning-model"}
        found["pedigree"] = {
            "ancestors": [
                parent | {"name": sha256, "bom-ref": f"parent:{sha256}", "hashes": _hashes(sha256)}
                for sha256 in manifest.parents
            ]
        }
    return found


def _card(manifest: Manifest) -> dict[str, Any]:
    parameters: dict[str, Any] = {
        "task": "text-generation",
        "architectureFamily": "transformer",
        "inputs": [{"format": "text"}],
        "outputs": [{"format": "text"}],
    }
    if manifest.data.get("hash") is not None:
        parameters["datasets"] = [{"ref": _DATA}]
    card: dict[str, Any] = {
        "modelParameters": parameters,
        "properties": _properties({"hyper_parameters": manifest.hyper_parameters}),
    }
    metrics = [{"type": name, "value": text} for name, text in _flat("", manifest.evaluation or {})]
    if metrics:
        card["quantitativeAnalysis"] = {"performanceMetrics": metrics}
    return card


def _data(manifest: Manifest) -> dict[str, Any]:
    return {
        "type": "data",
        "bom-ref": _DATA,
        "name": "training data",
        "hashes": _hashes(str(manifest.data["hash"])),
        "data": [{"type": "dataset", "name": "training data"}],
        "properties": _properties({"contract_hash": manifest.data.get("contract_hash")}),
    }


def _hashes(sha256: str) -> list[dict[str, str]]:
    return [{"alg": "SHA-256", "content": sha256}]


def _properties(values: Mapping[str, Any]) -> list[dict[str, str]]:
    return [{"name": f"firsthand:{name}", "value": text} for name, text in _flat("", values)]


def _flat(before: str, values: Mapping[str, Any]) -> Iterator[tuple[str, str]]:
    """Tables in tables as names with points; what is not known is left out."""
    for name, value in values.items():
        if isinstance(value, Mapping):
            yield from _flat(f"{before}{name}.", value)
        elif value is not None:
            text = value if isinstance(value, str) else canonical(value).decode()
            yield f"{before}{name}", text
