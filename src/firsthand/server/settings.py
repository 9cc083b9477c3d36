"""Every setting of the server, declared once: flag, variable, key of the file, and its page.

Owns: names, defaults, units, limits and checks across settings; which settings may change while the
server runs.
May not know: what a setting does, where a value comes from.
Read next: `setting_rows.py`, `setting_kinds.py` (the forms of a value), `setting_sources.py`,
`configured.py`; `cli/serve.py`.

A setting `max_num_seqs` is the flag `--max-num-seqs`, the variable `FIRSTHAND_MAX_NUM_SEQS` and the
key `max-num-seqs` of the TOML file (`_` will do for `-`). Names are vLLM's where it has one for the
same thing.
"""

from __future__ import annotations

import re
from collections.abc import Iterator
from dataclasses import field, fields, replace
from pathlib import Path
from typing import Annotated, Any, get_type_hints

from firsthand.errors import InvalidRequest
from firsthand.server.model_entries import LOADS, ModelEntry, Models
from firsthand.server.profiles import PROFILES
from firsthand.server.setting_kinds import (
    Address,
    Bytes,
    Choice,
    Count,
    Entries,
    File,
    Named,
    Seconds,
    Switch,
    Text,
    Words,
)
from firsthand.server.setting_rows import About, Setting
from firsthand.text.tool_calls import FORMAT_NAMES
from firsthand.values import dataclass

MAX_BODY_BYTES = 1 << 30

# What a model may have of its own; `device` and the like are otherwise those of all.
OF_A_MODEL = (
    *("max_model_len", "max_num_seqs", "max_num_batched_tokens", "block_size", "kv_cache_dtype"),
    *("quantization", "executor", "device", "threads", "memory_limit", "chat_template"),
    *("lora_modules", "speculative_config", "enable_prefix_caching", "family", "compile"),
    "deterministic",
)


