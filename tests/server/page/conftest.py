"""The page in a real Chromium, before a server with a real engine.

Owns: the browser, a tab that fails its test when anything is wrong in it, and what is asked of it.
May not know: what a test looks for. Read next: `test_chat.py`.
"""

from __future__ import annotations

import shutil
import time
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import Any

import httpx
import pytest

from tests.server.processes import Server, started

CHROMIUM = shutil.which("chromium")
WIDE = {"width": 1360, "height": 900}
LIMIT_MS = 20_000

# A page, untyped: the library that drives it is there only where Chromium is.
Page = Any
Open = Callable[..., Any]


@pytest.fixture(scope="module")
def chromium() -> Iterator[Any]:
    """One for all tests of a file. It has to end with them: while it runs, this thread has an event
    loop that others would trip over."""
    driver = pytest.importorskip("playwright.sync_api")
    if CHROMIUM is None:
        pytest.skip("there is no chromium")
    with driver.sync_playwright() as playwright:
        browser = playwright.chromium.launch(executable_path=CHROMIUM, args=["--no-sandbox"])
        yield browser
        browser.close()


@pytest.fixture(scope="session")
def site(long_folder: Path, tmp_path_factory: pytest.TempPathFactory) -> Iterator[Server]:
    """The whole server, in teaching mode, with a context that takes long to fill."""
    home = tmp_path_factory.mktemp("site")
    flags = ["--demo", "--threads", "1", "--max-num-seqs", "4", "--max-num-queued-reqs", "1000"]
    flags += ["--max-queue-wait", "0", "--no-shed", "--selfcheck-interval", "0"]
    with started(home, long_folder, *flags, FIRSTHAND_HOME=str(home)) as server:
        server.wait_ready(60)
        yield server


@pytest.fixture
def open_page(chromium: Any, site: Server) -> Iterator[Open]:
    """`open_page("#/engine", locale="zh-CN")`; whatever a tab complains of fails the test."""
    with opening(chromium, site.url) as found:
        yield found


@contextmanager
def opening(chromium: Any, url: str, *, excused: tuple[str, ...] = ()) -> Iterator[Open]:
    """`excused`: words of complaints that are meant."""
    complaints: list[str] = []
    contexts: list[Any] = []

    def complain(text: str) -> None:
        if not any(word in text for word in excused):
            complaints.append(text)

    def open_tab(where: str = "", **more: Any) -> Page:
        context = chromium.new_context(**{"locale": "en-US", "viewport": WIDE, **more})
        contexts.append(context)
        page = context.new_page()
        page.set_default_timeout(LIMIT_MS)
        page.on("pageerror", lambda error: complain(f"raised: {error}"))
        page.on("console", lambda line: complain(line.text) if line.type == "error" else None)
        page.on("request", lambda request: complain_of(request.url))
        page.goto(f"{url}/{where}")
        return page

    def complain_of(asked: str) -> None:
        if not asked.startswith((url, "blob:", "data:")):
            complain(f"asked outside: {asked}")

    yield open_tab
    for context in contexts:
        context.close()
    assert not complaints


def until(page: Page, condition: str) -> None:
    """The library's own way of waiting makes code of a text, which the page's policy forbids."""
    end_s = time.monotonic() + LIMIT_MS / 1e3
    while not page.evaluate(condition):
        assert time.monotonic() < end_s, condition
        time.sleep(0.03)


def pace(site: Server, **fields: object) -> None:
    httpx.post(f"{site.url}/firsthand/engine/pace", json=fields, timeout=20).raise_for_status()


@contextmanager
def slowed(site: Server) -> Iterator[None]:
    """Nothing ends while a test looks at it."""
    pace(site, delay_ms=50)
    try:
        yield
    finally:
        pace(site)


def say(page: Page, text: str) -> None:
    """Type a message and send it."""
    box = page.get_by_role("textbox", name="Your message")
    box.fill(text)
    box.press("Enter")


def answered(page: Page, count: int = 1) -> None:
    """Until so many answers have come to their end."""
    page.locator(".message[data-role=assistant] .figures").nth(count - 1).wait_for()


def short(page: Page, num_tokens: int = 8) -> None:
    """Answers of so many tokens."""
    page.locator("details.sampling > summary").click()
    page.get_by_label("Longest answer").fill(str(num_tokens))
    page.locator("details.sampling > summary").click()
