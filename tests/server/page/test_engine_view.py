"""The live engine in a browser: lanes, blocks, steps, the playground, the pace of teaching mode.

Owns: proof of `feed.js` and of what draws it. Read next: `conftest.py`.
"""

from __future__ import annotations

import threading
import time
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import Any

import httpx
import pytest

from firsthand.observe.received import AlertRecord, Notice
from tests.server.page.conftest import Open, answered, opening, say, short, until
from tests.server.processes import Server, started

pytestmark = pytest.mark.process  # a browser

NUM_QUEUED = 500
FRAMES_PER_S = 30

# News as the server would send it: so many that wait, and one that runs.
FLOOD = """async (count) => {
  const feed = await import("./page/feed.js");
  const row = (at) => ({
    request_id: `request-${at}`, name: `caller-${at}`, index: 0, class_index: at % 3, level: at % 3,
    arrival_s: 100 - at / 100, num_prompt_tokens: 20, num_known: 20, num_computed: 0,
    num_preemptions: 0, blocks: at ? [] : [[0, 2]],
  });
  const rows = Array.from({ length: count + 1 }, (_, at) => row(at));
  const model = {
    num_blocks: 64, block_size: 16, max_sequences: 1, context_length: 512,
    own_context_length: 512, adapters: [],
  };
  const load = {
    num_open: count + 1, num_running: 1, num_waiting: count, num_used_blocks: 2, num_blocks: 64,
    waiting_by_class: [0, count, 0], running_by_class: [0, 1, 0], ended_per_s: 2,
    drawn_tokens_per_s: 5,
  };
  const [running, waiting] = [[rows[0]], rows.slice(1)];
  const picture = { at_s: 100, running, waiting, cached: [[2, 3]], shares: [4, 3, 1] };
  const step = {
    n: 1, at_s: 99, ms: [1, 1, 20, 1, 1], who: [["request-0", 20]], num_drawn: 1, began: [],
    served_by_class: [0, 20, 0],
  };
  const [state, pace] = [{ status: "ready", reason: "" }, { paused: false, delay_s: 0 }];
  const told = { name: "flood", state, model, load, pace, picture, steps: [step] };
  feed.take({ at_s: 100, models: [told] });
  feed.choose("flood");
}"""


def test_a_request_is_a_lane_with_its_blocks_and_its_steps(open_page: Open, site: Server) -> None:
    page = open_page()
    short(page, 40)
    say(page, "make a lane of this, please")
    answered(page)
    request_id = page.locator(".figure a").inner_text()
    page.get_by_role("link", name="Engine", exact=True).click()
    page.get_by_role("heading", name="Timeline").wait_for()
    page.locator("details.twin > summary").first.click()
    page.get_by_role("table", name="Timeline").get_by_text(request_id).wait_for()
    page.locator(".steps .legend b", has_text="%").first.wait_for()
    page.get_by_role("link", name="Chat", exact=True).click()
    page.locator(".figure a").click()
    page.get_by_role("heading", name="From arrival to end").wait_for()
    assert page.locator(".waterfall li").count() >= 2


def test_answers_alone_and_together_are_equal(open_page: Open) -> None:
    page = open_page("#/playground")
    page.get_by_label("How many").fill("4")
    page.get_by_label("Longest answer").fill("12")
    page.get_by_label("Give them the three classes in turn").check()
    page.get_by_role("button", name="Fire").click()
    page.locator(".verdict[data-ok=true]").wait_for()
    assert "All 4 answers are the same, bit for bit" in page.locator(".verdict").inner_text()
    assert page.locator(".mark[data-ok=true]").count() == 4


def test_the_comparison_sees_a_single_bit(open_page: Open) -> None:
    page = open_page("#/playground")
    found = page.evaluate("""async () => {
      const { firstDifference } = await import("./page/playground.js");
      const one = { ids: [1, 2], logprobs: [-0.5, -0.25] };
      return [one, { ids: [1, 2], logprobs: [-0.5, -0.25000000000000006] },
        { ids: [1, 3], logprobs: [-0.5, -0.25] }, { ids: [1], logprobs: [-0.5] }]
        .map((other) => firstDifference(one, other));
    }""")
    assert found == [None, 1, 1, 1]


