"""Who can use the page: both languages, a screen reader, a phone, dark rooms, quiet motion.

Owns: proof of texts, names and roles.
Read next: `conftest.py`.
"""

from __future__ import annotations

import re

import pytest

from tests.server.page.conftest import Open, answered, say, short

pytestmark = pytest.mark.process  # a browser

VIEWS = ("chat", "engine", "playground", "requests", "health", "models")


def test_both_languages_have_the_same_values_in_their_words(open_page: Open) -> None:
    page = open_page()
    words = page.evaluate("import('./page/words.js').then((found) => found.default)")
    for key, texts in words.items():
        english, chinese = (set(re.findall(r"{\w+}", text)) for text in texts)
        assert english == chinese and all(texts), key


@pytest.mark.parametrize(
    ("locale", "heading", "other"), [("zh-CN", "引擎", "EN"), ("en-GB", "Engine", "中文")]
)
def test_the_language_follows_the_browser_and_can_be_switched(
    open_page: Open, locale: str, heading: str, other: str
) -> None:
    page = open_page("#/engine", locale=locale)
    page.get_by_role("heading", name=heading, exact=True, level=1).wait_for()
    page.get_by_role("button", name=other).click()
    switched = "Engine" if heading == "引擎" else "引擎"
    page.get_by_role("heading", name=switched, exact=True, level=1).wait_for()
    assert page.locator("html").get_attribute("lang") == ("en" if other == "EN" else "zh")
    page.reload()  # it is remembered
    page.get_by_role("heading", name=switched, exact=True, level=1).wait_for()


@pytest.mark.parametrize("locale", ["en-US", "zh-CN"])
def test_every_view_has_its_words(open_page: Open, locale: str) -> None:
    page = open_page(locale=locale)
    for view in VIEWS:
        page.goto(f"{page.url.partition('#')[0]}#/{view}")
        page.locator("main h1").first.wait_for()
        unknown = page.evaluate("""async () => {
          const { default: words } = await import("./page/words.js");
          const named = ["t", "tlabel", "ttitle", "tplaceholder"];
          const keys = (one) => named.map((name) => one.dataset?.[name]);
          const all = [...document.querySelectorAll("*")].flatMap(keys);
          return all.filter((key) => key && !(key in words));
        }""")
        assert unknown == [], view


@pytest.mark.slow
@pytest.mark.parametrize("scheme", ["light", "dark"])
def test_axe_finds_nothing(open_page: Open, scheme: str) -> None:
    axe = pytest.importorskip("axe_playwright_python.sync_playwright").Axe()
    page = open_page(color_scheme=scheme, reduced_motion="reduce")
    told: list[object] = []
    short(page)
    say(page, "hello")
    answered(page)
    for view in VIEWS:
        page.goto(f"{page.url.partition('#')[0]}#/{view}")
        page.locator("main h1").first.wait_for()
        found = axe.run(page).response["violations"]
        told += [(view, one["id"], [x["html"][:200] for x in one["nodes"]]) for one in found]
    assert told == []


def test_a_screen_reader_hears_what_things_are(open_page: Open) -> None:
    page = open_page()
    short(page)
    say(page, "hello")
    answered(page)
    tree = page.locator("body").aria_snapshot()
    for part in (
        'navigation "Views"', 'textbox "Your message"', 'log "Conversation"', 'button "Send"',
        'button "Answer again"', 'link "Engine"', 'heading "The engine now"', 'img "Timeline',
        'group "Language"', 'complementary "The engine now"',
    ):  # fmt: skip
        assert part in tree, tree
    unnamed = page.locator("button, a, input, textarea, select, canvas").evaluate_all(
        """(all) => {
          const named = (one) => one.ariaLabel || one.textContent.trim() || one.labels?.length;
          return all.filter((one) => one.checkVisibility() && !named(one)).map((x) => x.outerHTML);
        }"""
    )
    assert unnamed == []


@pytest.mark.parametrize("view", VIEWS)
def test_a_phone_scrolls_down_only(open_page: Open, view: str) -> None:
    page = open_page(f"#/{view}", viewport={"width": 375, "height": 720})
    page.locator("main h1").first.wait_for()
    assert page.evaluate("document.documentElement.scrollWidth") <= 375


def test_quiet_motion_draws_only_what_is_new(open_page: Open) -> None:
    page = open_page("#/engine", reduced_motion="reduce")
    page.locator("main h1").wait_for()
    moving = page.evaluate("document.getAnimations().length")
    assert moving == 0


def test_chinese_has_glyphs(open_page: Open) -> None:
    """A font without them draws the same box for every character."""
    page = open_page(locale="zh-CN")
    drawn = page.evaluate("""() => [..."引擎对"].map((one) => {
      const canvas = new OffscreenCanvas(40, 40);
      const context = canvas.getContext("2d");
      context.font = `30px ${getComputedStyle(document.body).fontFamily}`;
      context.fillText(one, 2, 32);
      return context.getImageData(0, 0, 40, 40).data.join();
    })""")
    assert len(set(drawn)) == 3
