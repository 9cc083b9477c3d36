"""How each cause is recognised, by numbers.

Owns: the tests, one per cause, and the order of magnitude at which each speaks.
May not know: words for a person (`cause_texts.py`), where numbers are from.
Read next: `diagnosis.py`, which ranks what these find.

A test gives a weight, 0 … 1, and the numbers that it rests on; None: nothing of it is to be seen.
What came to pass weighs more than what is high, and that more than what has risen.
"""

from __future__ import annotations

from collections.abc import Callable

from firsthand.observe.evidence import Answers, Evidence
from firsthand.observe.probes import is_probe
from firsthand.values import dataclass

TIMES = 3.0  # so much more than usual is a jump
LEAST_JUMP_S = 0.02
LEAST_GROWTH_BYTES = 32 << 20
LEAST_GROWTH = 0.1  # of what it was
STALL_S = 5.0
HOUR_SHARE, LEAST_ERRORS = 0.5, 10  # of all errors, in one hour of the day
PHASES = "firsthand_request_phase_seconds"
MIB = 1 << 20
ENGINE_BYTES = "firsthand_engine_resident_bytes"
BEFORE = 0.3  # the weight of what is over


@dataclass(frozen=True, slots=True)
class Seen:
    """What speaks for a cause."""

    weight: float
    facts: tuple[str, ...]


Test = Callable[[Evidence], Seen | None]


def _process_gone(e: Evidence) -> Seen | None:
    if e.answers is not Answers.REFUSED:
        return None
    return Seen(1.0, ("its address refuses connections", *_up(e)))


def _process_hangs(e: Evidence) -> Seen | None:
    if e.answers is Answers.SILENT:
        return Seen(1.0, ("/livez: connected, no answer in time", *_up(e)))
    if e.answers is Answers.UNASKED and _up(e):
        return Seen(0.9, _up(e))
    return None


def _up(e: Evidence) -> tuple[str, ...]:
    return ("up 0",) if 0 in e.values("up") else ()


def _check_fails(e: Evidence) -> Seen | None:
    failed = [f"{name}: {detail}" for name, detail in e.checks if name != "not_draining"]
    if not failed and e.now is not None:
        found = e.now.of("firsthand_check_ok")
        failed = [f'firsthand_check_ok{{check="{one["check"]}"}} 0' for one, ok in found if not ok]
        failed = [text for text in failed if "not_draining" not in text]
    return Seen(0.7, tuple(failed)) if failed else None


def _weights_wrong(e: Evidence) -> Seen | None:
    if 0 not in e.values("firsthand_selfcheck_ok"):
        return _happened("firsthand_selfcheck_wrong", 0.95)(e)
    wrong = e.most("firsthand_selfcheck_wrong_total")
    return Seen(1.0, ("firsthand_selfcheck_ok 0", f"firsthand_selfcheck_wrong_total {wrong:g}"))


def _errors_by_hour(e: Evidence) -> Seen | None:
    log = e.log
    if log is None or log.num_failed < LEAST_ERRORS or log.failed_days < 2:
        return None
    hour, most = next(iter(log.failed_at.items()))
    if most < HOUR_SHARE * log.num_failed:
        return None
    fact = f"{most} of {log.num_failed} failed requests at {hour:02d}:00–{hour:02d}:59 UTC"
    return Seen(0.9, (f"{fact}, on {log.failed_days} of {log.days} days ({log.source})",))


def answers_by(e: Evidence, digit: str) -> tuple[float, float, list[str]]:
    """Replies of a class of statuses lately, all replies, and the former in words."""
    bad, whole, texts = 0.0, 0.0, []
    for endpoint, number in e.by("firsthand_requests", "endpoint").items():
        if is_probe(endpoint):
            continue
        whole += number
        for status, failed in e.by("firsthand_requests", "status", endpoint=endpoint).items():
            if status.startswith(digit):
                bad += failed
                labels = {"endpoint": endpoint, "status": status}
                reasons = e.by("firsthand_requests", "finish_reason", **labels)
                why = "/".join(name for name in reasons if name)
                texts.append(f"{failed:.0f} × {status} {why}".rstrip())
    return bad, whole, texts


def _errors(e: Evidence) -> Seen | None:
    bad, whole, texts = answers_by(e, "5")
    if not whole or bad / whole <= e.limits.error_ratio_low:
        return None
    return Seen(0.5, (f"{bad / whole:.0%} of {whole:.0f} replies are 5xx", *texts))


