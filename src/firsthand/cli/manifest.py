"""The commands about what a model is: manifest write, sign, verify, export, data.

Owns: their options, and how a manifest is shown.
May not know: the form of a manifest, how a file is hashed.
Read next: `weights/manifest.py`, `data/content_hash.py`.
"""

from __future__ import annotations

import hashlib
from collections.abc import Iterator
from datetime import UTC, datetime
from pathlib import Path
from typing import Annotated, Any

import typer

from firsthand.cli import options
from firsthand.cli.output import print_json, reported, say
from firsthand.errors import CheckpointError, InvalidRequest, SourceRefused
from firsthand.values import dataclass

AnyOrder = Annotated[
    bool, typer.Option("--any-order", help="The same records in another order are the same data.")
]
ContractName = Annotated[
    str | None,
    typer.Option(
        "--contract",
        metavar="MODULE:CLASS",
        help="What a record must be; default: request_id, text, max_length.",
    ),
]


@dataclass(frozen=True, slots=True)
class Written:
    """What is told about the model, as options."""

    name: Annotated[str | None, typer.Option(help="Default: as its folder or file.")] = None
    model_version: Annotated[str, typer.Option(metavar="TEXT", help="Of the model.")] = "1"
    data: Annotated[
        Path | None, typer.Option(metavar="FILE", help="The training data, CSV or JSON lines.")
    ] = None
    contract: ContractName = None
    any_order: AnyOrder = False
    config: Annotated[
        Path | None, typer.Option(metavar="FILE", help="The training configuration, hashed.")
    ] = None
    hyper_parameters: Annotated[
        Path | None, typer.Option(metavar="FILE", help="A JSON file of them, put in as they are.")
    ] = None
    evaluation: Annotated[
        Path | None, typer.Option(metavar="FILE", help="A JSON file of measured results.")
    ] = None
    parent: Annotated[
        list[str] | None,
        typer.Option(metavar="SHA256", help="Manifest of a model it came from; repeatable."),
    ] = None


WRITTEN = Written()


def write(model: options.Model, told: Written = WRITTEN, as_json: options.AsJson = False) -> None:
    """Write the manifest of a model beside it: every file by its hash, and what it was made of."""
    with reported(as_json):
        from firsthand.config import read_environment
        from firsthand.weights.catalogue import resolve
        from firsthand.weights.manifest_writing import Told, make_manifest, write_manifest
        from firsthand.weights.verifying import sums_of

        environment = read_environment()
        path = resolve(model, environment).path
        data_hash, contract_hash = _data(told)
        manifest = make_manifest(
            path,
            Told(
                name=told.name,
                version=told.model_version,
                data_hash=data_hash,
                contract_hash=contract_hash,
                config_hash=None if told.config is None else _hash_of(told.config),
                hyper_parameters=_object(told.hyper_parameters) or {},
                evaluation=_object(told.evaluation),
                parents=tuple(told.parent or ()),
            ),
            sums_of(environment),
        )
        for note in _notes(path, manifest):
            say(f"warning: {note}")
        _show(manifest, str(write_manifest(path, manifest)), as_json)


def sign(
    model: options.Model,
    key: Annotated[
        Path, typer.Option(metavar="FILE", help="An Ed25519 private key in PEM, without password.")
    ],
    expires: Annotated[
        datetime | None, typer.Option(help="UTC; from then on the signature is refused.")
    ] = None,
    as_json: options.AsJson = False,
) -> None:
    """Sign the manifest of a model, all of whose files are compared first."""
    with reported(as_json):
        path, manifest = _verified(model, None)
        try:
            from firsthand.weights.manifest_signing import sign as sign_manifest
        except ModuleNotFoundError:
            message = "needs the extra signatures: pip install 'firsthand[signatures]'"
            raise InvalidRequest("key", message) from None
        until = None if expires is None else expires.replace(tzinfo=UTC)
        _show(manifest, str(sign_manifest(path, manifest, key, until)), as_json)


def verify(
    model: options.Model,
    trusted_keys: Annotated[
        Path | None,
        typer.Option(
            metavar="FILE",
            help="Public keys, one of which must have signed it; default: FIRSTHAND_TRUSTED_KEYS.",
        ),
    ] = None,
    as_json: options.AsJson = False,
) -> None:
    """Compare every file of a model with its manifest, and that with its signature where keys are
    given; exit with 4 where one differs."""
    with reported(as_json):
        from firsthand.config import read_environment
        from firsthand.release.record import model_of

        trusted = trusted_keys or read_environment().trusted_keys
        _, manifest = _verified(model_of(model), trusted)
        _show(manifest, "as it was written", as_json)


