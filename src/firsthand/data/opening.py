"""From a job's words to a source, or a sink: which file of the package each kind has.

Owns: the choice.
May not know: records, or an extra that no job has named: it is loaded when one does.
Read next: `sources/files.py`, `sources/tables.py`, `sources/messages.py`.
"""

from __future__ import annotations

from typing import Any

from firsthand.data.job import QUEUES, Job, place_name
from firsthand.data.record import Position
from firsthand.data.sink import Sink
from firsthand.data.source import Source
from firsthand.data.sources.files import Reading, open_file
from firsthand.errors import InvalidRequest


def open_source(job: Job, after: Position) -> Source:
    """Its records behind `after`. Raises SourceRefused, InvalidRequest."""
    part = job.file.source
    if part.path is not None:
        reading = Reading(part.kind, part.encoding, part.delimiter)
        return open_file(job.folder / part.path, reading, job.contract, after)
    if part.kind == "sql":
        from firsthand.data.sources.tables import open_table

        return open_table(part, job.folder, job.contract, after)
    if part.kind in QUEUES:
        from firsthand.data.queues.opening import open_queue
        from firsthand.data.sources.messages import MessageSource

        return MessageSource(open_queue(part, job.folder), job.source_name, part, after)
    raise InvalidRequest("source.kind", f"of a url is one of sql, {', '.join(QUEUES)}")


def open_sink(job: Job, state: Any) -> Sink:
    """As it was when `state` was committed. Raises SourceRefused, InvalidRequest."""
    part = job.file.sink
    if part.path is not None:
        if part.kind == "parquet" or part.path.endswith(".parquet"):
            from firsthand.data.sinks.parquet import open_parquet

            return open_parquet(job.folder / part.path, state)
        from firsthand.data.sinks.jsonl import open_jsonl

        return open_jsonl(job.folder / part.path, state)
    if part.kind == "sql":
        from firsthand.data.sinks.table import open_table_sink

        return open_table_sink(part, job.folder, state)
    if part.kind in QUEUES:
        from firsthand.data.queues.opening import open_queue
        from firsthand.data.sinks.messages import MessageSink

        return MessageSink(open_queue(part, job.folder), place_name(part), state)
    raise InvalidRequest("sink.kind", f"of a url is one of sql, {', '.join(QUEUES)}")
