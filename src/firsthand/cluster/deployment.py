"""Replicas on Ray: started, called, counted, ended.

Owns: every setting of Ray and of Ray Serve, and their names: `APP` and `DEPLOYMENT`.
May not know: requests, streams, how a replica is chosen.
Read next: `replica.py`, what runs there; `closed.py`, before any of it; `fleet.py`, who calls.

Nothing that Ray Serve leaves open by default is left so: how many requests a replica takes, how
many may wait for one, when a replica counts as sick, how long it may finish what it has.
"""

from __future__ import annotations

import asyncio
import logging
import re
import time
from collections.abc import AsyncIterator, Callable, Mapping
from contextlib import suppress
from typing import Any

import msgspec
import ray
from ray import serve
from ray.exceptions import RayError
from ray.serve._private.application_state import StatusOverview
from ray.serve._private.common import DeploymentID
from ray.serve.config import RequestRouterConfig
from ray.serve.exceptions import BackPressureError, RayServeException
from ray.serve.generated.serve_pb2 import StatusOverview as StatusOverviewProto
from ray.serve.handle import DeploymentHandle
from ray.serve.schema import ApplicationStatus

from firsthand.checks import shown
from firsthand.cluster.node_model import bring
from firsthand.cluster.replica import EngineReplica
from firsthand.cluster.routing import ROUTER
from firsthand.cluster.ticket import Ticket
from firsthand.cluster.wire import ReplicaOptions, packed
from firsthand.errors import CapacityExceeded, EngineUnavailable, InvalidRequest
from firsthand.values import dataclass

APP = "firsthand"  # and the model's name
DEPLOYMENT = "engine"
SPARE_CALLS = 8  # of a replica: links, and what is told beside the requests
MAX_NAME_CHARS = 80
STATUS_S = 5.0
LOOK_S = 0.2
TELL_S = 10.0
SPARE_S = 30.0  # for the end itself, beside the drain
BY_VALUE = {
    "_by_reference": False,
    "request_serialization": "pickle",
    "response_serialization": "pickle",
}
_ENDED = (ApplicationStatus.NOT_STARTED, ApplicationStatus.DELETING)


@dataclass(frozen=True, slots=True)
class Place:
    """How many replicas, and what each may use of its machine. `drain_s`: how long one that is to
    go may finish what it has. `autoscaling`: Ray Serve's settings of it; None: the number stays
    until somebody changes it. `variables` are for the replicas' processes."""

    num_replicas: int = 1
    num_cpus: float = 1.0
    drain_s: float = 600.0
    autoscaling: Any = None
    variables: Mapping[str, str] | None = None


class ServeCalls:
    """Calls by a handle of Ray Serve. On the event loop that makes it.

    They go straight to the replica's own port, by value: as calls of an actor each piece would pass
    the store of Ray's objects, which takes twice as long.
    """

    def __init__(self, app: str, handle: DeploymentHandle[Any]) -> None:
        self._app = app
        direct = handle.options(stream=True, **BY_VALUE)
        self._run, self._tell, self._link = direct.run, direct.tell, direct.link

    async def run(self, ticket: Ticket) -> bytes:
        return await _answer(self._run.remote(ticket))

    async def tell(self, ticket: Ticket) -> bytes:
        return await _answer(self._tell.remote(ticket))

    async def link(self, ticket: Ticket) -> AsyncIterator[bytes]:
        response = self._link.remote(ticket)
        try:
            async for piece in response:
                yield piece
        finally:
            response.cancel()

    async def is_wanted(self) -> bool:
        with suppress(Exception, TimeoutError):  # who cannot be asked has not said so
            async with asyncio.timeout(STATUS_S):
                controller = serve.context._get_global_client()._controller
                (told,) = await controller.get_serve_statuses.remote([self._app])
                state = StatusOverview.from_proto(StatusOverviewProto.FromString(told)).app_status
                return state.status not in _ENDED
        return True

    async def remove(self) -> None:
        with suppress(TimeoutError):  # they end by themselves, or with Ray
            await asyncio.to_thread(serve.delete, self._app)


