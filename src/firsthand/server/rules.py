"""From settings to the values of the parts: the engine's, and those that a reload computes anew.

Owns: which setting goes where.
May not know: what the values do.
Read next: `guard/middleware.py`, `guard/gate.py`, `../generation/service_values.py`.
"""

from __future__ import annotations

from dataclasses import replace
from pathlib import Path

from firsthand.errors import InvalidRequest
from firsthand.generation.load_options import LoadOptions
from firsthand.generation.member import RegistryEntry
from firsthand.generation.registry import Stays
from firsthand.generation.service import ServiceOptions
from firsthand.release.record import is_release, model_path, read_release
from firsthand.server.guard.access import LOCAL_NAMES, Access
from firsthand.server.guard.call import Quota
from firsthand.server.guard.incoming import IncomingLimits
from firsthand.server.guard.keys import KeyRing, key_ring
from firsthand.server.guard.middleware import Rules
from firsthand.server.guard.queue import Bounds
from firsthand.server.model_entries import ModelEntry
from firsthand.server.settings import Settings
from firsthand.version import VERSION

DEFAULT_RUNNING = 16  # until the engine says how many it runs at once


def keys_of(settings: Settings) -> KeyRing:
    """Raises InvalidRequest."""
    quota = Quota(
        settings.requests_per_minute, settings.tokens_per_minute, settings.max_concurrent_requests
    )
    return key_ring(settings.api_key, settings.api_key_file, quota)


def rules_of(settings: Settings, keys: KeyRing) -> Rules:
    """Without a key anybody who can connect may ask, also a web page in a browser on this machine,
    under a name that it has pointed here. So then only this machine's own names are taken."""
    hosts: frozenset[str] | None = None
    if settings.allowed_hosts:
        names = {name.lower() for name in settings.allowed_hosts}
        hosts = None if "*" in names else frozenset(names | LOCAL_NAMES)
    elif not keys and not settings.insecure and settings.uds is None:
        hosts = LOCAL_NAMES | {settings.host.lower()}
    limits = IncomingLimits(
        max_body_bytes=settings.max_body_size,
        max_header_bytes=settings.max_header_size,
        max_headers=settings.max_headers,
        max_json_depth=settings.max_json_depth,
        receive_timeout_s=settings.receive_timeout,
    )
    access = Access(keys, settings.metrics_public, hosts)
    return Rules(access, limits, settings.require_idempotency_key)


def bounds_of(settings: Settings, max_sequences: int, *, shared: bool = False) -> Bounds:
    """`max_sequences` is what the engine runs at once; 0: not known yet. `shared`: between keys."""
    return Bounds(
        max_running=max_sequences or settings.max_num_seqs or DEFAULT_RUNNING,
        max_waiting=settings.max_num_queued_reqs,
        max_waiting_tokens=settings.max_queued_tokens,
        max_wait_s=settings.max_queue_wait,
        request_timeout_s=settings.request_timeout,
        long_output_tokens=settings.long_output_tokens,
        shed=settings.shed,
        shared=shared,
    )


def registry_entries(settings: Settings) -> list[RegistryEntry]:
    """Every model as it is to be run. Raises InvalidRequest, also where none was named."""
    if not settings.model:
        raise InvalidRequest("model", "is missing: firsthand serve MODEL")
    return [registry_entry(settings, entry) for entry in settings.model]


def registry_entry(settings: Settings, entry: ModelEntry) -> RegistryEntry:
    """A folder of a release is its model, under its settings. The links on the way are followed
    now: an engine that is started again is of the same release. Raises InvalidRequest,
    CheckpointError."""
    folder = Path(entry.path)
    if not is_release(folder):
        return _entry(settings, entry)
    folder = folder.resolve()
    release = read_release(folder)
    if release.engine_version != VERSION:
        message = f"release {release.number} is of engine {release.engine_version}, this is "
        raise InvalidRequest("model", f"{message}{VERSION}: serve it from its own environment")
    own = {name.replace("-", "_"): value for name, value in release.configuration.items()}
    found = _entry(
        settings,
        replace(
            entry,
            path=str(model_path(folder, release)),
            name=entry.name or release.name,
            options=tuple(sorted({**dict(entry.options), **own}.items())),
        ),
    )
    return replace(found, service=replace(found.service, release=release.id))


def _entry(settings: Settings, entry: ModelEntry) -> RegistryEntry:
    own = replace(settings.of_model(entry), load=entry.load or settings.load)
    template = None
    if own.chat_template is not None:
        try:
            template = own.chat_template.read_text(encoding="utf-8")
        except (OSError, UnicodeDecodeError) as error:
            raise InvalidRequest("chat_template", f"{own.chat_template}: {error}") from None
    service = ServiceOptions(
        entry.path,
        load_options(own),
        name=next(iter(settings.served_model_name), entry.called),
        chat_template=template,
        max_requests=bounds_of(own, 4096).num_places + 16,
        chaos=settings.chaos,
    )
    return RegistryEntry(
        service,
        at_start=not own.load.startswith("lazy"),
        pinned=entry.pinned,
        memory_limit=dict(entry.options).get("memory_limit"),
    )


def stays_of(settings: Settings) -> Stays:
    room_s = settings.max_queue_wait or settings.request_timeout
    return Stays(settings.min_model_stay, settings.model_idle_timeout, room_s)


def load_options(settings: Settings) -> LoadOptions:
    return LoadOptions(
        executor=settings.executor,  # type: ignore[arg-type]
        device=settings.device,
        quantization=settings.quantization,  # type: ignore[arg-type]  # checked there
        max_context=settings.max_model_len,
        threads=settings.threads,
        kv_dtype=settings.kv_cache_dtype,  # type: ignore[arg-type]
        block_size=settings.block_size,
        prefix_cache=settings.enable_prefix_caching,
        family=settings.family,
        compile=settings.compile,
        deterministic=settings.deterministic,
        max_step_tokens=settings.max_num_batched_tokens,
        max_sequences=settings.max_num_seqs,
        max_batch_size=settings.max_batch_size,
        max_batch_wait_s=settings.max_batch_wait,
        min_batch_size=settings.min_batch_size,
        memory_limit=settings.memory_limit,
        load="shards" if settings.load.endswith("shards") else "whole",
        lora=settings.adapters,
        speculative_config=settings.speculative_config,
    )
