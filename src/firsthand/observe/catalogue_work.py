"""The first half of the catalogue: requests, their times, the engine, its cache.

Owns: these entries, with vLLM's names for them. May not know: how anything is counted or shown.
Read next: `catalogue.py`, which joins the halves; `catalogue_state.py`.
"""

from __future__ import annotations

from firsthand.cascade.decision import REASONS as DECISIONS
from firsthand.observe.entry import (
    ANSWER_BUCKETS,
    BATCH_BUCKETS,
    LATENCY_BUCKETS_S,
    STEP_BUCKETS_S,
    TOKEN_BUCKETS,
    Alias,
    Label,
    Section,
    When,
    counted,
    gauged,
    spread,
)
from firsthand.observe.labels import (
    CASCADE,
    CLASS,
    MODEL,
    OUTCOMES,
    REASONS,
    REQUEST_PHASES,
    SIZE,
    STEP_PHASES,
)

REQUESTS = Section(
    "Requests",
    (
        counted(
            "firsthand_requests",
            "requests",
            "HTTP requests that came to a route and have ended; one is one, however many answers "
            "it asked for. Status 499: its client was gone before the reply was whole. Those that "
            "were refused before are in `firsthand_refused_total`, and all of them in "
            "`firsthand_http_request_seconds`",
            Label("endpoint", "the route's own form; `other` for a path that no route has"),
            Label("status", "of HTTP"),
            Label(
                "finish_reason",
                "of the last answer, or what came between; empty without either",
                ("", *dict.fromkeys((*REASONS, *OUTCOMES))),
            ),
        ),
        counted(
            "firsthand_cancelled",
            "requests",
            "Requests that were given up",
            Label("where", "by a client that went, or on request", ("client", "request")),
        ),
        counted(
            "firsthand_answers",
            "sequences",
            "Answers that ended; a request for n has n",
            MODEL,
            Label("finish_reason", "why it ended", REASONS),
            aliases=(Alias("vllm:request_success", keep=(("finish_reason", "finished_reason"),)),),
        ),
        gauged(
            "firsthand_requests_running",
            "sequences",
            "Sequences that compute",
            MODEL,
            aliases=(Alias("vllm:num_requests_running"),),
        ),
        gauged(
            "firsthand_requests_waiting",
            "sequences",
            "Sequences that wait for the engine",
            MODEL,
            CLASS,
            aliases=(Alias("vllm:num_requests_waiting"),),
        ),
        gauged(
            "firsthand_queue_age_seconds_max",
            "seconds",
            "Age of the oldest that waits for its first step; 0 where none does",
            MODEL,
            CLASS,
        ),
        counted(
            "firsthand_cascade_answers",
            "requests",
            "Requests to a cascade, by why one of its models answered: the small one where it was "
            "sure, else the large one. What is not `sure`, of all, is the escalation rate",
            CASCADE,
            Label("reason", "of the decision", DECISIONS),
            when=When.CASCADE,
        ),
        counted(
            "firsthand_cascade_tokens",
            "tokens",
            "Tokens that were computed for a cascade, of prompts and of answers, given up or not",
            CASCADE,
            SIZE,
            when=When.CASCADE,
        ),
        counted(
            "firsthand_cascade_cost",
            "token parameters",
            "The same by the parameters of the model: what the two cost, to be compared",
            CASCADE,
            SIZE,
            when=When.CASCADE,
        ),
        spread(
            "firsthand_request_prompt_tokens",
            "tokens",
            "Length of prompts",
            TOKEN_BUCKETS,
            MODEL,
            aliases=(Alias("vllm:request_prompt_tokens"),),
        ),
        spread(
            "firsthand_request_generation_tokens",
            "tokens",
            "Length of answers",
            TOKEN_BUCKETS,
            MODEL,
            aliases=(Alias("vllm:request_generation_tokens"),),
        ),
        spread(
            "firsthand_request_computed_tokens",
            "tokens",
            "Tokens of prompts that were computed: not found in the cache",
            TOKEN_BUCKETS,
            MODEL,
            aliases=(Alias("vllm:request_prefill_kv_computed_tokens"),),
        ),
        spread(
            "firsthand_request_max_tokens",
            "tokens",
            "Tokens that an answer may have",
            TOKEN_BUCKETS,
            MODEL,
            aliases=(Alias("vllm:request_params_max_tokens"),),
        ),
        spread(
            "firsthand_request_answers",
            "answers",
            "Answers that a prompt asks for",
            ANSWER_BUCKETS,
            MODEL,
            aliases=(Alias("vllm:request_params_n"),),
        ),
    ),
)

