"""The catalogue: every metric that a server gives out, once.

Owns: names, kinds, units, meanings, labels with their values, buckets, vLLM's names for them.
May not know: how anything is counted or shown.
Read next: `metrics.py`, which counts; docs/metrics.md, made of this.

Base units. No label holds what a caller wrote; `model` is the service's own name for its model,
whichever of its names a caller used.
"""

from __future__ import annotations

from firsthand.observe.entry import (
    BATCH_BUCKETS,
    LATENCY_BUCKETS_S,
    STEP_BUCKETS_S,
    TOKEN_BUCKETS,
    Alias,
    Entry,
    Kind,
    Label,
    Section,
    When,
)
from firsthand.observe.entry import counter as _counter
from firsthand.observe.entry import gauge as _gauge
from firsthand.observe.labels import (
    CANARY_REASON,
    CLASS,
    GPU,
    LOG_EVENTS,
    LOG_LEVELS,
    MODEL,
    OUTCOMES,
    REASONS,
    REQUEST_PHASES,
    STEP_PHASES,
)


def _histogram(
    name: str,
    unit: str,
    meaning: str,
    buckets: tuple[float, ...],
    *labels: Label,
    aliases: tuple[Alias, ...] = (),
    when: When = When.ALWAYS,
) -> Entry:
    return Entry(name, Kind.HISTOGRAM, unit, meaning, (MODEL, *labels), buckets, aliases, when)


REQUESTS = Section(
    "Requests",
    (
        _counter(
            "firsthand_requests",
            "requests",
            "HTTP requests that have ended; one is one, however many answers it asked for. Status "
            "499: its client was gone before the reply was whole",
            Label("endpoint", "the route's own form; `other` for a path that no route has"),
            Label("status", "of HTTP"),
            Label(
                "finish_reason",
                "of the last answer, or what came between; empty without either",
                ("", *dict.fromkeys((*REASONS, *OUTCOMES))),
            ),
        ),
        _counter(
            "firsthand_cancelled",
            "requests",
            "Requests that were given up",
            Label("where", "by whom", ("client",)),
        ),
        _counter(
            "firsthand_answers",
            "sequences",
            "Answers that ended; a request for n has n",
            MODEL,
            Label("finish_reason", "why it ended", REASONS),
            aliases=(Alias("vllm:request_success", keep=(("finish_reason", "finished_reason"),)),),
        ),
        _gauge(
            "firsthand_requests_running",
            "sequences",
            "Sequences that compute",
            MODEL,
            aliases=(Alias("vllm:num_requests_running"),),
        ),
        _gauge(
            "firsthand_requests_waiting",
            "sequences",
            "Sequences that wait for the engine",
            MODEL,
            CLASS,
            aliases=(Alias("vllm:num_requests_waiting"),),
        ),
        _histogram(
            "firsthand_request_prompt_tokens",
            "tokens",
            "Length of prompts",
            TOKEN_BUCKETS,
            aliases=(Alias("vllm:request_prompt_tokens"),),
        ),
        _histogram(
            "firsthand_request_generation_tokens",
            "tokens",
            "Length of answers",
            TOKEN_BUCKETS,
            aliases=(Alias("vllm:request_generation_tokens"),),
        ),
    ),
)

LATENCY = Section(
    "Latency",
    (
        _histogram(
            "firsthand_ttft_seconds",
            "seconds",
            "From the call to an answer's first token",
            LATENCY_BUCKETS_S,
            aliases=(Alias("vllm:time_to_first_token_seconds"),),
        ),
        _histogram(
            "firsthand_inter_token_seconds",
            "seconds",
            "Between two tokens of an answer",
            LATENCY_BUCKETS_S,
            aliases=(Alias("vllm:inter_token_latency_seconds"),),
        ),
        _histogram(
            "firsthand_request_phase_seconds",
            "seconds",
            "Time of an answer by phase. `inference` is prefill and decode; `total` is everything "
            "from the call to the end",
            LATENCY_BUCKETS_S,
            Label("phase", "of the answer", REQUEST_PHASES),
            aliases=(
                Alias("vllm:e2e_request_latency_seconds", (("phase", "total"),)),
                Alias("vllm:request_queue_time_seconds", (("phase", "queue"),)),
                Alias("vllm:request_prefill_time_seconds", (("phase", "prefill"),)),
                Alias("vllm:request_decode_time_seconds", (("phase", "decode"),)),
                Alias("vllm:request_inference_time_seconds", (("phase", "inference"),)),
            ),
        ),
    ),
)

