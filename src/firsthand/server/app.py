"""The application: every route of the server, around the models that it has.

Owns: the list of routes, and what wraps them.
May not know: how a server is started, stopped or guarded (`lifecycle.py`, `guard/`).
Read next: `house.py` (what routes share), `routes/chat.py` (the route that matters most).
"""

from __future__ import annotations

from typing import Any

from fastapi import FastAPI
from starlette.types import ASGIApp

from firsthand.server import errors
from firsthand.server.boundary import Boundary
from firsthand.server.counting import Counting
from firsthand.server.house import House
from firsthand.server.openapi import document
from firsthand.server.routes.batches import batches_router
from firsthand.server.routes.chat import chat_router
from firsthand.server.routes.completions import completions_router
from firsthand.server.routes.documents import documents_router
from firsthand.server.routes.embeddings import embeddings_router
from firsthand.server.routes.files import files_router
from firsthand.server.routes.live import live_router
from firsthand.server.routes.messages import messages_router
from firsthand.server.routes.models import models_router
from firsthand.server.routes.operations import operations_router
from firsthand.server.routes.page import page_router
from firsthand.server.routes.predict import predict_router
from firsthand.server.routes.requests import requests_router
from firsthand.server.routes.responses import responses_router
from firsthand.server.routes.tokens import tokens_router
from firsthand.server.sse import Unwound
from firsthand.server.wire.batches import BatchBody
from firsthand.server.wire.chat import ChatBody
from firsthand.server.wire.completions import CompletionBody
from firsthand.server.wire.embeddings import EmbeddingsBody
from firsthand.server.wire.live import PaceBody
from firsthand.server.wire.messages import CountBody, MessagesBody
from firsthand.server.wire.predict import PredictBody
from firsthand.server.wire.responses import ResponsesBody
from firsthand.server.wire.tokens import DetokenizeBody, TokenizeBody

BODIES = (
    *(BatchBody, ChatBody, CompletionBody, DetokenizeBody, EmbeddingsBody),
    *(PaceBody, PredictBody, ResponsesBody, TokenizeBody, CountBody, MessagesBody),
)


def build_app(house: House) -> ASGIApp:
    """The whole application, for a server or for a guard around it. It has no lifespan: the
    services run already, and whoever made them ends them."""
    routes = build_routes(house)
    house.metrics.built(house.version)
    for service in house.models:
        house.metrics.follow(service)
        house.recorder.follow(service)
        house.live.follow(service)
    return Boundary(Counting(Unwound(routes), house.metrics))


def build_routes(house: House) -> FastAPI:
    """The routes alone; `routes` of the result is the live table."""
    app = FastAPI(
        title="Firsthand",
        version=house.version,
        openapi_url=None,
        docs_url=None,
        redoc_url=None,
        redirect_slashes=False,
    )
    errors.install(app)
    made: dict[str, Any] = {}

    def described() -> dict[str, Any]:
        if not made:  # built when somebody asks, once
            made.update(document(app, BODIES))
        return made

    for router in (
        chat_router(house),
        completions_router(house),
        embeddings_router(house),
        models_router(house),
        responses_router(house),
        messages_router(house),
        predict_router(house),
        files_router(house),
        batches_router(house),
        tokens_router(house),
        operations_router(house),
        requests_router(house),
        live_router(house),
        documents_router(described),
        page_router(),
    ):
        app.router.routes.extend(router.routes)  # flat: one table, one look-up
    return app
