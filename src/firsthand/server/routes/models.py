"""`/v1/models` and `/v1/models/{id}`.

Owns: the card of a model. May not know: how models come to be here.
Read next: `../house.py`.
"""

from __future__ import annotations

from typing import Any

from fastapi import APIRouter
from starlette.responses import Response

from firsthand.generation.service import Service
from firsthand.server.fingerprint import fingerprint, made_of
from firsthand.server.house import House
from firsthand.server.openapi import described
from firsthand.server.routes.submitting import json_reply
from firsthand.server.wire.replies import ModelCard, ModelList


def models_router(house: House) -> APIRouter:
    router = APIRouter()

    @router.get(
        "/v1/models", **described(None, ModelList, "The models that are here", errors=(400, 500))
    )
    async def models() -> Response:
        cards = [_card(house, name, service) for name, service in house.services.items()]
        cards += [_cascade_card(house, name) for name in house.cascades]
        return json_reply({"object": "list", "data": cards})

    # A hub id has a slash, so the name may hold one.
    @router.get(
        "/v1/models/{name:path}", **described(None, ModelCard, "One model", errors=(400, 404, 500))
    )
    async def model(name: str) -> Response:
        if name in house.cascades:
            return json_reply(_cascade_card(house, name))
        return json_reply(_card(house, *house.find(name)))

    return router


def _card(house: House, name: str, service: Service) -> dict[str, Any]:
    facts, more = service.model, {}
    if house.entrance is not None:
        more = house.entrance.card(service)
    share = house.canaries.share_of(name)
    if share is not None:
        more["firsthand_canary_share"] = share
    parent = house.adapters.get(name)
    if parent is not None:
        adapter = facts.adapters.get(name)  # known once an engine has loaded it
        more["firsthand_adapter_sha256"] = None if adapter is None else adapter.sha256
    return {
        "id": name,
        "object": "model",
        "created": facts.created_s,
        "owned_by": "firsthand",
        "root": facts.name,
        "parent": parent,
        "max_model_len": facts.context_length,
        "firsthand_manifest_sha256": facts.manifest_sha256,
        "firsthand_release": facts.release,
        "firsthand_fingerprint": {"word": fingerprint(service, name), **made_of(service, name)},
        **more,
    }


def _cascade_card(house: House, name: str) -> dict[str, Any]:
    """That of its large model, which gives what the small one does not."""
    cascade = house.cascades[name]
    large = _card(house, cascade.found.large, cascade.pair(house.services)[1])
    own = ("firsthand_manifest_sha256", "firsthand_release", "firsthand_fingerprint")
    return {
        **{key: None if key in own else large[key] for key in ModelCard.model_fields},
        "id": name,
        "root": name,
        "firsthand_cascade": cascade.card(),
    }
