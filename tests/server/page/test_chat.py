"""The chat, as somebody uses it: by keyboard, with an input method, against hostile text.

Owns: proof of `chat.js`, `messages.js`, `markdown.js`. Read next: `conftest.py`.
"""

from __future__ import annotations

import json
import re
from typing import Any

import pytest

from firsthand.request import Finish, FinishReason
from tests.server.fakes import Script
from tests.server.guarded import KEY, guarded
from tests.server.page.conftest import Open, Page, answered, opening, say, short, slowed, until
from tests.server.processes import Server

pytestmark = pytest.mark.process  # a browser

FREED = "(state) => state.models[0].load.num_open + state.models[0].load.num_used_blocks === 0)"
HOSTILE = (
    "<img src=x onerror=\"document.title='broken'\"> <script>document.title='broken'</script> "
    "[click](javascript:document.title='broken') [out](https://evil.example/) **bold**\n\n"
    "```html\n<b>code</b>\n```\n"
)


def test_an_answer_comes_by_keyboard_alone(open_page: Open) -> None:
    page = open_page()
    short(page)
    page.get_by_role("textbox", name="Your message").focus()
    page.keyboard.type("first line")
    page.keyboard.press("Shift+Enter")
    page.keyboard.type("second line")
    page.keyboard.press("Enter")
    answered(page)
    assert page.locator(".message[data-role=user] .body").inner_text() == "first line\nsecond line"
    figures = page.locator(".figures").inner_text()
    for name in ("TTFT", "queue", "cached", "tokens", "end", "seed", "request"):
        assert re.search(rf"\b{name}\b", figures, re.IGNORECASE), figures
    page.keyboard.press("Tab")  # out of the box, to what can be done
    page.get_by_role("button", name="Answer again").focus()
    page.keyboard.press("Enter")
    page.get_by_text("2 of 2").wait_for()
    page.get_by_role("button", name="The branch before").focus()
    page.keyboard.press("Enter")
    page.get_by_text("1 of 2").wait_for()


def test_enter_while_composing_sends_nothing(open_page: Open) -> None:
    page = open_page(locale="zh-CN")
    box = page.get_by_role("textbox", name="您的消息")
    box.focus()
    typing = page.context.new_cdp_session(page)
    typing.send(
        "Input.imeSetComposition", {"text": "nihao", "selectionStart": 5, "selectionEnd": 5}
    )
    key = {"key": "Enter", "code": "Enter", "windowsVirtualKeyCode": 13}
    typing.send("Input.dispatchKeyEvent", {"type": "rawKeyDown", **key})
    assert page.locator(".message").count() == 0
    typing.send("Input.insertText", {"text": "你好"})
    key["windowsVirtualKeyCode"] = 229  # an input method's own key, whatever it says otherwise
    typing.send("Input.dispatchKeyEvent", {"type": "rawKeyDown", **key})
    assert page.locator(".message").count() == 0
    assert box.input_value() == "你好"
    box.press("Enter")
    page.locator(".message[data-role=user]").wait_for()
    answered(page)


def test_stop_frees_the_blocks_at_once(open_page: Open, site: Server) -> None:
    page = open_page()
    with slowed(site):
        say(page, "go on for long")
        page.locator(".message[data-role=assistant] .body p").first.wait_for()
        page.keyboard.press("Escape")
        answered(page)
    assert "stopped" in page.locator(".figures").inner_text()
    until(page, "fetch('firsthand/engine/state').then((r) => r.json()).then(" + FREED)


def test_a_page_that_is_loaded_again_finds_what_there_was(open_page: Open, site: Server) -> None:
    page = open_page()
    with slowed(site):
        say(page, "a question to keep")
        until(page, "(localStorage['firsthand.conversations'] ?? '').includes('to keep')")
        page.reload()
    page.locator("summary", has_text="History").click()
    page.get_by_role("button", name="a question to keep").click()
    page.locator(".message[data-role=user]", has_text="a question to keep").wait_for()


