"""From an answer to the record it came from, and from a record to its answer.

Owns: what is looked up, and the comparison of both ends with their hashes as they are now.
May not know: engines: it asks nobody, and writes nothing.
Read next: `ledger.py`; `open_lineage.py`, the same for other tools.
"""

from __future__ import annotations

import hashlib
from collections.abc import Iterator
from pathlib import Path
from typing import Any

from firsthand.data.encoding import declared
from firsthand.data.identity import request_id_of
from firsthand.data.job import Job
from firsthand.data.ledger import REPLAYED, Ledger, Output
from firsthand.data.lines import without_end
from firsthand.data.quarantine import shown

CHANGED, SAME, UNKNOWN = "changed", "same", "not looked at"
MENDED = "mended"  # what was read is what a person put in its place; the source is as it was


def trace(job: Job, ledger: Ledger, text: str) -> Iterator[dict[str, Any]]:
    """Whatever has this id, key or input hash (or the first six digits of one): outputs, and
    records in quarantine."""
    outputs = ledger.outputs_of(text)
    for output in outputs:
        yield walked(job, ledger, output)
    wanted = {output.id for output in outputs}
    for held in ledger.all_held(state=None):
        if held.id in wanted or text in (held.id.hex(), held.sha256):
            yield {"quarantine": next(shown([held]))}


def walked(job: Job, ledger: Ledger, output: Output) -> dict[str, Any]:
    """One output with both of its ends."""
    source = ledger.fact("source_facts") or {}
    place = output.position
    record = _record_now(job, source, output)
    line = _line_now(job, output)
    now, fixed = _compared(record, output.input_sha256), None
    for held in ledger.all_held(state=REPLAYED) if now == CHANGED else ():
        if held.id == output.id and held.fixed is not None:
            fixed = held.fixed
            same = _compared(record, bytes.fromhex(held.sha256)) == SAME
            now = MENDED if same or held.raw.rstrip(b"\r\n") == record else CHANGED
    return {
        "id": output.id.hex(),
        "request_id": request_id_of(output.id.hex()),
        "trace_id": output.id.hex(),
        "key": output.key,
        "input": {
            "source": job.source_name,
            "record": place.record,
            "line": place.line,
            "offset": place.offset,
            "num_bytes": place.num_bytes,
            "mark": place.mark,
            "sha256": output.input_sha256.hex(),
            "now": now,
            "content": _text(record),
            "mended": _text(fixed),
        },
        "contract": ledger.fact("contract"),
        "contract_sha256": ledger.fact("contract_sha256"),
        "model": ledger.fact("model"),
        "sample": output.sample,
        "output": {
            "sink": job.file.sink.path or job.file.sink.name,
            "place": output.place,
            "num_bytes": output.place_bytes,
            "sha256": output.output_sha256.hex(),
            "now": _compared(line, output.output_sha256),
            "content": _text(line),
        },
    }


def _record_now(job: Job, source: dict[str, Any], output: Output) -> bytes | None:
    """The record's bytes as they stand in its file; None: it was in none, or in no bytes of it."""
    path, kind = job.file.source.path, source.get("kind")
    if path is None or kind not in ("csv", "jsonl", "json"):
        return None
    content = _read(job.folder / path, output.position.offset, output.position.num_bytes)
    if content is None or kind == "json":
        return content and content.strip()
    return without_end(content, declared(source.get("encoding") or "utf-8").newline)


def _line_now(job: Job, output: Output) -> bytes | None:
    path = job.file.sink.path
    if path is None or path.endswith(".parquet"):
        return None
    return _read(job.folder / path, output.place, output.place_bytes)


def _read(path: Path, offset: int, num_bytes: int) -> bytes | None:
    try:
        with path.open("rb") as stream:
            stream.seek(offset)
            return stream.read(num_bytes)
    except OSError:
        return None


def _compared(content: bytes | None, sha256: bytes) -> str:
    if content is None:
        return UNKNOWN
    return SAME if hashlib.sha256(content).digest() == sha256 else CHANGED


def _text(content: bytes | None) -> str | None:
    return None if content is None else content.decode("utf-8", "backslashreplace")
