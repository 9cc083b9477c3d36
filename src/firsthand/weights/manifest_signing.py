"""A manifest's signature: who stands for it, and until when.

Owns: the form of the signature, which keys count, what is refused.
May not know: whether the files are as the manifest says (`verifying.py`), who asks.
Read next: `manifest.py`.

    FOLDER/manifest.json.dsse         beside the manifest; of one file: FILE.gguf.manifest.json.dsse

It is a DSSE envelope around an in-toto statement, v1: every file of the model with its hash, and
the manifest's own, its name, version, and the time at which the signature expires. Keys are
Ed25519, in PEM, as `openssl genpkey -algorithm ed25519` makes them.
"""

from __future__ import annotations

import base64
import binascii
import hashlib
import json
import re
from collections.abc import Iterator
from datetime import UTC, datetime
from pathlib import Path
from typing import Any, Final

from cryptography.exceptions import InvalidSignature, UnsupportedAlgorithm
from cryptography.hazmat.primitives.asymmetric.ed25519 import Ed25519PrivateKey, Ed25519PublicKey
from cryptography.hazmat.primitives.serialization import (
    Encoding,
    PublicFormat,
    load_pem_private_key,
    load_pem_public_key,
)

from firsthand.canonical import canonical
from firsthand.errors import BadSignature, InvalidRequest
from firsthand.files import parse_json_object, read_whole
from firsthand.weights.manifest import MAX_BYTES, MAX_ITEMS, Manifest, signature_path
from firsthand.weights.places import write_atomically

_TYPE: Final = "application/vnd.in-toto+json"
_STATEMENT: Final = "https://in-toto.io/Statement/v1"
_PREDICATE: Final = "urn:firsthand:manifest:1"
_MAX_KEY_BYTES: Final = 1 << 16
_PEM: Final = re.compile(rb"-----BEGIN PUBLIC KEY-----.*?-----END PUBLIC KEY-----", re.DOTALL)


def sign(model: Path, manifest: Manifest, key_file: Path, expires: datetime | None) -> Path:
    """Put the signature beside the manifest. Raises InvalidRequest for a file that is no key."""
    try:
        key = load_pem_private_key(read_whole(key_file, _MAX_KEY_BYTES), None)
    except (ValueError, TypeError, UnsupportedAlgorithm):
        raise InvalidRequest(
            "key", f"{key_file} is no private key in PEM, or has a password"
        ) from None
    if not isinstance(key, Ed25519PrivateKey):
        raise InvalidRequest("key", f"{key_file} is no Ed25519 key")
    until = None if expires is None else expires.astimezone(UTC).isoformat(timespec="seconds")
    payload = _statement(manifest, until)
    envelope = {
        "payload": base64.b64encode(payload).decode(),
        "payloadType": _TYPE,
        "signatures": [
            {
                "keyid": key_id(key.public_key()),
                "sig": base64.b64encode(key.sign(_signed(payload))).decode(),
            }
        ],
    }
    path = signature_path(model)
    write_atomically(path, canonical(envelope))
    return path


def check_signature(model: Path, manifest: Manifest, trusted: Path, now: datetime) -> str:
    """The id of the key that signed it. Raises BadSignature where none of the trusted keys did, the
    signature is of another manifest, or has expired; InvalidRequest for a file without keys."""
    path = signature_path(model)
    keys = {key_id(key): key for key in trusted_keys(trusted)}
    if not path.exists():
        raise BadSignature(str(path), f"is not there, and {trusted} asks for a signature")
    payload, signatures = _opened(path)
    signer = next((name for name in signatures if _is_right(name, signatures, keys, payload)), None)
    if signer is None:
        said = ", ".join(name[:16] for name in list(signatures)[:3]) or "nobody"
        raise BadSignature(str(path), f"is signed by {said}; no key of {trusted} made it")
    expires = _expiry(payload)
    if payload != _statement(manifest, expires):
        raise BadSignature(str(path), f"is of another manifest than {manifest.sha256}")
    if expires is not None and datetime.fromisoformat(expires) <= now:
        raise BadSignature(str(path), f"has expired: {expires}")
    return signer


def trusted_keys(file: Path) -> Iterator[Ed25519PublicKey]:
    """Every public key of a PEM file. Raises InvalidRequest for none, or another kind."""
    field = "FIRSTHAND_TRUSTED_KEYS"
    try:
        found = _PEM.findall(file.read_bytes()[:_MAX_KEY_BYTES])
    except OSError as error:
        raise InvalidRequest(field, f"{file}: {error.strerror}") from None
    if not found:
        raise InvalidRequest(field, f"{file}: has no public key in PEM")
    for block in found:
        try:
            key = load_pem_public_key(block)
        except (ValueError, UnsupportedAlgorithm):
            raise InvalidRequest(field, f"{file}: a key in it cannot be read") from None
        if not isinstance(key, Ed25519PublicKey):
            raise InvalidRequest(field, f"{file}: has a key that is no Ed25519 key")
        yield key


def key_id(key: Ed25519PublicKey) -> str:
    encoded = key.public_bytes(Encoding.DER, PublicFormat.SubjectPublicKeyInfo)
    return hashlib.sha256(encoded).hexdigest()


def _statement(manifest: Manifest, expires: str | None) -> bytes:
    return canonical(
        {
            "_type": _STATEMENT,
            "subject": [
                {"name": one.path, "digest": {"sha256": one.sha256}} for one in manifest.files
            ],
            "predicateType": _PREDICATE,
            "predicate": {
                "manifest_sha256": manifest.sha256,
                "name": manifest.name,
                "version": manifest.version,
                "expires": expires,
            },
        }
    )


def _signed(payload: bytes) -> bytes:
    """What DSSE signs: type and payload with their lengths, so that neither runs into the other."""
    return b"DSSEv1 %d %s %d %s" % (len(_TYPE), _TYPE.encode(), len(payload), payload)


def _opened(path: Path) -> tuple[bytes, dict[str, bytes]]:
    """The payload, and signatures by their keys. Raises BadSignature, CheckpointError."""
    found = parse_json_object(read_whole(path, 2 * MAX_BYTES), str(path), MAX_ITEMS)
    signatures = found.get("signatures")
    if found.get("payloadType") != _TYPE or not isinstance(signatures, list):
        raise BadSignature(str(path), f"is no DSSE envelope of {_TYPE}")
    try:
        payload = base64.b64decode(found["payload"], validate=True)
        return payload, {
            str(one["keyid"]): base64.b64decode(one["sig"], validate=True) for one in signatures
        }
    except (KeyError, TypeError, ValueError, binascii.Error):
        raise BadSignature(
            str(path), "is no DSSE envelope: payload and signatures are base64"
        ) from None


def _is_right(
    name: str, signatures: dict[str, bytes], keys: dict[str, Ed25519PublicKey], payload: bytes
) -> bool:
    key = keys.get(name)
    try:
        if key is not None:
            key.verify(signatures[name], _signed(payload))
    except InvalidSignature:
        return False
    return key is not None


def _expiry(payload: bytes) -> str | None:
    """Of a payload whose signature is right: what a trusted key signed is in our form, or it is
    refused as that of another manifest."""
    try:
        found: Any = json.loads(payload)["predicate"]["expires"]
        if found is None:
            return None
        return datetime.fromisoformat(found).astimezone(UTC).isoformat(timespec="seconds")
    except (ValueError, TypeError, KeyError):
        return None
