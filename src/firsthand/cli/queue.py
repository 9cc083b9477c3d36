"""The command that shows who waits for a running server: queue.

Owns: what is printed of it, and the sentence why each waits.
May not know: HTTP, how the order is made.
Read next: `../observe/queue_view.py`, whose words these are.
"""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any

from firsthand.cli.options import AsJson
from firsthand.cli.output import print_json, print_table, reported
from firsthand.cli.remote import DEFAULT_URL, ApiKey, Url, first_key
from firsthand.config import read_environment

HEADS = ("#", "REQUEST", "CLASS", "NOW", "WAITS", "STARTS IN", "PROMPT", "WHY")


def queue(url: Url = DEFAULT_URL, api_key: ApiKey = None, as_json: AsJson = False) -> None:
    """Show who waits for a running server, in which order, for how long yet, and why."""
    with reported(as_json):
        from firsthand.cli.client import client_of

        found = client_of(url, first_key(api_key)).own("/firsthand/queue")
        if as_json:
            print_json(found)
            return
        words = WORDS[read_environment().language]
        for model in found.get("models") or ():
            print(words["head"].format_map(model))
            if model["queue"]:
                print_table(HEADS, [_row(one, model, words) for one in model["queue"]])


def _row(one: Mapping[str, Any], model: Mapping[str, Any], words: Mapping[str, str]) -> list[str]:
    starts_s = one["starts_in_s"]
    return [
        str(one["position"]),
        one["id"] or one["engine_id"],
        words[one["class"]],
        words[one["level"]],
        f"{one['age_s']:.1f} s",
        "-" if starts_s is None else f"{starts_s:.1f} s",
        str(one["prompt_tokens"]),
        words[f"why_{one['why']}"].format(places=model["places"], free=model["free_blocks"]),
    ]


WORDS = {
    "en": {
        "head": "{name}: {running} of {places} run, {waiting} wait",
        "urgent": "urgent",
        "normal": "normal",
        "background": "background",
        "overdue": "overdue",
        "why_paused": "the engine is paused",
        "why_evicted": "it lost its blocks, and waits for room ({free} are free)",
        "why_full": "all {places} places are taken",
        "why_blocks": "it needs more blocks than the {free} that are free",
        "why_overdue": "it has waited longest, and is next",
        "why_next": "the next step takes it up",
    },
    "zh": {
        "head": "{name}：{running} / {places} 运行中，{waiting} 等待",
        "urgent": "紧急",
        "normal": "普通",
        "background": "后台",
        "overdue": "超期",
        "why_paused": "引擎已暂停",
        "why_evicted": "缓存块被收回，等待空位（空闲 {free} 块）",
        "why_full": "{places} 个位置已占满",
        "why_blocks": "所需缓存块多于空闲的 {free} 块",
        "why_overdue": "等待最久，下一个就是它",
        "why_next": "下一步就会处理",
    },
}
