"""The second half of the catalogue: the door, the state of models and server, process, GPUs.

Owns: these entries. May not know: how anything is counted or shown.
Read next: `catalogue.py`, which joins the halves; `catalogue_work.py`.
"""

from __future__ import annotations

from firsthand.observe.entry import Entry, Kind, Label, Section, When, counted, gauged
from firsthand.observe.labels import CANARY_REASON, GPU, LOG_EVENTS, LOG_LEVELS, MODEL, REPLICA

DOOR = Section(
    "Door",
    (
        counted("firsthand_admitted", "sequences", "Prompts that were let in", MODEL),
        counted(
            "firsthand_refused",
            "requests",
            "Requests that the queue's door refused; model empty: before it was known",
            MODEL,
        ),
        gauged("firsthand_admitted_open", "sequences", "Prompts that are in", MODEL),
        gauged("firsthand_admission_waiting", "sequences", "Places beyond those that run", MODEL),
        gauged("firsthand_admission_waiting_limit", "sequences", "As many may wait", MODEL),
        gauged("firsthand_drain_rate", "sequences per second", "At which places end", MODEL),
        gauged("firsthand_degradation_level", "", "0 serves everything, 4 the core", MODEL),
        gauged("firsthand_connections", "connections", "Open connections"),
        counted(
            "firsthand_connections_cut",
            "connections",
            "Connections that the server ended",
            Label("reason", "for it", ("too_slow", "malformed", "stalled")),
        ),
        gauged("firsthand_idempotency_bytes", "bytes", "Replies that are kept for repetition"),
    ),
)

STATE = Section(
    "State",
    (
        gauged(
            "firsthand_check_ok",
            "",
            "1: this check of readiness holds",
            Label("check", "its name, as `/readyz?verbose` has it"),
        ),
        gauged(
            "firsthand_selfcheck_ok",
            "",
            "1: the golden tokens came out equal",
            MODEL,
            when=When.CHECKED,
        ),
        counted("firsthand_selfcheck_wrong", "checks", "Self-checks that differed", MODEL),
        gauged("firsthand_model_loaded", "", "1: the model has an engine", MODEL),
        gauged("firsthand_model_memory_bytes", "bytes", "What the model takes when loaded", MODEL),
        counted("firsthand_model_loads", "loads", "Loads that ended well", MODEL),
        gauged("firsthand_model_load_seconds", "seconds", "What the last load took", MODEL),
        counted(
            "firsthand_log_events",
            "lines",
            "Warnings and errors in the log",
            Label("event", "its stable name; `other` for a line that has none", LOG_EVENTS),
            Label("level", "of the line", LOG_LEVELS),
        ),
        counted("firsthand_log_lines_lost", "lines", "Lines of the log that could not be written"),
        gauged(
            "firsthand_disk_used_ratio",
            "ratio",
            "Used part of the disk with Firsthand's files, 0 … 1",
        ),
        gauged(
            "firsthand_model_info",
            "",
            "1; what is served is its labels",
            MODEL,
            Label("manifest", "SHA-256 of the model's file, or empty where it is not known"),
        ),
        gauged(
            "firsthand_release_drill_age_seconds",
            "seconds",
            "Since a drill of a rollback passed, or since there was first a way back",
            when=When.RELEASE,
        ),
        gauged(
            "firsthand_canary_share_ratio",
            "ratio",
            "Of a model's requests, for a canary",
            *(MODEL, Label("release", "its number")),
            when=When.CANARY,
        ),
        counted("firsthand_canary_returns", "canaries", "Taken back", MODEL, CANARY_REASON),
        gauged("firsthand_build_info", "", "1", Label("version", "of Firsthand")),
    ),
)


def _process(name: str, kind: Kind, unit: str, meaning: str) -> Entry:
    return Entry(name, kind, unit, meaning, from_library=True)


_OF_REPLICA = (MODEL, REPLICA)
REPLICAS = Section(
    "Replicas",
    (
        gauged(
            "firsthand_replica_in_rotation",
            "",
            "1: it gets requests; 0: it is sick, or comes back",
            *_OF_REPLICA,
            when=When.CLUSTER,
        ),
        gauged("firsthand_replica_open", "requests", "Open there", *_OF_REPLICA, when=When.CLUSTER),
        gauged(
            "firsthand_replica_running", "sequences", "Run there", *_OF_REPLICA, when=When.CLUSTER
        ),
        gauged(
            "firsthand_replica_waiting", "sequences", "Wait there", *_OF_REPLICA, when=When.CLUSTER
        ),
        gauged(
            "firsthand_replica_used_blocks",
            "blocks",
            "Cache blocks in use there",
            *_OF_REPLICA,
            when=When.CLUSTER,
        ),
        counted(
            "firsthand_replica_cpu_seconds",
            "seconds",
            "Processor time of its processes",
            *_OF_REPLICA,
            when=When.CLUSTER,
        ),
        counted(
            "firsthand_replica_engine_restarts",
            "restarts",
            "Engines that were replaced there",
            *_OF_REPLICA,
            when=When.CLUSTER,
        ),
        counted(
            "firsthand_replica_losses",
            "losses",
            "Replicas that could not be reached any more",
            MODEL,
            when=When.CLUSTER,
        ),
        counted(
            "firsthand_replica_moves",
            "requests",
            "Requests that went on at another replica",
            MODEL,
            when=When.CLUSTER,
        ),
    ),
)

PROCESS = Section(
    "Process of the server",
    (
        _process("process_cpu_seconds", Kind.COUNTER, "seconds", "Processor time"),
        _process("process_resident_memory_bytes", Kind.GAUGE, "bytes", "Resident memory"),
        _process("process_virtual_memory_bytes", Kind.GAUGE, "bytes", "Address space"),
        _process("process_open_fds", Kind.GAUGE, "descriptors", "Open file descriptors"),
        _process("process_max_fds", Kind.GAUGE, "descriptors", "That it may open"),
        _process("process_start_time_seconds", Kind.GAUGE, "seconds", "Unix time of its start"),
    ),
)

DEVICE = Section(
    "GPU",
    (
        gauged(
            "firsthand_gpu_utilization_ratio",
            "ratio",
            "Time in which it computed, 0 … 1",
            GPU,
            when=When.GPU,
        ),
        gauged("firsthand_gpu_memory_used_bytes", "bytes", "Taken memory", GPU, when=When.GPU),
        gauged("firsthand_gpu_memory_bytes", "bytes", "All its memory", GPU, when=When.GPU),
        gauged("firsthand_gpu_power_watts", "watts", "What it draws", GPU, when=When.GPU),
    ),
)