class RayDeployer:
    """Gives each model its replicas, at one place."""

    def __init__(self, place: Place) -> None:
        self._place = place
        _log_here()

    async def __call__(self, options: ReplicaOptions) -> ServeCalls:
        """Raises EngineUnavailable."""
        app = app_of(options.model)
        version = (await asyncio.to_thread(bring, options.model, None)).version
        options = msgspec.structs.replace(options, version=version)
        try:
            await asyncio.to_thread(self._run, app, options)
        except (RayError, RayServeException, RuntimeError, ValueError) as error:
            raise EngineUnavailable(f"the replicas cannot be started: {shown(error)}") from error
        return ServeCalls(app, serve.get_deployment_handle(DEPLOYMENT, app))

    def _run(self, app: str, options: ReplicaOptions) -> None:
        place = self._place
        serve.start(proxy_location="Disabled")  # else one answers at port 8000, without a token
        actor: dict[str, Any] = {"num_cpus": place.num_cpus}
        if place.variables:
            actor["runtime_env"] = {"env_vars": dict(place.variables)}
        many: dict[str, Any] = {"num_replicas": place.num_replicas}
        if place.autoscaling is not None:
            many = {"autoscaling_config": place.autoscaling}
        deployment = serve.deployment(
            EngineReplica,
            name=DEPLOYMENT,
            ray_actor_options=actor,
            max_ongoing_requests=options.max_requests + SPARE_CALLS,
            max_queued_requests=options.max_requests,
            # The door leaves a sick one by what comes of it, within a second. Ray replaces it,
            # which makes a machine that is too busy busier still: so late.
            health_check_period_s=5.0,
            health_check_timeout_s=30.0,
            graceful_shutdown_wait_loop_s=0.5,
            graceful_shutdown_timeout_s=place.drain_s,
            max_constructor_retry_count=3,
            user_config={},
            request_router_config=RequestRouterConfig(request_router_class=ROUTER),
            logging_config={"log_level": "WARNING", "enable_access_log": False},
            **many,
        )
        serve.run(
            deployment.bind(packed(options)),
            name=app,
            route_prefix=None,
            external_scaler_enabled=place.autoscaling is None,
        )
        _log_here()  # again: Ray Serve has its own opinion of it


def standing() -> list[dict[str, Any]]:
    """The models, and their replicas by what they do. Of one that is being deleted Ray Serve does
    not say how many are still there."""
    rows = []
    for app, told in sorted(serve.status().applications.items()):
        each = [deployment.replica_states for deployment in told.deployments.values()]
        for states in each or [{}]:
            rows.append(
                {
                    "app": app,
                    "state": told.status.lower(),
                    "wanted": sum(states.values()) - states.get("STOPPING", 0),
                    "running": states.get("RUNNING", 0),
                    "starting": states.get("STARTING", 0) + states.get("RECOVERING", 0),
                    "ending": states.get("STOPPING", 0),
                }
            )
    return [row for row in rows if row["app"].startswith(f"{APP}-")]


def scale(model: str | None, num_replicas: int) -> tuple[str, int]:
    """The application whose number of replicas was changed, and how many of them Ray's machines
    have room for. Raises InvalidRequest."""
    apps = [str(row["app"]) for row in standing()]
    app = app_of(model) if model is not None else apps[0] if len(apps) == 1 else None
    if app is None or app not in apps:
        raise InvalidRequest("model", f"is one of {', '.join(apps) or 'none: nothing is served'}")
    target = DeploymentID(name=DEPLOYMENT, app_name=app)
    controller = serve.context._get_global_client()._controller
    try:
        ray.get(controller.update_deployment_replicas.remote(target, num_replicas))
    except ray.exceptions.RayTaskError as error:
        raise InvalidRequest("replicas", "a policy of autoscaling decides here") from error
    num_cpus = _deployed(app).replica_config.ray_actor_options.get("num_cpus") or 1.0
    return app, int(ray.cluster_resources().get("CPU", 0.0) / num_cpus + 1e-6)


def remove_all(tell: Callable[[str], None]) -> list[str]:
    """Once all have finished what they have. Raises EngineUnavailable for who has not in time."""
    _log_here()
    apps = [str(row["app"]) for row in standing()]
    limit_s = max(map(_drain_s, apps), default=0.0) + SPARE_S
    for app in apps:
        tell(f"{app}: its replicas finish what they have, {limit_s:g} s at most")
        serve.delete(app, _blocking=False)
    began_s = told_s = time.monotonic()
    while left := [str(row["app"]) for row in standing()]:
        now_s = time.monotonic()
        if now_s - began_s > limit_s:
            raise EngineUnavailable(f"not ended after {limit_s:g} s: {', '.join(left)}")
        if now_s - told_s > TELL_S:
            told_s = now_s
            tell(f"{', '.join(left)}: there still are replicas, {now_s - began_s:.0f} s")
        time.sleep(LOOK_S)
    return apps


def _log_here() -> None:
    """What Ray Serve says in this process stands in our log, in its form."""
    own = logging.getLogger("ray.serve")
    own.handlers.clear()
    own.propagate = True


def _drain_s(app: str) -> float:
    """0: it is being deleted."""
    with suppress(RayError):
        return float(_deployed(app).deployment_config.graceful_shutdown_timeout_s)
    return 0.0


def _deployed(app: str) -> Any:
    """As Ray Serve keeps it."""
    info, _ = serve.context._get_global_client().get_deployment_info(DEPLOYMENT, app)
    return info


def app_of(model: str) -> str:
    """Letters, digits, dots and dashes of the name."""
    return f"{APP}-{re.sub(r'[^A-Za-z0-9.-]+', '-', model).strip('-')[-MAX_NAME_CHARS:]}"


async def _answer(response: Any) -> bytes:
    """The one piece. Raises CapacityExceeded where too many wait, else what Ray raises."""
    try:
        (answer,) = [piece async for piece in response]
        return bytes(answer)
    except asyncio.CancelledError:
        response.cancel()
        raise
    except BackPressureError:
        raise CapacityExceeded("too many requests wait for a replica") from None
