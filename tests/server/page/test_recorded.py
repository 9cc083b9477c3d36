"""The page before a recording: the engine of then, and nothing that is not there.

Owns: proof of `server/recorded.py`. Read next: `tests/cli/test_watching.py`, where one is made.
"""

from __future__ import annotations

from contextlib import closing
from itertools import islice
from pathlib import Path
from typing import Any

import httpx
import pytest
from starlette.types import ASGIApp

from firsthand.cli.client import client_of
from firsthand.observe.recording import write
from firsthand.server.recorded import recorded_app
from tests.server.page.conftest import opening
from tests.server.processes import Server
from tests.server.running import serving

pytestmark = pytest.mark.process  # a browser


def test_the_engine_of_a_recording_is_drawn(chromium: Any, site: Server, tmp_path: Path) -> None:
    file = tmp_path / "feed"
    with closing(client_of(site.url, None).engine_news()) as news:
        httpx.post(f"{site.url}/v1/completions", json={"prompt": "a", "max_tokens": 4}, timeout=30)
        write(islice(news, 3), file, 1 << 20)

    async def make() -> ASGIApp:
        return recorded_app(file)

    with serving(make) as running, opening(chromium, running.url) as open_tab:
        page = open_tab("#/engine")
        page.locator(".blockmap .note", has_text="used").wait_for()
        page.get_by_role("heading", name="Timeline").wait_for()
        assert httpx.get(f"{running.url}/v1/models", timeout=10).status_code == 404