def export(
    model: options.Model,
    ml_bom: Annotated[
        Path | None, typer.Option(metavar="FILE", help="Its bill of materials, CycloneDX 1.6.")
    ] = None,
    as_json: options.AsJson = False,
) -> None:
    """Write what a model is made of in a form that other tools read."""
    with reported(as_json):
        if ml_bom is None:
            raise InvalidRequest("export", "needs --ml-bom FILE")
        from firsthand.canonical import canonical
        from firsthand.release.record import model_of
        from firsthand.weights import ml_bom as bom
        from firsthand.weights.places import write_atomically

        _, manifest = _verified(model_of(model), None)
        write_atomically(ml_bom.absolute(), canonical(bom.ml_bom(manifest)))
        if as_json:
            print_json({"manifest_sha256": manifest.sha256})
            return
        say(str(ml_bom))


def _notes(path: Path, manifest: Any) -> Iterator[str]:
    """What whoever writes a manifest may not have meant."""
    from firsthand.weights.manifest import manifest_path, read_manifest, signature_path

    new = {one.path: one.sha256 for one in manifest.files}
    if path.is_dir() and not new.keys() & {"tokenizer.json", "tokenizer.model"}:
        yield f"{path} has no tokenizer.json and no tokenizer.model"
    try:
        before = read_manifest(path)
    except CheckpointError as error:
        yield f"what is replaced was damaged: {error}"
        return
    if before is None or before.sha256 == manifest.sha256:
        return
    old = {one.path: one.sha256 for one in before.files}
    parts = {
        "changed": [name for name in old.keys() & new.keys() if old[name] != new[name]],
        "gone": old.keys() - new.keys(),
        "new": new.keys() - old.keys(),
    }
    told = [f"{word}: {', '.join(sorted(names)[:5])}" for word, names in parts.items() if names]
    yield f"replaces {manifest_path(path)}; {'; '.join(told) or 'the files are the same'}"
    if signature_path(path).exists():
        yield f"{signature_path(path).name} is of the one that is replaced: sign it anew"


def _verified(model: str, trusted: Path | None) -> tuple[Path, Any]:
    """Where it is, and its manifest. Raises BadHash, BadSignature, CheckpointError."""
    from firsthand.config import read_environment
    from firsthand.weights import verifying
    from firsthand.weights.catalogue import resolve

    environment = read_environment()
    path = resolve(model, environment).path
    return path, verifying.verify(path, verifying.sums_of(environment), trusted)


def data(
    file: Annotated[Path, typer.Argument(metavar="FILE", help="CSV, TSV or JSON lines.")],
    contract: ContractName = None,
    any_order: AnyOrder = False,
    as_json: options.AsJson = False,
) -> None:
    """Print the hash of a file's records: of their content, not of its bytes."""
    with reported(as_json):
        sha256, count = _records_hash(file, contract, any_order=any_order)
        if as_json:
            print_json({"sha256": sha256, "records": count, "any_order": any_order})
        else:
            print(sha256)
            say(f"{count} records")


def _data(told: Written) -> tuple[str | None, str | None]:
    from firsthand.data.contract import contract_hash, find_contract

    if told.data is None:
        return None, None if told.contract is None else contract_hash(find_contract(told.contract))
    data_hash, _ = _records_hash(told.data, told.contract, any_order=told.any_order)
    return data_hash, contract_hash(find_contract(told.contract))


def _records_hash(file: Path, contract: str | None, *, any_order: bool) -> tuple[str, int]:
    """Raises SourceRefused, also where a record breaks the contract: it has no values."""
    from firsthand.data.check import check_file
    from firsthand.data.content_hash import set_hash
    from firsthand.data.contract import find_contract
    from firsthand.data.record import Accepted, Rejected
    from firsthand.data.sources.files import Reading

    def values() -> Iterator[dict[str, Any]]:
        for item in check_file(file, find_contract(contract), Reading()):
            if isinstance(item, Rejected):
                where = f"{file}: record {item.position.record}"
                raise SourceRefused(where, f"{item.reason}: {item.detail}")
            if isinstance(item, Accepted):
                yield item.values

    try:
        return set_hash(values(), any_order=any_order)
    except SourceRefused as refused:
        if contract is not None:
            raise
        text = str(refused).removeprefix(f"{refused.part}: ")
        hint = "asked by the built-in contract; --contract MODULE:CLASS names yours"
        raise SourceRefused(refused.part, f"{text}; {hint}") from None


def _hash_of(path: Path) -> str:
    return hashlib.sha256(path.read_bytes()).hexdigest()


def _object(path: Path | None) -> dict[str, Any] | None:
    from firsthand.files import parse_json_object, read_whole
    from firsthand.weights.manifest import MAX_BYTES, MAX_ITEMS

    if path is None:
        return None
    return parse_json_object(read_whole(path, MAX_BYTES), str(path), MAX_ITEMS)


def _show(manifest: Any, where: str, as_json: bool) -> None:
    num_bytes = sum(one.size for one in manifest.files)
    if as_json:
        print_json(
            {
                "manifest_sha256": manifest.sha256,
                "sha256_root": manifest.sha256_root,
                "name": manifest.name,
                "version": manifest.version,
                "files": len(manifest.files),
                "bytes": num_bytes,
                "manifest": where,
            }
        )
        return
    print(f"{manifest.sha256}  {manifest.name} {manifest.version}")
    say(f"{len(manifest.files)} files, {num_bytes} bytes: {where}")