def _jump(e: Evidence, name: str, unit: float, word: str, **labels: str) -> str | None:
    """The words for a mean that is far above its usual, where it is."""
    mean, usual = e.mean(name, **labels), e.usual_mean(name, **labels)
    if mean is None or usual is None or mean < TIMES * usual:
        return None
    shown = "".join(f'{{{label}="{value}"}}' for label, value in labels.items())
    return f"{name}{shown} mean {usual * unit:.3g} → {mean * unit:.3g} {word}"


def _slow_steps(e: Evidence) -> Seen | None:
    mean = e.mean("firsthand_step_seconds", phase="run")
    fact = _jump(e, "firsthand_step_seconds", 1e3, "ms", phase="run")
    if mean is None or mean < LEAST_JUMP_S:
        return None
    if fact is not None:
        return Seen(0.9, (fact,))
    if mean < 1.0:
        return None
    return Seen(0.6, (f'firsthand_step_seconds{{phase="run"}} mean {mean * 1e3:.0f} ms',))


def _way_slow(e: Evidence) -> Seen | None:
    """The queue's phase is long, and no sequence waits in the engine."""
    fact, mean = _jump(e, PHASES, 1e3, "ms", phase="queue"), e.mean(PHASES, phase="queue")
    waiting = sum(e.values("firsthand_requests_waiting"))
    if fact is None or mean is None or mean < 0.25 or waiting or _queue_is_used(e):
        return None
    return Seen(0.9, (fact, "firsthand_requests_waiting 0"))


def _queue_is_used(e: Evidence) -> bool:
    """At either end of the window somebody had no place among those that run."""
    ends = [one for one in (e.then, e.now) if one is not None]
    return any(one.total("firsthand_admission_waiting") > 0 for one in ends)


def _prompts_longer(e: Evidence) -> Seen | None:
    fact = _jump(e, "firsthand_request_prompt_tokens", 1, "tokens")
    return None if fact is None else Seen(0.5, (fact,))


def _answers_longer(e: Evidence) -> Seen | None:
    fact = _jump(e, "firsthand_request_generation_tokens", 1, "tokens")
    return None if fact is None else Seen(0.5, (fact,))


def _latency(e: Evidence) -> Seen | None:
    facts = []
    for name, limit, labels in (
        ("firsthand_ttft_seconds", e.limits.ttft_p99, {}),
        (PHASES, e.limits.latency_p99, {"phase": "total"}),
    ):
        high = e.quantile(0.99, name, **labels)
        if high is not None and high > limit:
            facts.append(f"{name} P99 at most {high:g} s, over {limit:g} s")
        jump = _jump(e, name, 1e3, "ms", **labels)
        if jump is not None and (e.mean(name, **labels) or 0) > 10 * LEAST_JUMP_S:
            facts.append(jump)
    slow = e.grown(f"{PHASES}_count", phase="total") - e.grown(
        f"{PHASES}_bucket", phase="total", le=str(float(e.limits.slow_request))
    )
    if slow > 0:
        facts.append(f"{slow:.0f} requests took over {e.limits.slow_request:g} s")
    return Seen(0.4, tuple(facts)) if facts else None


def _queue_long(e: Evidence) -> Seen | None:
    high = e.quantile(0.95, PHASES, phase="queue")
    waiting = sum(e.values("firsthand_requests_waiting"))
    places = e.most("firsthand_admission_waiting")
    if not (waiting or places) or (high or 0) <= min(1.0, e.limits.queue_p95):
        return None
    facts = (f"firsthand_requests_waiting {waiting:g}", f"firsthand_admission_waiting {places:g}")
    return Seen(0.8, (f'{PHASES}{{phase="queue"}} P95 at most {high:g} s', *facts))


def _door_shut(e: Evidence) -> Seen | None:
    refused, admitted = e.grown("firsthand_refused"), e.grown("firsthand_admitted")
    level = e.most("firsthand_degradation_level")
    facts = []
    if refused > e.limits.refused_ratio * (refused + admitted):
        facts.append(f"firsthand_refused_total +{refused:.0f}, of {refused + admitted:.0f}")
    if level >= e.limits.degradation_level:
        facts.append(f"firsthand_degradation_level {level:g}")
    weight = 0.8 if _queue_is_used(e) else 0.4  # else it was shut for another reason
    return Seen(weight, tuple(facts)) if facts else None


def _cache_full(e: Evidence) -> Seen | None:
    used = e.most("firsthand_kv_blocks_used_ratio")
    evicted = e.grown("firsthand_preemptions")
    waiting = sum(e.values("firsthand_requests_waiting"))
    if used <= e.limits.kv_used_ratio and not evicted:
        return None
    facts = (
        f"firsthand_kv_blocks_used_ratio {used:.2f}",
        f"firsthand_preemptions_total +{evicted:.0f}",
        f"firsthand_requests_waiting {waiting:g}",
    )
    return Seen(0.9 if evicted or waiting else 0.5, facts)


