"""Lab of alerts: rules that fire at once, beside ours, over a day of counts.

Owns: the day, the rules that cry wolf, when a condition has lasted.
May not know: Prometheus; the limits are those of our rules.
Read next: `observe/alerts.py`; `observe/review.py`.
"""

from __future__ import annotations

from random import Random

from firsthand.labs.charts import Lanes, Span
from firsthand.labs.lab import Evidence, Lab
from firsthand.labs.words import OURS, Words
from firsthand.labs.workbench import Workbench
from firsthand.observe.alert_settings import AlertSettings
from firsthand.observe.received import Answer
from firsthand.observe.review import DAY_S, Episode, review
from firsthand.values import dataclass

SCRAPE_S = 15.0
INCIDENT_S = (50_400.0, 51_300.0)  # a quarter of an hour in the afternoon
BURSTS_S = (32_400.0, 43_200.0, 61_200.0)  # 20 s each, over before anybody could look
NIGHT_UNTIL_S = 25_200.0


@dataclass(frozen=True, slots=True)
class Sample:
    at_s: float
    num_requests: int
    num_errors: int
    busy: float


def a_day() -> list[Sample]:
    """Counts since the beginning, one line for each scrape: a quiet night in which a request fails
    now and then, a busy day, three bursts, one incident."""
    source = Random(3)
    requests = errors = 0
    found = []
    for tick in range(int(DAY_S / SCRAPE_S)):
        at_s = tick * SCRAPE_S
        if at_s < NIGHT_UNTIL_S:
            come = int(source.random() < 0.05)
            fail = int(come and source.random() < 0.08)
        else:
            come = source.randrange(60, 90)
            broken = INCIDENT_S[0] <= at_s < INCIDENT_S[1]
            burst = any(begin <= at_s < begin + 20 for begin in BURSTS_S)
            fail = round(come * (0.35 if broken else 0.25 if burst else 0.002))
        requests, errors = requests + come, errors + fail
        found.append(Sample(at_s, requests, errors, 0.3 if at_s < NIGHT_UNTIL_S else 0.97))
    return found


def counts_at(day: list[Sample], at: int, window_s: float) -> tuple[int, int]:
    """Requests of the window, and errors among them."""
    now, before = day[at], day[max(0, at - round(window_s / SCRAPE_S))]
    return now.num_requests - before.num_requests, now.num_errors - before.num_errors


def episodes(alert: str, day: list[Sample], holds: list[bool], for_s: float) -> list[Episode]:
    """When a condition has held for so long, until it does not."""
    found: list[Episode] = []
    since_s: float | None = None
    for sample, is_bad in zip([*day, None], [*holds, False], strict=True):
        if sample is not None and is_bad:
            since_s = sample.at_s if since_s is None else since_s
            continue
        end_s = DAY_S if sample is None else sample.at_s
        if since_s is not None and end_s - since_s > for_s:
            found.append(Episode(alert, "P0", frozenset(), since_s + for_s, end_s))
        since_s = None
    return found


def crying_wolf(bench: Workbench) -> Evidence:
    day = a_day()
    s = AlertSettings()
    counts = [counts_at(day, at, s.error_window) for at in range(len(day))]
    over = [bad > s.error_ratio * whole for whole, bad in counts]
    enough = [whole >= s.error_requests for whole, _ in counts]
    high = [one and other for one, other in zip(over, enough, strict=True)]
    noisy = [
        *episodes("errors over 10 %, at once", day, over, 0.0),
        *episodes("device over 95 %", day, [one.busy > 0.95 for one in day], 0.0),
    ]
    ours = episodes("FirsthandErrorRatioHigh", day, high, s.error_for)
    ways = ((Words("fires at once, and when busy", "立即触发，忙也触发"), noisy), (OURS, ours))
    answers = [Answer(INCIDENT_S[0] + 300, one.alert, "mended") for one in ours[:1]]
    advice = {
        verdict.alert: verdict.advice
        for verdict in review([*noisy, *ours], answers, {}, 0.0, DAY_S)
    }
    return Evidence(
        measure=Words("calls in a day that were about nothing", "一天里无事而打的电话数"),
        fault_shows=float(len([one for one in noisy if not _is_true(one)])),
        ours_does_not=float(len([one for one in ours if not _is_true(one)])),
        limit=1.0,
        headings=(
            Words("rules", "规则"),
            Words("calls in a day", "一天的电话数"),
            Words("about nothing", "无事的"),
            Words("the incident seen after, s", "多少秒后发现事故"),
            Words("what `alerts review` advises", "`alerts review` 的建议"),
        ),
        rows=tuple(
            (
                what,
                len(found),
                sum(not _is_true(one) for one in found),
                min(one.began_s for one in found if _is_true(one)) - INCIDENT_S[0],
                "; ".join(sorted({advice[one.alert] for one in found if advice[one.alert]})),
            )
            for what, found in ways
        ),
        charts=(
            Lanes(
                Words("A day: # somebody is called", "一天：# 表示有人被叫醒"),
                Words("hours", "小时"),
                (
                    *((what, _hours(found)) for what, found in ways),
                    (
                        Words("the incident", "真正的事故"),
                        (Span(INCIDENT_S[0] / 3600, INCIDENT_S[1] / 3600, "!"),),
                    ),
                ),
                24.0,
            ),
        ),
    )


def _is_true(one: Episode) -> bool:
    return INCIDENT_S[0] <= one.began_s <= INCIDENT_S[1]


def _hours(found: list[Episode]) -> tuple[Span, ...]:
    return tuple(Span(one.began_s / 3600, (one.ended_s or DAY_S) / 3600, "#") for one in found)


LABS = (
    Lab(
        name="crying-wolf",
        title=Words("An alert that cries wolf", "狼来了的告警"),
        question=Words(
            "One real incident in a day. How often does the telephone ring?",
            "一天里只有一次真正的事故。电话会响几次？",
        ),
        run=crying_wolf,
        cause=Words(
            "A ratio of few requests jumps with each of them: one failure at night is 100 %. A "
            "burst is over before anybody is awake. And a busy device is a good device.",
            "请求很少时，比例随每一个跳动：夜里一次失败就是 100 %。突发错误在人醒来前就过去了。"
            "设备忙是好事。",
        ),
        cure=Words(
            "A ratio counts where there are enough requests, and must last before it wakes "
            "somebody; utilisation is on the board, not on the telephone; and "
            "once a month what rang is reviewed with what was done about it.",
            "请求足够多时比例才算数，而且要持续一段时间才叫人；利用率放在看板上，不打电话；"
            "每月回顾一次哪些响过、有没有人处理。",
        ),
        places=(
            "firsthand.observe.alerts.rules",
            "firsthand.observe.alert_settings.AlertSettings",
            "firsthand.observe.review.review",
        ),
        sources=("B §4.3",),
        seconds=1,
    ),
)
