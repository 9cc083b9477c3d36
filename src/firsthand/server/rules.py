"""From settings to the values of the parts: the engine's, and those that a reload computes anew.

Owns: which setting goes where.
May not know: what the values do.
Read next: `guard/middleware.py`, `guard/gate.py`, `../generation/service_values.py`.
"""

from __future__ import annotations

import os
from pathlib import Path

from firsthand.errors import InvalidRequest
from firsthand.generation.load_options import LoadOptions
from firsthand.generation.service import ServiceOptions
from firsthand.server.guard.access import LOCAL_NAMES, Access
from firsthand.server.guard.body import BodyLimits
from firsthand.server.guard.call import Quota
from firsthand.server.guard.gate import Bounds
from firsthand.server.guard.keys import KeyRing, key_ring
from firsthand.server.guard.middleware import Rules
from firsthand.server.settings import Settings

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
    limits = BodyLimits(
        max_body_bytes=settings.max_body_size,
        max_header_bytes=settings.max_header_size,
        max_headers=settings.max_headers,
        max_json_depth=settings.max_json_depth,
        receive_timeout_s=settings.receive_timeout,
    )
    access = Access(keys, settings.metrics_public, hosts)
    return Rules(access, limits, settings.require_idempotency_key)


def bounds_of(settings: Settings, max_sequences: int) -> Bounds:
    """`max_sequences` is what the engine runs at once; 0: not known yet."""
    return Bounds(
        max_running=max_sequences or settings.max_num_seqs or DEFAULT_RUNNING,
        max_waiting=settings.max_num_queued_reqs,
        max_waiting_tokens=settings.max_queued_tokens,
        max_wait_s=settings.max_queue_wait,
        request_timeout_s=settings.request_timeout,
        long_output_tokens=settings.long_output_tokens,
        shed=settings.shed,
    )


def service_options(settings: Settings) -> ServiceOptions:
    """Raises InvalidRequest, also where no model was named."""
    if settings.model is None:
        raise InvalidRequest("model", "is missing: firsthand serve MODEL")
    template = None
    if settings.chat_template is not None:
        try:
            template = settings.chat_template.read_text(encoding="utf-8")
        except (OSError, UnicodeDecodeError) as error:
            raise InvalidRequest("chat_template", f"{settings.chat_template}: {error}") from None
    return ServiceOptions(
        settings.model,
        load_options(settings),
        name=next(iter(settings.served_model_name), model_name(settings.model)),
        chat_template=template,
        max_requests=bounds_of(settings, 4096).num_places + 16,
    )


def model_name(model: str) -> str:
    """What callers call it: of a path, its last part only."""
    if os.sep not in model or not Path(model).exists():
        return model
    return Path(model).resolve().name.removesuffix(".gguf")


def load_options(settings: Settings) -> LoadOptions:
    return LoadOptions(
        executor="torch" if settings.executor == "torch" else "native",
        device=settings.device,
        quantization=settings.quantization,  # type: ignore[arg-type]  # checked there
        max_context=settings.max_model_len,
        threads=settings.threads,
        kv_dtype=settings.kv_cache_dtype,  # type: ignore[arg-type]
        block_size=settings.block_size,
        max_step_tokens=settings.max_num_batched_tokens,
        max_sequences=settings.max_num_seqs,
        memory_limit=settings.memory_limit,
    )
