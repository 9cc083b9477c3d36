"""The series that fire each alert, and those that must not: unit tests for `promtool test rules`.

Owns: the cases, made of the same limits as the rules; the form of promtool's test file.
May not know: how a rule finds out.
Read next: `alerts.py`.

Each alert has a case that fires and cases that stay silent: just below its limit, without traffic,
or with one scrape missed.
"""

from __future__ import annotations

import math
from collections.abc import Callable, Iterator
from dataclasses import fields
from typing import Any

from firsthand.observe.alert_settings import AlertSettings
from firsthand.observe.alerts import rules
from firsthand.observe.promql import duration
from firsthand.values import dataclass

RULE_FILE = "firsthand.rules.yml"
INSTANCE = "one:8000"
MODEL = "micro"


@dataclass(frozen=True, slots=True)
class Case:
    """After `series` for `last_s` seconds and a bit, the alert fires with these labels; None: it
    is silent."""

    name: str
    alert: str
    last_s: float
    series: dict[str, str]
    fires: dict[str, str] | None


def case_file(settings: AlertSettings) -> dict[str, Any]:
    """promtool's test file, to be written as YAML."""
    interval = duration(settings.scrape_interval)
    known = {rule.name: rule for rule in rules(settings)}
    tests = []
    for case in cases(settings):
        rule = known[case.alert]
        expected = []
        if case.fires is not None:
            labels = {"severity": rule.tier, **case.fires}
            annotations = rule.annotations(settings.handbook)
            expected = [{"exp_labels": labels, "exp_annotations": annotations}]
        at_s = case.last_s + 3 * settings.scrape_interval
        tests.append(
            {
                "name": f"{case.alert}: {case.name}",
                "interval": interval,
                "input_series": [
                    {"series": name, "values": values} for name, values in case.series.items()
                ],
                "alert_rule_test": [
                    {
                        "eval_time": duration(at_s),
                        "alertname": case.alert,
                        "exp_alerts": expected,
                    }
                ],
            }
        )
    return {"rule_files": [RULE_FILE], "evaluation_interval": interval, "tests": tests}


def cases(settings: AlertSettings) -> Iterator[Case]:
    made = _Cases(settings)
    for part in (
        made.state,
        made.errors,
        made.latency,
        made.load,
        made.memory,
        made.leaks,
        made.engine,
        made.disk,
    ):
        yield from part()
    yield from made.releases()
    yield from made.records()