def _memory_high(e: Evidence) -> Seen | None:
    used, limit = e.most("firsthand_memory_used_ratio"), e.limits.memory_used_ratio
    if used <= limit:
        return None
    return Seen(0.9, (f"firsthand_memory_used_ratio {used:.3f}, over {limit:g}",))


def _grows(name: str) -> Test:
    def test(e: Evidence) -> Seen | None:
        gained, is_now = e.gained(name), e.most(name)
        planned = e.most("firsthand_model_memory_bytes")
        if name == ENGINE_BYTES and is_now <= planned:  # the cache's pages come with use
            return None
        if gained < max(LEAST_GROWTH_BYTES, LEAST_GROWTH * (is_now - gained)):
            return None
        fact = f"{name} {(is_now - gained) / MIB:.0f} → {is_now / MIB:.0f} MiB"
        return Seen(0.8, (f"{fact} in {e.window_s:.0f} s",))

    return test


def _engine_stalls(e: Evidence) -> Seen | None:
    waits = e.most("firsthand_admitted_open")
    age = e.most("firsthand_last_step_age_seconds")
    if not waits or age <= min(STALL_S, e.limits.step_age):
        return None
    return Seen(
        1.0, (f"firsthand_last_step_age_seconds {age:.1f}", f"firsthand_admitted_open {waits:g}")
    )


def _counted(name: str, weight: float, **labels: str) -> Test:
    def test(e: Evidence) -> Seen | None:
        grown = e.grown(name, **labels)
        shown = "".join(f'{{{label}="{value}"}}' for label, value in labels.items())
        return Seen(weight, (f"{name}_total{shown} +{grown:.0f}",)) if grown > 0 else None

    return test


def _happened(name: str, weight: float) -> Test:
    """Lately; or before, which is told and weighs little: it may have been a minute ago."""

    def test(e: Evidence) -> Seen | None:
        if e.grown(name) > 0:
            return Seen(weight, (f"{name}_total +{e.grown(name):.0f}",))
        before = e.usual(name)
        return Seen(BEFORE, (f"{name}_total {before:.0f} before, none lately",)) if before else None

    return test


def _log_lines(e: Evidence) -> Seen | None:
    by_event = e.by("firsthand_log_events", "event", level="error")
    watched = e.by("firsthand_log_events", "event", level="warning")
    by_event |= {event: watched[event] for event in e.limits.log_events if event in watched}
    if not by_event:
        return None
    return Seen(0.3, tuple(f"{event}: {count:.0f} lines" for event, count in by_event.items()))


def _disk_full(e: Evidence) -> Seen | None:
    used, limit = e.most("firsthand_disk_used_ratio"), e.limits.disk_used_ratio
    if used <= limit:
        return None
    return Seen(0.9, (f"firsthand_disk_used_ratio {used:.3f}, over {limit:g}",))


def _drill_old(e: Evidence) -> Seen | None:
    age_s, limit_s = e.most("firsthand_release_drill_age_seconds"), e.limits.drill_age
    if age_s <= limit_s:
        return None
    return Seen(0.2, (f"firsthand_release_drill_age_seconds {age_s:.0f}, over {limit_s:g}",))


TESTS: dict[str, Test] = {
    "process-gone": _process_gone,
    "process-hangs": _process_hangs,
    "check-fails": _check_fails,
    "weights-wrong": _weights_wrong,
    "errors-by-hour": _errors_by_hour,
    "errors": _errors,
    "slow-steps": _slow_steps,
    "way-slow": _way_slow,
    "prompts-longer": _prompts_longer,
    "answers-longer": _answers_longer,
    "latency": _latency,
    "queue-long": _queue_long,
    "door-shut": _door_shut,
    "cache-full": _cache_full,
    "memory-high": _memory_high,
    "engine-grows": _grows(ENGINE_BYTES),
    "server-grows": _grows("process_resident_memory_bytes"),
    "engine-stalls": _engine_stalls,
    "engine-lost": _happened("firsthand_engine_restarts", 0.95),
    "steps-fail": _counted("firsthand_step_errors", 0.95),
    "log-lines": _log_lines,
    "disk-full": _disk_full,
    "log-lost": _counted("firsthand_log_lines_lost", 0.9),
    "clients-stall": _counted("firsthand_connections_cut", 0.8, reason="stalled"),
    "canary-worse": _happened("firsthand_canary_returns", 0.9),
    "drill-old": _drill_old,
}
