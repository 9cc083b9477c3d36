"""The document tells the truth: every reference resolves, every route is there."""

from __future__ import annotations

import json
import re
from collections.abc import Callable

import httpx

from firsthand.server.app import BODIES, build_routes
from firsthand.server.house import House
from firsthand.server.page_files import FREE_PATHS

Ask = Callable[..., httpx.Response]


def test_every_reference_resolves(ask: Ask) -> None:
    text = ask("GET", "/openapi.json").text
    found = json.loads(text)["components"]["schemas"]
    assert set(re.findall(r'"#/components/schemas/([^"]+)"', text)) <= set(found)
    assert {body.__name__ for body in BODIES} <= set(found)


def test_every_route_is_in_the_document(house: House, ask: Ask) -> None:
    paths = ask("GET", "/openapi.json").json()["paths"]
    hidden = {"/openapi.json", "/docs", "/docs/docs.js", *FREE_PATHS}
    live = {route.path for route in build_routes(house).routes}  # type: ignore[attr-defined]
    assert {path.replace(":path", "") for path in live} - hidden == set(paths)


def test_what_is_not_supported_is_said(ask: Ask) -> None:
    """A field that is refused takes nothing but null."""
    chat = ask("GET", "/openapi.json").json()["components"]["schemas"]["ChatBody"]
    assert chat["additionalProperties"] is False
    for name in ("functions", "prediction", "function_call"):
        assert chat["properties"][name]["type"] == "null"
    assert chat["properties"]["temperature"]["anyOf"][0] == {
        "type": "number",
        "minimum": 0,
        "maximum": 100,
    }


def test_the_page_needs_nothing_from_outside(ask: Ask) -> None:
    page, script = ask("GET", "/docs"), ask("GET", "/docs/docs.js")
    assert page.status_code == script.status_code == 200
    assert "default-src 'none'" in page.headers["content-security-policy"]
    for text in (page.text, script.text):
        assert "http:" not in text
        assert "https:" not in text
    assert "innerHTML" not in script.text