def test_five_hundred_in_the_queue_are_drawn_and_explained(open_page: Open) -> None:
    page = open_page("#/engine")
    page.get_by_role("heading", name="Timeline").wait_for()
    page.evaluate(FLOOD, NUM_QUEUED)
    canvas = page.locator(".engine .lanes canvas")
    until(page, "document.querySelector('.engine .lanes canvas').ariaLabel.includes('500 wait')")
    assert canvas.get_attribute("aria-label") == (
        "Timeline: 500 wait, 1 run, 0 were evicted and wait again"
    )
    assert "all 1 places are taken; it is number 1" in page.locator(".waiting").inner_text()
    page.locator("details.twin > summary").nth(1).click()
    rows = page.get_by_role("table", name="Queue").locator("tbody tr")
    rows.first.wait_for()  # an open table is filled at the next piece of news
    assert rows.count() == 60
    assert "≈ 0.5 s" in rows.first.inner_text()
    assert "2 used" in page.locator(".blockmap .note").inner_text()


@pytest.mark.soak
def test_reach_five_hundred_queued_requests_are_drawn_at_thirty_frames(
    open_page: Open, site: Server
) -> None:
    page = open_page("#/engine")
    page.get_by_role("heading", name="Timeline").wait_for()
    with flood(site, NUM_QUEUED):
        until(page, "[...document.querySelectorAll('.tile b')].some((b) => b.textContent > 400)")
        rate = page.evaluate(FRAMES)
    print(f"{rate:.0f} frames a second")
    assert rate >= FRAMES_PER_S


# Frames a second, over three.
FRAMES = """async () => {
  const began = performance.now();
  let count = 0;
  while (performance.now() - began < 3000) {
    await new Promise(requestAnimationFrame);
    count += 1;
  }
  return count / 3;
}"""


