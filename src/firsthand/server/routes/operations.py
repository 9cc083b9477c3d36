"""What operators and orchestrators ask: health, readiness, version, metrics.

Owns: these routes and the checks that come from a service's state.
May not know: what else is checked (`../health.py` has the registry).
Read next: `../health.py`, `../../observe/metrics.py`.

| route | 200 means |
|---|---|
| `/health` | every check holds |
| `/livez` | this process is worth keeping; also while it loads or drains |
| `/readyz` | requests are taken now |
| `/health_generate` | every check holds, and each model that is awake gives a token now |
"""

from __future__ import annotations

from collections.abc import Callable
from contextlib import closing
from functools import partial

from fastapi import APIRouter
from fastapi.routing import APIRoute
from prometheus_client.exposition import choose_encoder
from starlette.requests import Request
from starlette.responses import Response

from firsthand.generation.options import Options
from firsthand.generation.service import Service
from firsthand.request import FinishReason
from firsthand.server.errors import JSON
from firsthand.server.guard.refusal import Refused
from firsthand.server.health import Check
from firsthand.server.house import House
from firsthand.server.openapi import described
from firsthand.server.routes.submitting import json_reply
from firsthand.server.sse import encode_json
from firsthand.server.wire.replies import StatusReply, VersionReply

GENERATE_S = 10.0
FAILURES = (FinishReason.DEADLINE, FinishReason.CANCELLED, FinishReason.ERROR)
METRIC_TYPES = ("text/plain", "application/openmetrics-text")


def operations_router(house: House) -> APIRouter:
    router = APIRouter()
    add_service_checks(house)
    health = described(None, StatusReply, "Is it well?", errors=(400, 500, 503))
    checks = described(
        None, StatusReply, "Is it well, and what of it?", flags=("verbose",), errors=(400, 500, 503)
    )

    @router.get("/health", **health)
    async def well() -> Response:
        return _sum(house.checks.run(), verbose=False)

    @router.get("/readyz", **checks)
    async def ready(request: Request) -> Response:
        return _sum(house.checks.run(), verbose="verbose" in request.query_params)

    @router.get("/livez", **checks)
    async def live(request: Request) -> Response:
        found = house.checks.run(live_only=True)
        return _sum(found, verbose="verbose" in request.query_params)

    @router.get("/v2/health/live", **health)
    async def live_v2() -> Response:
        return _sum(house.checks.run(live_only=True), verbose=False)

    @router.get("/v2/health/ready", **health)
    async def ready_v2() -> Response:
        return _sum(house.checks.run(), verbose=False)

    @router.get(
        "/v2/models/{name:path}/ready",
        **described(
            None, StatusReply, "Does one model take requests?", errors=(400, 404, 500, 503)
        ),
    )
    async def model_ready(name: str) -> Response:
        cascade = house.cascades.get(name)
        services = [house.find(name)[1]] if cascade is None else cascade.pair(house.services)
        found = {one.model.name: _state_check(one)() for one in services}
        return _sum(found, verbose=False)

    _add_generating(router, house)

    @router.get("/version", **described(None, VersionReply, "The version", errors=(400, 500)))
    async def version() -> Response:
        return json_reply({"version": house.version})

    @router.get(
        "/metrics",
        **described(None, None, "For Prometheus", texts=METRIC_TYPES, errors=(400, 500)),
    )
    async def metrics(request: Request) -> Response:
        encode, kind = choose_encoder(request.headers.get("accept", ""))
        return Response(encode(house.metrics.registry), headers={"content-type": kind})

    for route in [one for one in router.routes if isinstance(one, APIRoute)]:
        # Probes ask so; the listener leaves the body out.
        router.add_api_route(
            route.path,
            route.endpoint,
            methods=["HEAD"],
            dependencies=route.dependencies,
            include_in_schema=False,
        )
    return router


def _add_generating(router: APIRouter, house: House) -> None:
    @router.get(
        "/health_generate",
        **described(None, StatusReply, "Does it generate?", errors=(400, 500, 503)),
    )
    async def generates() -> Response:
        told = _sum(house.checks.run(), verbose=False)
        for service in house.models:
            if service.state.status.takes_requests:  # one that sleeps is as it should be
                await _one_token(service)
        return told


async def _one_token(service: Service) -> None:
    """Raises Refused where none comes in time, and what the service raises."""
    options: Options = {"max_tokens": 1, "temperature": 0.0, "timeout_s": GENERATE_S}
    prompt = await service.tokenize("1")
    with closing(service.submit(prompt, {**options, "ignore_end": True})) as stream:
        reason = None
        async for chunk in stream:
            reason = None if chunk.completion is None else chunk.completion.finish.reason
    if reason in (None, *FAILURES):
        message = f"{service.model.name}: one token was asked for, and it ended by {reason}"
        raise Refused(503, message, "degraded", retry_after_s=1)


def add_service_checks(house: House) -> None:
    for name, service in house.services.items():
        if name in house.canaries.names:  # one that is not well is taken back
            continue
        check = _state_check(service)
        if house.entrance is not None:
            check = partial(house.entrance.check, service)
        house.checks.add(f"engine:{name}", check)


def _state_check(service: Service) -> Callable[[], Check]:
    def check() -> Check:
        state = service.state
        return Check(
            state.status.takes_requests, state.reason or state.status.value, state.heartbeat_age_s
        )

    return check


def _sum(checks: dict[str, Check], *, verbose: bool) -> Response:
    failed = [f"{name} ({check.detail})" for name, check in checks.items() if not check.ok]
    if verbose:
        value = {
            "status": "failed" if failed else "ok",
            "checks": {
                name: {"ok": check.ok, "detail": check.detail, "age_s": check.age_s}
                for name, check in checks.items()
            },
        }
        return Response(encode_json(value), 503 if failed else 200, media_type=JSON)
    if failed:
        message = f"not well: {', '.join(failed)}"
        raise Refused(503, message, "degraded", retry_after_s=1)
    return json_reply({"status": "ok"})