@dataclass(frozen=True, slots=True)
class Settings:
    """All values, checked. Times are seconds, sizes bytes."""

    # The model
    model: Annotated[
        tuple[ModelEntry, ...],
        About(Models(OF_A_MODEL), "A known name, a folder, a .gguf file, or a hub id; or several."),
    ] = ()
    load: Annotated[
        str,
        About(
            Choice(*LOADS),
            "whole, or in shards, read from the disk while a step computes; lazy: at a request.",
        ),
    ] = "whole"
    served_model_name: Annotated[
        tuple[str, ...], About(Words(), "Names of the only model; default: its own.")
    ] = ()
    max_model_len: Annotated[
        int | None, About(Count(1), "Tokens that a sequence may have; default: the model's own.")
    ] = None
    max_num_seqs: Annotated[
        int | None,
        About(Count(1, 4096), "Sequences that run at once; default: as memory allows, to 16."),
    ] = None
    profile: Annotated[
        str | None,
        About(
            Choice(*PROFILES),
            "A choice between quick answers and many; sets what is not given otherwise.",
        ),
    ] = None
    max_batch_size: Annotated[
        int, About(Count(1, 4096), "Scored or embedded texts that start together at most.")
    ] = 16
    max_batch_wait: Annotated[
        float, About(Seconds(0, 10), "That such a text waits for others at most.")
    ] = 0.01
    min_batch_size: Annotated[
        int, About(Count(1, 4096), "So many of them start early, if none runs.")
    ] = 1
    max_num_batched_tokens: Annotated[
        int, About(Count(1, 16384), "Tokens that one step computes at most.")
    ] = 512
    block_size: Annotated[int, About(Count(16, 1024), "Tokens per block of the cache.")] = 16
    enable_prefix_caching: Annotated[
        bool, About(Switch(), "Keep blocks of ended sequences for prompts that begin alike.")
    ] = True
    kv_cache_dtype: Annotated[
        str,
        About(
            Choice("int16", "float16", "float32", "int8"), "Type of keys and values in the cache."
        ),
    ] = "int16"
    quantization: Annotated[
        str,
        About(Choice("auto", "none", "int8", "int4"), "Of the weights; auto: the file's blocks."),
    ] = "auto"
    executor: Annotated[str, About(Choice("native", "torch", "triton"), "What computes.")] = (
        "native"
    )
    device: Annotated[str, About(Text(), "cpu; cuda with torch or triton.")] = "cpu"
    compile: Annotated[
        bool,
        About(Switch(), "Of torch: compile the steps; of triton: capture small ones as graphs."),
    ] = False
    deterministic: Annotated[
        bool,
        About(
            Switch(), "Of torch: only algorithms of equal bits; of triton: no library's product."
        ),
    ] = False
    family: Annotated[
        str | None, About(Text(), "A model family of your own for a folder, FILE:NAME.")
    ] = None
    threads: Annotated[
        int | None, About(Count(1, 256), "To compute with; default: one per core.")
    ] = None
    memory_limit: Annotated[
        str,
        About(Text(), "What all engines may take: bytes (2GiB), or a share of what is free (80%)."),
    ] = "80%"
    min_model_stay: Annotated[
        float,
        About(Seconds(0, 86400), "That a model stays before it leaves for another.", reloads=True),
    ] = 10.0
    model_idle_timeout: Annotated[
        float,
        About(Seconds(0, 864000), "After which an unused model leaves; 0: never.", reloads=True),
    ] = 0.0
    chat_template: Annotated[
        Path | None, About(File(), "A file with a chat template, in place of the model's own.")
    ] = None
    lora_modules: Annotated[
        tuple[tuple[str, str], ...],
        About(Named(), "Adapters and their folders: requests call for one as for a model."),
    ] = ()
    enable_lora: Annotated[
        bool, About(Switch(), "Load the adapters; without it none of them is here.")
    ] = True
    speculative_config: Annotated[
        dict[str, Any] | None,
        About(
            Entries(), "Guess tokens and keep the right ones: JSON, method ngram or draft_model."
        ),
    ] = None
    cascade: Annotated[
        tuple[tuple[str, str], ...],
        About(Named(), "Cascades of two of the models, and their files of `cascade calibrate`."),
    ] = ()
    tool_call_parser: Annotated[
        str,
        About(Choice("auto", *FORMAT_NAMES), "How the model calls tools; auto: as its template."),
    ] = "auto"
    pooling: Annotated[
        str,
        About(Choice("last", "mean"), "Of /v1/embeddings: the last token's state, or the mean."),
    ] = "last"
    reasoning_field: Annotated[
        str,
        About(
            Choice("both", "reasoning", "reasoning_content"),
            "The name under which reasoning is given out; both: twice the same text.",
        ),
    ] = "both"
    lenient: Annotated[
        bool,
        About(Switch(), "Ignore fields that this server does not have, and say which, not 400."),
    ] = False
    repetition_guard: Annotated[
        bool,
        About(Switch(), "End answers that go round in circles, unless a request says otherwise."),
    ] = False
    # The address
    host: Annotated[str, About(Text(), "Address to listen on; a public one needs a key.")] = (
        "127.0.0.1"
    )
    port: Annotated[int, About(Count(0, 65535), "Port to listen on; 0: any free one.")] = 8000
    uds: Annotated[Path | None, About(File(), "A Unix socket to listen on, instead of a port.")] = (
        None
    )
    root_path: Annotated[str, About(Text(), "Path prefix under which a proxy serves this.")] = ""
    allowed_hosts: Annotated[
        tuple[str, ...],
        About(Words(), "Names taken in Host; default: this machine's own while no key is needed."),
    ] = ()
    allowed_origins: Annotated[
        tuple[str, ...], About(Words(), "Origins of web pages that may call (CORS); default: none.")
    ] = ()
    ssl_keyfile: Annotated[Path | None, About(File(), "Private key, for TLS.")] = None
    ssl_certfile: Annotated[Path | None, About(File(), "Certificate chain, for TLS.")] = None
    ssl_ca_certs: Annotated[
        Path | None, About(File(), "With it, clients need a certificate of these authorities.")
    ] = None
    # Keys
    api_key: Annotated[
        tuple[str, ...],
        About(Words(), "Keys that open the server, by commas.", reloads=True, secret=True),
    ] = field(default=(), repr=False)
    api_key_file: Annotated[
        Path | None,
        About(File(), "A file of keys: one per line, or [[key]] tables in .toml.", reloads=True),
    ] = None
    metrics_public: Annotated[
        bool, About(Switch(), "Serve /metrics without a key.", reloads=True)
    ] = False
    vllm_metrics: Annotated[bool, About(Switch(), "Give /metrics under vLLM's names too.")] = True
    insecure: Annotated[bool, About(Switch(), "Allow a public address without a key.")] = False
    requests_per_minute: Annotated[
        int, About(Count(0), "Of a key that has no limit of its own; 0: no limit.", reloads=True)
    ] = 0
    tokens_per_minute: Annotated[int, About(Count(0), "The same, in tokens.", reloads=True)] = 0
    max_concurrent_requests: Annotated[
        int, About(Count(0), "Requests that one key may have open; 0: no limit.", reloads=True)
    ] = 0
    # What may come in
    max_body_size: Annotated[
        int, About(Bytes(1 << 10, MAX_BODY_BYTES), "Of a request.", reloads=True)
    ] = 8 << 20
    max_header_size: Annotated[
        int, About(Bytes(1 << 10, 1 << 20), "Of all headers of a request together.", reloads=True)
    ] = 32 << 10
    max_headers: Annotated[int, About(Count(8, 1000), "Number of headers.", reloads=True)] = 100
    max_json_depth: Annotated[int, About(Count(4, 512), "Nesting of a body.", reloads=True)] = 64
    receive_timeout: Annotated[
        float, About(Seconds(0.1, 600), "In which a request must have arrived.", reloads=True)
    ] = 10.0
    stall_timeout: Annotated[
        float, About(Seconds(0.1, 3600), "After which a reader that takes nothing is cut.")
    ] = 30.0
    timeout_keep_alive: Annotated[
        int, About(Count(1, 3600), "Seconds after which an idle connection is closed.")
    ] = 5
    max_connections: Annotated[int, About(Count(1, 1_000_000), "Open connections.")] = 8192
    # The queue
    max_num_queued_reqs: Annotated[
        int, About(Count(0, 100_000), "Sequences that wait; one more gets 503.", reloads=True)
    ] = 256
    max_queued_tokens: Annotated[
        int, About(Count(0), "Prompt and answer tokens that wait; 0: no such bound.", reloads=True)
    ] = 0
    max_queue_wait: Annotated[
        float,
        About(
            Seconds(0, 3600),
            "A longer queue, by its measured pace, gets 503; 0: no such bound.",
            reloads=True,
        ),
    ] = 30.0
    request_timeout: Annotated[
        float, About(Seconds(1, 86400), "The longest that a request may take.", reloads=True)
    ] = 600.0
    shutdown_timeout: Annotated[
        float | None,
        About(
            Seconds(0, 86400),
            "That requests may take after SIGTERM; default: 30 s, or 1.5 × the longest request.",
            reloads=True,
        ),
    ] = None
    shed: Annotated[bool, About(Switch(), "Refuse optional work under load.", reloads=True)] = True
    long_output_tokens: Annotated[
        int, About(Count(1), "Answers longer than this are optional work.", reloads=True)
    ] = 1024
    # Repeated requests
    idempotency_ttl: Annotated[
        float, About(Seconds(1, 604800), "For which a reply is kept under its Idempotency-Key.")
    ] = 3600.0
    idempotency_memory: Annotated[
        int, About(Bytes(1 << 10, 1 << 40), "For all kept replies together.")
    ] = 64 << 20
    require_idempotency_key: Annotated[
        bool, About(Switch(), "Refuse generating requests without one.", reloads=True)
    ] = False
    # What is kept for callers
    files_folder: Annotated[
        Path | None, About(File(), "Keep files and batches here; default: there are none.")
    ] = None
    files_size: Annotated[
        int, About(Bytes(1 << 10, 1 << 50), "Of all files and batches together.")
    ] = 4 << 30
    max_file_size: Annotated[int, About(Bytes(1 << 10, 1 << 40), "Of one file.")] = 200 << 20
    files_expiry: Annotated[
        float, About(Seconds(0, 10**9), "After which a file goes; 0: never.")
    ] = 30 * 86400.0
    # Operation
    contract: Annotated[
        str | None,
        About(Text(), "What a text must be, module:Class or file.py:Class; see docs/data.md."),
    ] = None
    admin_socket: Annotated[
        Path | None,
        About(File(), "A Unix socket for drain, reload, sleep, wake_up, ps, chaos; default: none."),
    ] = None
    chaos: Annotated[bool, About(Switch(), "Let `firsthand chaos` put faults in, for a drill.")] = (
        False
    )
    selfcheck_interval: Annotated[
        float, About(Seconds(0, 86400), "Between two self-checks with golden tokens; 0: never.")
    ] = 60.0
    demo: Annotated[
        bool, About(Switch(), "A teaching mode: the page may pause the engine, and step it.")
    ] = False
    record_golden: Annotated[
        bool, About(Switch(), "Record this model's golden tokens, and end.")
    ] = False
    recorder_memory: Annotated[
        int, About(Bytes(64 << 10, 1 << 40), "For the records of the last requests and steps.")
    ] = 16 << 20
    record_content: Annotated[
        bool, About(Switch(), "Keep the token ids of requests too, so that one can be replayed.")
    ] = False
    otlp_traces_endpoint: Annotated[
        str | None,
        About(Address(), "Where traces go by OTLP over HTTP; default: as OTEL_EXPORTER_OTLP_*."),
    ] = None
    log_level: Annotated[
        str, About(Choice("debug", "info", "warning", "error"), "What is logged.", reloads=True)
    ] = "info"
    log_format: Annotated[
        str, About(Choice("auto", "json", "text"), "auto: text on a terminal, else JSON lines.")
    ] = "auto"
    log_folder: Annotated[
        Path | None, About(File(), "Write the log here too; many servers may share it.")
    ] = None

    def __post_init__(self) -> None:
        if (self.ssl_keyfile is None) != (self.ssl_certfile is None):
            raise InvalidRequest("ssl_certfile", "TLS takes both a certificate and its key")
        if self.ssl_ca_certs is not None and self.ssl_certfile is None:
            raise InvalidRequest("ssl_ca_certs", "needs ssl_certfile and ssl_keyfile")
        if self.block_size % 16:
            raise InvalidRequest("block_size", "must be a multiple of 16")
        if self.root_path and not re.fullmatch(r"(/[A-Za-z0-9._~-]+)+", self.root_path):
            raise InvalidRequest("root_path", "begins with / and does not end with one")
        self._check_models()

    def _check_models(self) -> None:
        names = [entry.called for entry in self.model]
        adapters = [name for entry in self.model for name in self.of_model(entry).adapters]
        for name in names:
            if names.count(name) > 1:
                raise InvalidRequest("model", f"two are called {name!r}; give one another name")
        for name in adapters:
            if [*names, *self.served_model_name, *adapters].count(name) > 1:
                raise InvalidRequest("lora_modules", f"more than one thing is called {name!r}")
        cascades = [name for name, _ in self.cascade]
        for name in cascades:
            if [*names, *self.served_model_name, *adapters, *cascades].count(name) > 1:
                raise InvalidRequest("cascade", f"more than one thing is called {name!r}")
        if len(names) > 1 and self.served_model_name:
            message = "is for one model; give each [[model]] table a name"
            raise InvalidRequest("served_model_name", message)

    def of_model(self, entry: ModelEntry) -> Settings:
        """These settings, with the model's own in their place. Raises InvalidRequest."""
        kinds = {setting.name: setting.about.kind for setting in SETTINGS}
        own = {
            name: kinds[name].read(f"model {entry.called}: {name.replace('_', '-')}", given)
            for name, given in entry.options
        }
        return replace(self, model=(), served_model_name=(), **own)

    @property
    def adapters(self) -> dict[str, str]:
        """Of one model: names and folders."""
        return dict(self.lora_modules) if self.enable_lora else {}

    @property
    def drain_limit_s(self) -> float:
        """How long requests that run may take when the server is told to end."""
        if self.shutdown_timeout is not None:
            return self.shutdown_timeout
        return max(30.0, 1.5 * self.request_timeout)


def _rows() -> Iterator[Setting]:
    hints = get_type_hints(Settings, include_extras=True)
    for one in fields(Settings):
        yield Setting(one.name, hints[one.name].__metadata__[0], one.default)


SETTINGS: tuple[Setting, ...] = tuple(_rows())
