"""A run as events of OpenLineage, for the tools that draw who made what of what.

Owns: the form of the events.
May not know: sources, sinks, engines: it reads the ledger alone.
Read next: `trace.py`.

The form is that of OpenLineage's RunEvent (openlineage.io/spec/2-0-2); what it has no place for
stands in facets of our own, each with its schema's address as the specification asks.
"""

from __future__ import annotations

import uuid
from collections.abc import Iterator
from typing import Any

from firsthand.data.job import Job, place_name
from firsthand.data.ledger import Ledger
from firsthand.version import VERSION

SPEC = "https://openlineage.io/spec/2-0-2/OpenLineage.json"
FACETS = "https://openlineage.io/spec/facets"
PRODUCER = f"https://pypi.org/project/firsthand/{VERSION}"


def events(job: Job, ledger: Ledger) -> Iterator[dict[str, Any]]:
    """That the run began, and what is known of it now: it has ended, or it still runs."""
    begun, told = ledger.fact("begun"), ledger.fact("told")
    run_id = str(uuid.uuid5(uuid.NAMESPACE_URL, f"{job.ledger.name} {begun}"))
    base = {
        "run": {"runId": run_id},
        "job": {"namespace": "firsthand", "name": job.ledger.stem},
        "producer": PRODUCER,
        "schemaURL": f"{SPEC}#/$defs/RunEvent",
    }
    source, sink = _dataset(job.source_name), _dataset(place_name(job.file.sink))
    start = {"eventType": "START", "eventTime": begun, "inputs": [source], "outputs": [sink]}
    yield {**base, **start}
    books = ledger.books
    ended = bool(ledger.fact("ended"))
    facets = {
        "firsthand_books": _facet(
            "Books",
            read=books.read,
            accepted=books.accepted,
            quarantined=books.quarantined,
            duplicates=books.duplicates,
        ),
        "firsthand_contract": _facet(
            "Contract", name=ledger.fact("contract"), sha256=ledger.fact("contract_sha256")
        ),
    }
    model = ledger.fact("model")
    if model is not None:
        facets["firsthand_model"] = _facet("Model", **model)
    schema = {
        "fields": [
            {"name": name, "type": str(info.annotation)}
            for name, info in job.contract.model_fields.items()
        ],
        "_producer": PRODUCER,
        "_schemaURL": f"{FACETS}/1-1-1/SchemaDatasetFacet.json",
    }
    rows = {
        "rowCount": books.accepted,
        "_producer": PRODUCER,
        "_schemaURL": f"{FACETS}/1-0-2/OutputStatisticsOutputDatasetFacet.json",
    }
    yield {
        **base,
        "eventType": "COMPLETE" if ended else "RUNNING",
        "eventTime": told,
        "run": {"runId": run_id, "facets": facets},
        "inputs": [{**source, "facets": {"schema": schema}}],
        "outputs": [{**sink, "outputFacets": {"outputStatistics": rows}}],
    }


def _dataset(name: str) -> dict[str, Any]:
    scheme, _, rest = name.partition("://")
    return {"namespace": scheme, "name": rest} if rest else {"namespace": "file", "name": name}


def _facet(name: str, /, **content: Any) -> dict[str, Any]:
    return {**content, "_producer": PRODUCER, "_schemaURL": f"{PRODUCER}#/{name}Facet"}