ENGINE = Section(
    "Engine",
    (
        _histogram(
            "firsthand_step_seconds",
            "seconds",
            "Time of a step by part; `forward` and `sample` lie inside `run`",
            STEP_BUCKETS_S,
            Label("phase", "of the step", STEP_PHASES),
        ),
        _histogram("firsthand_batch_size", "sequences", "Sequences of a step", BATCH_BUCKETS),
        _histogram(
            "firsthand_iteration_tokens",
            "tokens",
            "Tokens of a step",
            TOKEN_BUCKETS,
            aliases=(Alias("vllm:iteration_tokens_total"),),
        ),
        _counter(
            "firsthand_tokens",
            "tokens",
            "Tokens of prompts that came, that were generated, that were computed, and of those "
            "the ones that an eviction had lost",
            MODEL,
            Label("phase", "what they were", ("prompt", "generation", "computed", "recomputed")),
            aliases=(
                Alias("vllm:prompt_tokens", (("phase", "prompt"),)),
                Alias("vllm:generation_tokens", (("phase", "generation"),)),
            ),
        ),
        _counter(
            "firsthand_class_tokens",
            "tokens",
            "Computed tokens by class: who got the machine",
            MODEL,
            CLASS,
        ),
        _histogram(
            "firsthand_microbatch_size",
            "texts",
            "Embedded or scored texts that started together",
            BATCH_BUCKETS,
            when=When.SCORING,
        ),
        _histogram(
            "firsthand_microbatch_wait_seconds",
            "seconds",
            "How long the oldest of them had waited for company",
            STEP_BUCKETS_S,
            when=When.SCORING,
        ),
        _counter("firsthand_step_errors", "steps", "Steps that failed", MODEL),
        _counter(
            "firsthand_step_attempts", "steps", "Smaller steps made after one had failed", MODEL
        ),
        _counter(
            "firsthand_step_failed_sequences",
            "sequences",
            "Sequences that were given up because their step failed, also alone",
            MODEL,
        ),
        _gauge("firsthand_last_step_age_seconds", "seconds", "Since the last step", MODEL),
        _gauge("firsthand_engine_ready", "", "1: the engine takes requests", MODEL),
        _counter("firsthand_engine_restarts", "engines", "Engines that were replaced", MODEL),
        _counter("firsthand_engine_cpu_seconds", "seconds", "Processor time of the engine", MODEL),
        _gauge(
            "firsthand_engine_resident_bytes",
            "bytes",
            "Memory of the engine's process that is resident",
            MODEL,
        ),
    ),
)

CACHE = Section(
    "Cache and memory",
    (
        _gauge(
            "firsthand_kv_blocks",
            "blocks",
            "Blocks of keys and values",
            MODEL,
            Label("state", "of the block", ("used", "free")),
        ),
        _gauge(
            "firsthand_kv_blocks_used_ratio",
            "ratio",
            "Used blocks of all, 0 … 1",
            MODEL,
            aliases=(Alias("vllm:kv_cache_usage_perc"),),
        ),
        _counter(
            "firsthand_prefix_cache_tokens",
            "tokens",
            "Tokens of prompts that were found computed, and that were not",
            MODEL,
            Label("result", "of the search", ("hit", "miss")),
            aliases=(
                Alias("vllm:prefix_cache_queries"),
                Alias("vllm:prefix_cache_hits", (("result", "hit"),)),
            ),
        ),
        _counter(
            "firsthand_preemptions",
            "sequences",
            "Sequences that lost their blocks, and wait to be computed again",
            MODEL,
            Label("reason", "for it", ("memory",)),
            aliases=(Alias("vllm:num_preemptions"),),
        ),
        _gauge("firsthand_memory_reserve", "", "1: the engine holds its reserve of memory", MODEL),
        _gauge("firsthand_memory_used_ratio", "ratio", "Used memory of the machine, 0 … 1"),
        _gauge(
            "firsthand_cache_info",
            "",
            "1; the sizes of the cache are its labels",
            MODEL,
            Label("block_size", "tokens per block"),
            Label("num_blocks", "blocks"),
            aliases=(
                Alias(
                    "vllm:cache_config_info",
                    keep=(("block_size", "block_size"), ("num_blocks", "num_gpu_blocks")),
                ),
            ),
        ),
    ),
)

