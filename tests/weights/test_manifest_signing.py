"""Signatures: a model is loaded if a trusted key signed its manifest, else refused (D-8)."""

from __future__ import annotations

import base64
import json
import subprocess
from datetime import UTC, datetime, timedelta
from pathlib import Path

import pytest

from firsthand.cli.micro_model import write_micro_model
from firsthand.config import read_environment
from firsthand.errors import BadSignature, InvalidRequest
from firsthand.generation.load_options import LoadOptions
from firsthand.generation.loading import load_model
from firsthand.weights.manifest import Manifest, files_of, signature_path
from firsthand.weights.manifest_signing import check_signature, sign
from firsthand.weights.manifest_writing import Told, make_manifest, write_manifest
from firsthand.weights.sums import Sums
from firsthand.weights.verifying import verify

NOW = datetime(2026, 6, 1, tzinfo=UTC)


def key(folder: Path, name: str, kind: str = "ed25519") -> tuple[Path, Path]:
    """A private key and its public one, as a user makes them."""
    private, public = folder / f"{name}.pem", folder / f"{name}.pub"
    subprocess.run(["openssl", "genpkey", "-algorithm", kind, "-out", private], check=True)
    subprocess.run(["openssl", "pkey", "-in", private, "-pubout", "-out", public], check=True)
    return private, public


@pytest.fixture(scope="module")
def keys(tmp_path_factory: pytest.TempPathFactory) -> dict[str, tuple[Path, Path]]:
    folder = tmp_path_factory.mktemp("keys")
    return {name: key(folder, name) for name in ("ours", "other")}


@pytest.fixture
def model(tmp_path: Path) -> Path:
    folder = tmp_path / "micro"
    folder.mkdir()
    write_micro_model(folder)
    write_manifest(folder, written(folder))
    return folder


def written(model: Path, version: str = "1") -> Manifest:
    return make_manifest(model, Told(version=version), Sums(None))


def test_a_signed_model_is_verified_and_openssl_says_so_too(
    model: Path, keys: dict[str, tuple[Path, Path]], tmp_path: Path
) -> None:
    private, public = keys["ours"]
    path = sign(model, written(model), private, None)
    assert path.name == "manifest.json.dsse"
    assert path not in dict(files_of(model)).values()  # it signs, and is not signed
    verify(model, Sums(None), public)
    envelope = json.loads(path.read_bytes())
    payload = base64.b64decode(envelope["payload"])
    statement = json.loads(payload)
    assert {one["name"] for one in statement["subject"]} == dict(files_of(model)).keys()
    kind = envelope["payloadType"].encode()
    signed, raw = tmp_path / "signed", tmp_path / "raw"
    signed.write_bytes(b"DSSEv1 %d %s %d %s" % (len(kind), kind, len(payload), payload))
    raw.write_bytes(base64.b64decode(envelope["signatures"][0]["sig"]))
    check = ("openssl", "pkeyutl", "-verify", "-pubin", "-inkey", public, "-rawin")
    subprocess.run([*check, "-in", signed, "-sigfile", raw], check=True, capture_output=True)


def test_d_8_wrong_missing_and_expired_signatures_are_refused(
    model: Path, keys: dict[str, tuple[Path, Path]]
) -> None:
    private, public = keys["ours"]
    manifest = written(model)
    with pytest.raises(BadSignature, match=r"is not there, and .* asks for a signature"):
        check_signature(model, manifest, public, NOW)
    sign(model, manifest, keys["other"][0], None)
    with pytest.raises(BadSignature, match=r"no key of .* made it"):
        check_signature(model, manifest, public, NOW)
    sign(model, manifest, private, NOW)
    with pytest.raises(BadSignature, match=r"has expired: 2026-06-01T00:00:00\+00:00"):
        check_signature(model, manifest, public, NOW)
    check_signature(model, manifest, public, NOW - timedelta(seconds=1))
    sign(model, written(model, version="2"), private, None)
    with pytest.raises(BadSignature, match="is of another manifest"):
        check_signature(model, manifest, public, NOW)


def test_one_bit_of_a_signature_is_refused(model: Path, keys: dict[str, tuple[Path, Path]]) -> None:
    private, public = keys["ours"]
    manifest = written(model)
    path = sign(model, manifest, private, None)
    envelope = json.loads(path.read_bytes())
    for part in ("payload", "sig"):
        holder = envelope if part == "payload" else envelope["signatures"][0]
        before = holder[part]
        content = bytearray(base64.b64decode(before))
        content[len(content) // 2] ^= 1
        holder[part] = base64.b64encode(content).decode()
        path.write_text(json.dumps(envelope))
        with pytest.raises(BadSignature, match="no key of"):
            check_signature(model, manifest, public, NOW)
        holder[part] = before
    for broken in ({}, {**envelope, "payload": 3}, {**envelope, "signatures": [1]}):
        path.write_text(json.dumps(broken))
        with pytest.raises(BadSignature, match="DSSE"):
            check_signature(model, manifest, public, NOW)


def test_several_keys_may_be_trusted(
    model: Path, keys: dict[str, tuple[Path, Path]], tmp_path: Path
) -> None:
    both = tmp_path / "both.pem"
    both.write_bytes(keys["other"][1].read_bytes() + keys["ours"][1].read_bytes())
    sign(model, written(model), keys["ours"][0], None)
    verify(model, Sums(None), both)


def test_files_that_are_no_keys_are_refused(
    model: Path, keys: dict[str, tuple[Path, Path]], tmp_path: Path
) -> None:
    manifest = written(model)
    sign(model, manifest, keys["ours"][0], None)
    empty = tmp_path / "empty"
    empty.write_text("")
    wrong = key(tmp_path, "x25519", "x25519")
    for file, says in (
        (empty, "no public key"),
        (tmp_path / "gone", "No such"),
        (wrong[1], "no Ed"),
    ):
        with pytest.raises(InvalidRequest, match=says):
            check_signature(model, manifest, file, NOW)
    for file, says in (
        (empty, "no private key"),
        (wrong[0], "no Ed25519"),
        (keys["ours"][1], "no pr"),
    ):
        with pytest.raises(InvalidRequest, match=says):
            sign(model, manifest, file, None)


@pytest.mark.native
def test_every_load_asks_for_a_signature_where_keys_are_configured(
    model: Path, keys: dict[str, tuple[Path, Path]], monkeypatch: pytest.MonkeyPatch
) -> None:
    private, public = keys["ours"]
    options = LoadOptions(threads=1)
    monkeypatch.setenv("FIRSTHAND_TRUSTED_KEYS", str(public))
    assert read_environment().trusted_keys == public
    with pytest.raises(BadSignature, match="asks for a signature"):
        load_model(model, options)
    sign(model, written(model), private, None)
    load_model(model, options)
    signature_path(model).unlink()
    (model / "manifest.json").unlink()
    with pytest.raises(BadSignature, match="only models with a manifest signed by"):
        load_model(model, options)