def test_a_changed_question_is_a_branch(open_page: Open) -> None:
    page = open_page()
    short(page)
    say(page, "one")
    answered(page)
    page.get_by_role("button", name="Edit").click()
    page.locator("form.edit textarea").fill("two")
    page.locator("form.edit").get_by_role("button", name="Send").click()
    answered(page)
    assert page.locator(".message[data-role=user] .body").inner_text() == "two"
    kept = json.loads(page.evaluate("localStorage['firsthand.conversations']"))
    assert [one["parent"] for one in kept[0]["messages"]] == [None, "0", None, "2"]


def test_a_wrong_field_is_named_and_nothing_is_sent(open_page: Open) -> None:
    page = open_page()
    page.locator("details.sampling > summary").click()
    page.get_by_text("JSON and tools").click()
    page.get_by_label("JSON schema of the answer").fill("{no json")
    say(page, "hello")
    assert "JSON schema" in page.locator(".sampling .fault").inner_text()
    assert page.locator(".message").count() == 0


def test_a_schema_and_a_seed_reach_the_model(open_page: Open) -> None:
    page = open_page()
    short(page, 40)
    page.locator("details.sampling > summary").click()
    page.get_by_label("Seed").fill("7")
    page.get_by_text("JSON and tools").click()
    page.get_by_label("JSON schema of the answer").fill('{"enum": ["yes"]}')
    say(page, "hello")
    answered(page)
    assert page.locator(".message[data-role=assistant] .body").inner_text() == '"yes"'
    assert "7" in page.locator(".figure", has_text="seed").inner_text()


@pytest.fixture
def hostile_page(chromium: Any) -> Any:
    ended = Finish(FinishReason.END_TOKEN, 256)
    with (
        guarded(script=Script((HOSTILE[:40], HOSTILE[40:]), ended)) as server,
        opening(chromium, f"http://127.0.0.1:{server.port}", excused=("401",)) as open_tab,
    ):
        yield open_tab()


def enter_key(page: Page, key: str) -> None:
    page.get_by_role("dialog").get_by_label("Key").fill(key)
    page.get_by_role("button", name="Use this key").click()


def test_what_a_model_says_is_text_and_a_key_is_asked_for(hostile_page: Page) -> None:
    """The page loads without a key, asks for it, and says when it is wrong."""
    page = hostile_page
    page.get_by_role("dialog").wait_for()
    enter_key(page, "wrong-key-0123456789")
    page.get_by_text("The key was not taken").wait_for()
    enter_key(page, KEY)
    page.get_by_role("dialog").wait_for(state="hidden")
    page.get_by_role("heading", name="Talk with micro").wait_for()
    say(page, "<b>bold?</b>")
    answered(page)
    body = page.locator(".message[data-role=assistant] .body")
    assert "<img src=x" in body.inner_text() and "<script>" in body.inner_text()
    assert body.locator("img, script, b").count() == 0
    assert body.locator("strong").inner_text() == "bold"
    assert body.locator(".code code").inner_text() == "<b>code</b>"
    assert body.locator("a").evaluate_all("(all) => all.map((one) => [one.href, one.rel])") == [
        ["https://evil.example/", "noopener noreferrer"]
    ]
    assert page.locator(".message[data-role=user] .body").inner_text() == "<b>bold?</b>"
    assert page.title() == "Chat · Firsthand"
    kept = page.evaluate("[JSON.stringify(localStorage), document.cookie, location.href].join()")
    assert KEY not in kept


def test_the_policy_holds_against_the_page_itself(chromium: Any, site: Server) -> None:
    url, words = site.url, ("TrustedHTML", "TrustedScript", "Content Security Policy")
    with opening(chromium, url, excused=words) as open_tab:
        hold(open_tab())


def hold(page: Page) -> None:
    tries = {
        "markup": "document.body.innerHTML = '<b>x</b>'",
        "code": "new Function('return 1')()",
        "timer": "setTimeout('1')",
    }
    for what, program in tries.items():
        # Later, as the page itself would: what a debugger runs at once is excused.
        attempt = f"try {{ {program}; done(false) }} catch {{ done(true) }}"
        assert page.evaluate(f"new Promise((done) => setTimeout(() => {{ {attempt} }}))"), what
    policy = page.evaluate("fetch('').then((r) => r.headers.get('content-security-policy'))")
    assert "default-src 'none'" in policy and "unsafe" not in policy