DOOR = Section(
    "Door",
    (
        _counter("firsthand_admitted", "sequences", "Prompts that were let in", MODEL),
        _counter(
            "firsthand_refused",
            "requests",
            "Requests that the queue's door refused; model empty: before it was known",
            MODEL,
        ),
        _gauge("firsthand_admitted_open", "sequences", "Prompts that are in", MODEL),
        _gauge("firsthand_admission_waiting", "sequences", "Places beyond those that run", MODEL),
        _gauge("firsthand_admission_waiting_limit", "sequences", "As many may wait", MODEL),
        _gauge("firsthand_drain_rate", "sequences per second", "At which places end", MODEL),
        _gauge("firsthand_degradation_level", "", "0 serves everything, 4 the core", MODEL),
        _gauge("firsthand_connections", "connections", "Open connections"),
        _counter(
            "firsthand_connections_cut",
            "connections",
            "Connections that the server ended",
            Label("reason", "for it", ("too_slow", "malformed", "stalled")),
        ),
        _gauge("firsthand_idempotency_bytes", "bytes", "Replies that are kept for repetition"),
    ),
)

STATE = Section(
    "State",
    (
        _gauge(
            "firsthand_check_ok",
            "",
            "1: this check of readiness holds",
            Label("check", "its name, as `/readyz?verbose` has it"),
        ),
        _gauge(
            "firsthand_selfcheck_ok",
            "",
            "1: the golden tokens came out equal",
            MODEL,
            when=When.CHECKED,
        ),
        _counter("firsthand_selfcheck_wrong", "checks", "Self-checks that differed", MODEL),
        _gauge("firsthand_model_loaded", "", "1: the model has an engine", MODEL),
        _gauge("firsthand_model_memory_bytes", "bytes", "What the model takes when loaded", MODEL),
        _counter("firsthand_model_loads", "loads", "Loads that ended well", MODEL),
        _gauge("firsthand_model_load_seconds", "seconds", "What the last load took", MODEL),
        _counter(
            "firsthand_log_events",
            "lines",
            "Warnings and errors in the log",
            Label("event", "its stable name; `other` for a line that has none", LOG_EVENTS),
            Label("level", "of the line", LOG_LEVELS),
        ),
        _counter("firsthand_log_lines_lost", "lines", "Lines of the log that could not be written"),
        _gauge(
            "firsthand_disk_used_ratio",
            "ratio",
            "Used part of the disk with Firsthand's files, 0 … 1",
        ),
        _gauge(
            "firsthand_model_info",
            "",
            "1; what is served is its labels",
            MODEL,
            Label("manifest", "SHA-256 of the model's file, or empty where it is not known"),
        ),
        _gauge(
            "firsthand_release_drill_age_seconds",
            "seconds",
            "Since a drill of a rollback passed, or since there was first a way back",
            when=When.RELEASE,
        ),
        _gauge(
            "firsthand_canary_share_ratio",
            "ratio",
            "Of a model's requests, for a canary",
            *(MODEL, Label("release", "its number")),
            when=When.CANARY,
        ),
        _counter("firsthand_canary_returns", "canaries", "Taken back", MODEL, CANARY_REASON),
        _gauge("firsthand_build_info", "", "1", Label("version", "of Firsthand")),
    ),
)


def _process(name: str, kind: Kind, unit: str, meaning: str) -> Entry:
    return Entry(name, kind, unit, meaning, from_library=True)


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
        _gauge(
            "firsthand_gpu_utilization_ratio",
            "ratio",
            "Time in which it computed, 0 … 1",
            GPU,
            when=When.GPU,
        ),
        _gauge("firsthand_gpu_memory_used_bytes", "bytes", "Taken memory", GPU, when=When.GPU),
        _gauge("firsthand_gpu_memory_bytes", "bytes", "All its memory", GPU, when=When.GPU),
    ),
)

SECTIONS = (REQUESTS, LATENCY, ENGINE, CACHE, DOOR, STATE, PROCESS, DEVICE)
CATALOGUE = {entry.name: entry for section in SECTIONS for entry in section.entries}