@contextmanager
def flood(site: Server, count: int) -> Iterator[None]:
    """So many requests that wait for long, until the end of the block."""
    body: dict[str, object] = {"max_tokens": 15_000, "ignore_eos": True, "stream": True}
    body["prompt"] = [str(at) for at in range(100)]
    held: list[httpx.Response] = []
    with httpx.Client(timeout=60) as client:
        for _ in range(count // 100 + 1):
            request = client.build_request("POST", f"{site.url}/v1/completions", json=body)
            held.append(client.send(request, stream=True))
        try:
            yield
        finally:
            for answer in held:
                answer.close()


def test_a_held_engine_goes_step_by_step(open_page: Open, site: Server) -> None:
    page = open_page("#/engine")
    page.get_by_text("Teaching mode", exact=True).wait_for()
    page.get_by_role("button", name="Pause").click()
    page.get_by_role("button", name="Go on").wait_for()
    done = threading.Event()

    def ask() -> None:
        body = {"prompt": "ab", "max_tokens": 3, "ignore_eos": True}
        httpx.post(f"{site.url}/v1/completions", json=body, timeout=60)
        done.set()

    thread = threading.Thread(target=ask)
    thread.start()
    page.get_by_text("the engine is paused").wait_for()
    assert not done.is_set()
    for _ in range(3):
        page.get_by_role("button", name="One step").click()
        page.wait_for_timeout(150)
    assert done.wait(20)
    thread.join()
    page.get_by_role("button", name="Go on").click()
    page.get_by_role("button", name="Pause").wait_for()


def test_prefixes_that_are_shared_make_a_tree(open_page: Open) -> None:
    page = open_page()
    found = page.evaluate("""async () => {
      const { prefixTree, ownersOf } = await import("./page/blocks.js");
      const row = (request_id, blocks) => ({ request_id, blocks });
      const rows = [["a", [[0, 3], [7, 1]]], ["b", [[0, 3], [9, 2]]], ["c", [[20, 1]]]];
      const picture = { running: rows.map(([id, blocks]) => row(id, blocks)) };
      const ids = (node) => node.rows.map((one) => one.request_id).join();
      const told = (node) => [node.count, ids(node), node.below.map(told)];
      return [prefixTree(picture).map(told), ownersOf(picture).get(2).length];
    }""")
    assert found == [[[3, "a,b", [[1, "a", []], [2, "b", []]]], [1, "c", []]], 2]


def test_lanes_are_made_of_steps_and_pictures(open_page: Open) -> None:
    """Queued, read, written, evicted, ended: each piece with its time."""
    page = open_page()
    pieces = page.evaluate("""async () => {
      const { Model } = await import("./page/feed.js");
      const model = new Model("m");
      const step = (n, at_s, who, began = []) =>
        ({ n, at_s, ms: [0, 0, 100, 0, 0], who, began, served_by_class: [] });
      const began = (id, waited_s, resumed) =>
        ({ id, name: null, waited_s, num_cached_tokens: 0, resumed });
      const steps = [
        step(1, 10, [["a", 5]], [began("a", 2, false)]), step(2, 10.1, [["a", 1]]),
        step(3, 10.2, [["b", 4]], [began("b", 0, false)]),
        step(4, 12, [["a", 6]], [began("a", 4, true)]),
      ];
      model.take({ steps });
      model.take({ picture: { at_s: 13, running: [], waiting: [], cached: [], shares: [] } });
      const { pieces, ended_s, num_tokens } = model.lanes.get("a");
      const round = (at_s) => Math.round(at_s * 1000) / 1000;
      const told = pieces.map((one) => [one.kind, round(one.from_s), round(one.to_s)]);
      return [told, ended_s, num_tokens];
    }""")
    assert pieces == [
        [[0, 8, 10], [1, 10, 10.1], [2, 10.1, 10.2], [3, 10.2, 12], [1, 12, 12.1]],
        pytest.approx(12.1),
        1,
    ]


def test_alerts_of_every_tier_are_shown_with_what_to_do(open_page: Open, site: Server) -> None:
    now_s = time.time()
    notice = Notice(now_s, "record", "FirsthandSlowRequest", "P2", {}, "a", now_s - 9, None, "slow")
    record = AlertRecord(site.log.parent / "alerts.jsonl")
    record.add(notice)
    try:
        page = open_page("#/health", locale="zh-CN")
        alert = page.locator(".alerts li", has_text="FirsthandSlowRequest")
        alert.wait_for()
        assert "docs/handbook/" in alert.inner_text()
        assert page.locator("#firing").inner_text() == "1"
    finally:
        record.path.unlink()


def test_the_last_drill_and_canaries_are_shown_with_the_health(
    open_page: Open, site: Server
) -> None:
    for language, said in (("en-US", "nothing to return to"), ("zh-CN", "没有可回滚的版本")):
        page = open_page("#/health", locale=language)
        panel = page.locator("section[aria-labelledby=panel-releases]")
        panel.locator("li", has_text=said).wait_for()
    page = open_page("#/health")
    # Read in the same turn: the server's own news would draw over it.
    told = page.evaluate(
        """async () => {
          const { take } = await import("./page/feed.js");
          const one = { name: "micro@2", release: 2, share: 0.05, model: "micro" };
          const canaries = [{ ...one, new_answers: 12, new_errors: 1 }];
          take({ at_s: performance.now() / 1e3, releases: { drill_age_s: 7200, canaries } });
          return document.querySelector("section[aria-labelledby=panel-releases]").innerText;
        }"""
    )
    assert "2 h ago" in told
    assert "release 2 gets 5% of micro: 12 answers, 1 errors" in told


@pytest.mark.slow
def test_it_works_behind_a_path_of_a_proxy(
    chromium: Any, micro_folder: Path, tmp_path: Path
) -> None:
    flags = ("--threads", "1", "--root-path", "/ai")
    with started(tmp_path, micro_folder, *flags) as server:
        server.wait_ready()
        with opening(chromium, f"{server.url}/ai") as open_tab:
            page = open_tab()
            page.get_by_role("heading", name="Talk with micro").wait_for()
            say(page, "hello")
            answered(page)