LATENCY = Section(
    "Latency",
    (
        spread(
            "firsthand_http_request_seconds",
            "seconds",
            "An HTTP request from its arrival to the last byte of its reply, also of one that was "
            "refused",
            LATENCY_BUCKETS_S,
            Label("endpoint", "the route's own form; `other` for a path that no route has"),
        ),
        spread(
            "firsthand_event_loop_lag_seconds",
            "seconds",
            "How much too late the server's event loop came to a timer, ten times a second",
            STEP_BUCKETS_S,
        ),
        spread(
            "firsthand_ttft_seconds",
            "seconds",
            "From the call to an answer's first token",
            LATENCY_BUCKETS_S,
            MODEL,
            aliases=(Alias("vllm:time_to_first_token_seconds"),),
        ),
        spread(
            "firsthand_inter_token_seconds",
            "seconds",
            "Between two tokens of an answer",
            LATENCY_BUCKETS_S,
            MODEL,
            aliases=(Alias("vllm:inter_token_latency_seconds"),),
        ),
        spread(
            "firsthand_request_phase_seconds",
            "seconds",
            "Time of an answer by phase. `inference` is prefill and decode; `total` is everything "
            "from the call to the end",
            LATENCY_BUCKETS_S,
            MODEL,
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
        spread(
            "firsthand_step_seconds",
            "seconds",
            "Time of a step by part; `forward` and `sample` lie inside `run`",
            STEP_BUCKETS_S,
            MODEL,
            Label("phase", "of the step", STEP_PHASES),
        ),
        spread("firsthand_batch_size", "sequences", "Sequences of a step", BATCH_BUCKETS, MODEL),
        spread(
            "firsthand_iteration_tokens",
            "tokens",
            "Tokens of a step",
            TOKEN_BUCKETS,
            MODEL,
            aliases=(Alias("vllm:iteration_tokens_total"),),
        ),
        counted(
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
        counted(
            "firsthand_class_tokens",
            "tokens",
            "Computed tokens by class: who got the machine",
            MODEL,
            CLASS,
        ),
        gauged(
            "firsthand_class_share_ratio",
            "ratio",
            "What each class got of the tokens that were computed lately, 0 … 1",
            MODEL,
            CLASS,
        ),
        spread(
            "firsthand_microbatch_size",
            "texts",
            "Embedded or scored texts that started together",
            BATCH_BUCKETS,
            MODEL,
            when=When.SCORING,
        ),
        spread(
            "firsthand_microbatch_wait_seconds",
            "seconds",
            "How long the oldest of them had waited for company",
            STEP_BUCKETS_S,
            MODEL,
            when=When.SCORING,
        ),
        counted(
            "firsthand_speculations",
            "guesses",
            "Times that tokens of a sequence were guessed and computed",
            MODEL,
            aliases=(Alias("vllm:spec_decode_num_drafts"),),
        ),
        counted(
            "firsthand_speculated_tokens",
            "tokens",
            "Guessed tokens that were computed: those that the model drew, and the others",
            MODEL,
            Label("result", "of the comparison", ("accepted", "rejected")),
            aliases=(
                Alias("vllm:spec_decode_num_draft_tokens"),
                Alias("vllm:spec_decode_num_accepted_tokens", (("result", "accepted"),)),
            ),
        ),
        counted("firsthand_step_errors", "steps", "Steps that failed", MODEL),
        counted(
            "firsthand_step_attempts", "steps", "Smaller steps made after one had failed", MODEL
        ),
        counted(
            "firsthand_step_failed_sequences",
            "sequences",
            "Sequences that were given up because their step failed, also alone",
            MODEL,
        ),
        gauged("firsthand_last_step_age_seconds", "seconds", "Since the last step", MODEL),
        gauged(
            "firsthand_engine_ready",
            "",
            "1: the engine takes requests",
            MODEL,
            aliases=(Alias("vllm:engine_healthy"),),
        ),
        counted("firsthand_engine_restarts", "engines", "Engines that were replaced", MODEL),
        counted("firsthand_engine_cpu_seconds", "seconds", "Processor time of the engine", MODEL),
        gauged(
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
        gauged(
            "firsthand_kv_blocks",
            "blocks",
            "Blocks of keys and values",
            MODEL,
            Label("state", "of the block", ("used", "free")),
        ),
        gauged(
            "firsthand_kv_blocks_used_ratio",
            "ratio",
            "Used blocks of all, 0 … 1",
            MODEL,
            aliases=(Alias("vllm:kv_cache_usage_perc"),),
        ),
        counted(
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
        counted(
            "firsthand_preemptions",
            "sequences",
            "Sequences that lost their blocks, and wait to be computed again",
            MODEL,
            Label("reason", "for it", ("memory",)),
            aliases=(Alias("vllm:num_preemptions"),),
        ),
        gauged("firsthand_memory_reserve", "", "1: the engine holds its reserve of memory", MODEL),
        gauged("firsthand_memory_used_ratio", "ratio", "Used memory of the machine, 0 … 1"),
        gauged(
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