@dataclass(frozen=True, slots=True)
class _Cases:
    s: AlertSettings

    def state(self) -> Iterator[Case]:
        s = self.s
        up, one = self._of("up"), {"job": s.job, "instance": INSTANCE}
        name = "FirsthandServiceDown"
        yield Case("down", name, s.down_for, {up: self._flat(0)}, one)
        yield Case("no target at all", name, s.down_for, {}, {"job": s.job})
        yield Case("one scrape missed", name, s.down_for, {up: f"1x3 _ {self._flat(1)}"}, None)
        last = math.ceil(s.down_for / s.scrape_interval)
        blink = f"1 0x{max(0, last - 2)} {self._flat(1)}"
        yield Case("shorter than its time", name, s.down_for, {up: blink}, None)
        well, drains = self._of("firsthand_check_ok", check="queue"), "not_draining"
        name = "FirsthandNotReady"
        yield Case("one check fails", name, s.not_ready_for, {well: self._flat(0)}, one)
        drain = {
            well: self._flat(1),
            self._of("firsthand_check_ok", check=drains): self._flat(0),
        }
        yield Case("it drains", name, s.not_ready_for, drain, None)
        right = self._of("firsthand_selfcheck_ok", model=MODEL)
        name, both = "FirsthandSelfCheckWrong", {**one, "model": MODEL}
        yield Case("wrong", name, s.selfcheck_for, {right: self._flat(0)}, both)
        yield Case("right", name, s.selfcheck_for, {right: self._flat(1)}, None)

    def errors(self) -> Iterator[Case]:
        s = self.s
        high, low, one = "FirsthandErrorRatioHigh", "FirsthandErrorRatioRaised", {"job": s.job}
        last_s = s.error_for + s.error_window
        middle = (s.error_ratio + s.error_ratio_low) / 2
        yield Case("above", high, last_s, self._errors(s.error_ratio * 1.1), one)
        yield Case("just below", high, last_s, self._errors(s.error_ratio * 0.9), None)
        yield Case("no traffic", high, last_s, self._errors(0.5, num=0), None)
        few = self._errors(1.0, num=0.9 * s.error_requests * s.scrape_interval / s.error_window)
        yield Case("few requests, all failing", high, last_s, few, None)
        yield Case("few requests, all failing", low, last_s, few, one)
        missed = self._errors(s.error_ratio * 1.1, ramp=self._gap)
        yield Case("above, one scrape missed", high, last_s, missed, one)
        masked = {**self._errors(s.error_ratio * 1.1), **self._probes()}
        yield Case("above, however many probes", high, last_s, masked, one)
        yield Case("between the tiers", low, last_s, self._errors(middle), one)
        yield Case("above both", low, last_s, self._errors(s.error_ratio * 1.1), None)
        yield Case("below both", low, last_s, self._errors(s.error_ratio_low * 0.9), None)
        yield Case("no traffic", low, last_s, self._errors(0.5, num=0), None)

    def latency(self) -> Iterator[Case]:
        s = self.s
        for alert, metric, phase, limit, for_s in (
            ("FirsthandFirstTokenSlow", "firsthand_ttft_seconds", "", s.ttft_p99, s.latency_for),
            ("FirsthandAnswersSlow", _PHASES, "total", s.latency_p99, s.latency_for),
            ("FirsthandQueueSlow", _PHASES, "queue", s.queue_p95, s.queue_for),
        ):
            last_s, one = for_s + s.latency_window, {"job": s.job}
            slow = self._spread(metric, phase, limit, slow=20)
            yield Case("a fifth is slow", alert, last_s, slow, one)
            quick = self._spread(metric, phase, limit, slow=0)
            yield Case("all are quick", alert, last_s, quick, None)
            idle = self._spread(metric, phase, limit, slow=20, num=0)
            yield Case("no traffic", alert, last_s, idle, None)

    def load(self) -> Iterator[Case]:
        s = self.s
        one, name = {"job": s.job}, "FirsthandRefusing"
        last_s = s.refused_for + s.latency_window
        refused = self._of("firsthand_refused_total", model=MODEL)
        admitted = self._of("firsthand_admitted_total", model=MODEL)
        for text, share, fires in (
            ("above", s.refused_ratio * 1.1, one),
            ("just below", s.refused_ratio * 0.9, None),
        ):
            both = {refused: self._ramp(1000 * share), admitted: self._ramp(1000 * (1 - share))}
            yield Case(text, name, last_s, both, fires)
        idle = {refused: self._ramp(0), admitted: self._ramp(0)}
        yield Case("no traffic", name, last_s, idle, None)
        level, name = self._of("firsthand_degradation_level", model=MODEL), "FirsthandShedding"
        at, both = s.degradation_level, {"job": s.job, "instance": INSTANCE, "model": MODEL}
        yield Case("at its level", name, s.degradation_for, {level: self._flat(at)}, both)
        yield Case("below", name, s.degradation_for, {level: self._flat(at - 1)}, None)

    def memory(self) -> Iterator[Case]:
        s = self.s
        where = {"job": s.job, "instance": INSTANCE}
        used = self._of("firsthand_kv_blocks_used_ratio", model=MODEL)
        evicted = self._of("firsthand_preemptions_total", model=MODEL, reason="memory")
        name, last_s = "FirsthandCacheFull", s.kv_for + s.latency_window
        full, both = self._flat((1 + s.kv_used_ratio) / 2), {**where, "model": MODEL}
        yield Case("full", name, last_s, {used: full, evicted: self._ramp(1)}, both)
        waits = self._of("firsthand_requests_waiting", model=MODEL, **{"class": "normal"})
        yield Case("full, and others wait", name, last_s, {used: full, waits: self._flat(2)}, both)
        yield Case("full, nobody hurt", name, last_s, {used: full, evicted: self._ramp(0)}, None)
        most = self._of("firsthand_memory_used_ratio")
        name, limit = "FirsthandMemoryHigh", s.memory_used_ratio
        above, below = self._flat((1 + limit) / 2), self._flat(limit * 0.99)
        yield Case("above", name, s.memory_for, {most: above}, where)
        yield Case("just below", name, s.memory_for, {most: below}, None)
        whole = self._of("firsthand_gpu_memory_bytes", gpu="0")
        taken = self._of("firsthand_gpu_memory_used_bytes", gpu="0")
        name, limit, both = "FirsthandGpuMemoryHigh", s.gpu_memory_ratio, {**where, "gpu": "0"}
        for text, share, fires in (("above", (1 + limit) / 2, both), ("below", limit * 0.99, None)):
            pair = {whole: self._flat(1e9), taken: self._flat(1e9 * share)}
            yield Case(text, name, s.gpu_memory_for, pair, fires)
        if s.gpu_utilization:
            busy = self._of("firsthand_gpu_utilization_ratio", gpu="0")
            limit, name = s.gpu_utilization_ratio, "FirsthandGpuBusy"
            above, below = self._flat((1 + limit) / 2), self._flat(limit * 0.99)
            yield Case("above", name, s.gpu_utilization_for, {busy: above}, both)
            yield Case("just below", name, s.gpu_utilization_for, {busy: below}, None)

    def leaks(self) -> Iterator[Case]:
        """Of a machine that is half full, and full in an eighth of the time that is looked ahead;
        a start fills it as fast, for as long as a window, of which it touches two."""
        s, name = self.s, "FirsthandMemoryGrows"
        num = math.ceil(s.leak_window / s.scrape_interval)  # scrapes in a window
        last_s, where = 3 * s.leak_window, {"job": s.job, "instance": INSTANCE}
        half = s.memory_used_ratio / 2
        step = 8 * half * s.scrape_interval / s.leak_ahead
        used = self._of("firsthand_memory_used_ratio")
        server = self._of("process_resident_memory_bytes")
        engine = self._of("firsthand_engine_resident_bytes", model=MODEL)
        fills, calm = f"{half:g}+{step:.12g}x{4 * num}", f"{half:g}x{4 * num}"
        grows = f"1e9+{6e9 * s.leak_ratio / num:.12g}x{4 * num}"
        flat = f"1e9x{4 * num}"
        yield Case("the server", name, last_s, {used: fills, server: grows, engine: flat}, where)
        yield Case("the engine", name, last_s, {used: fills, server: flat, engine: grows}, where)
        yield Case("there is room", name, last_s, {used: calm, server: grows}, None)
        yield Case("somebody else", name, last_s, {used: fills, server: flat}, None)
        start = f"1e9x{3 * num // 2} 1e9+{1e9 / num:.12g}x{num} 2e9x{num}"
        yield Case("a start", name, last_s, {used: fills, server: start}, None)

    def engine(self) -> Iterator[Case]:
        s = self.s
        both = {"job": s.job, "instance": INSTANCE, "model": MODEL}
        age = self._of("firsthand_last_step_age_seconds", model=MODEL)
        waits = self._of("firsthand_admitted_open", model=MODEL)
        name, old = "FirsthandEngineStalled", self._flat(2 * s.step_age)
        busy = {age: old, waits: self._flat(1)}
        yield Case("no step, and requests", name, s.step_age_for, busy, both)
        yield Case("idle", name, s.step_age_for, {age: old, waits: self._flat(0)}, None)
        for name, metric, window_s in (
            ("FirsthandEngineRestarted", "firsthand_engine_restarts_total", s.restart_window),
            ("FirsthandStepErrors", "firsthand_step_errors_total", s.step_error_window),
        ):
            counted = self._of(metric, model=MODEL)
            yield Case("one more", name, 0, {counted: self._once()}, both)
            yield Case("none", name, 0, {counted: self._flat(3)}, None)
            yield Case("long ago", name, 2 * window_s, {counted: f"0 {self._flat(1)}"}, None)

    def disk(self) -> Iterator[Case]:
        s, one = self.s, {"job": self.s.job, "instance": INSTANCE}
        used, limit = self._of("firsthand_disk_used_ratio"), s.disk_used_ratio
        name, above, below = "FirsthandDiskFull", (1 + limit) / 2, limit * 0.99
        yield Case("above", name, s.disk_for, {used: self._flat(above)}, one)
        yield Case("just below", name, s.disk_for, {used: self._flat(below)}, None)
        cut = {"reason": "stalled"}
        for name, metric, labels in (
            ("FirsthandLogLost", "firsthand_log_lines_lost_total", {}),
            ("FirsthandClientsStalled", "firsthand_connections_cut_total", cut),
        ):
            counted = self._of(metric, **labels)
            yield Case("one more", name, 0, {counted: self._once()}, {**one, **labels})
            yield Case("none", name, 0, {counted: self._flat(3)}, None)

    def releases(self) -> Iterator[Case]:
        s, one = self.s, {"job": self.s.job, "instance": INSTANCE}
        labels = {"model": MODEL, "reason": "errors"}
        counted = self._of("firsthand_canary_returns_total", **labels)
        name, both = "FirsthandCanaryReturned", {**one, **labels}
        yield Case("one more", name, 0, {counted: self._once()}, both)
        yield Case("none", name, 0, {counted: self._flat(3)}, None)
        age, name = self._of("firsthand_release_drill_age_seconds"), "FirsthandDrillOld"
        yield Case("above", name, 0, {age: self._flat(2 * s.drill_age)}, one)
        yield Case("just below", name, 0, {age: self._flat(s.drill_age / 2)}, None)

    def records(self) -> Iterator[Case]:
        s = self.s
        every = self._of(_PHASES + "_count", model=MODEL, phase="total")
        bound = str(float(s.slow_request))
        quick = self._of(_PHASES + "_bucket", model=MODEL, phase="total", le=bound)
        name, one = "FirsthandSlowRequest", {"job": s.job, "model": MODEL}
        yield Case("one", name, 0, {every: self._once(), quick: "0x999"}, one)
        yield Case("all quick", name, 0, {every: self._ramp(7), quick: self._ramp(7)}, None)
        name = "FirsthandLogEvent"
        fault = self._of("firsthand_log_events_total", event="other", level="error")
        yield Case("an error", name, 0, {fault: self._once()}, {"job": s.job, "event": "other"})
        for event in s.log_events[:1]:
            word = self._of("firsthand_log_events_total", event=event, level="warning")
            watched = {"job": s.job, "event": event}
            yield Case("a watched event", name, 0, {word: self._once()}, watched)
        other = self._of("firsthand_log_events_total", event="degradation", level="warning")
        if "degradation" not in s.log_events:
            yield Case("another warning", name, 0, {other: self._ramp(1)}, None)

    def _of(self, name: str, **labels: str) -> str:
        labels = {"job": self.s.job, "instance": INSTANCE, **labels}
        inner = ",".join(f'{label}="{value}"' for label, value in labels.items())
        return f"{name}{{{inner}}}"

    def _flat(self, value: float) -> str:
        return f"{value:g}x{self._num}"

    def _ramp(self, step: float) -> str:
        return f"0+{step:g}x{self._num}"

    def _gap(self, step: float) -> str:
        """As it rises, one scrape is missed."""
        return f"0+{step:g}x4 _ {6 * step:g}+{step:g}x{self._num}"

    def _once(self) -> str:
        """It happens in the third interval, and never again."""
        return f"0 0 1 1x{self._num}"

    @property
    def _num(self) -> int:
        """Scrapes in the longest case, and some."""
        names = [one.name for one in fields(self.s)]
        longest_s: float = max(
            getattr(self.s, name)
            for name in names
            if name.endswith(("_for", "_window")) and name != "leak_window"
        )
        return math.ceil(2 * longest_s / self.s.scrape_interval) + 10

    def _errors(
        self, share: float, num: float | None = None, ramp: Callable[[float], str] | None = None
    ) -> dict[str, str]:
        """So many answers per scrape (enough, where nothing is said), a share of them errors."""
        num = max(1000, self.s.error_requests) if num is None else num
        name, path = "firsthand_requests_total", "/v1/chat/completions"
        ramp = ramp or self._ramp
        return {
            self._of(name, endpoint=path, status="500"): ramp(num * share),
            self._of(name, endpoint=path, status="200"): ramp(num * (1 - share)),
        }

    def _probes(self) -> dict[str, str]:
        name = "firsthand_requests_total"
        return {
            self._of(name, endpoint="/readyz", status="503"): self._ramp(9000),
            self._of(name, endpoint="/metrics", status="200"): self._ramp(9000),
        }

    def _spread(
        self, metric: str, phase: str, limit: float, slow: float, num: float = 100
    ) -> dict[str, str]:
        """So many observations per scrape, the slow ones in the bucket above the limit."""
        more = {"model": MODEL, **({"phase": phase} if phase else {})}
        quick = num - (slow if num else 0)
        rows = (("0.001", quick), (f"{limit:g}", quick), (f"{2 * limit:g}", num), ("+Inf", num))
        name = f"{metric}_bucket"
        return {self._of(name, **more, le=le): self._ramp(value) for le, value in rows}


_PHASES = "firsthand_request_phase_seconds"
