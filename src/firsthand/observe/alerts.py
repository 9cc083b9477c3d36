"""The alert rules: what is wrong when, and how bad.

Owns: each rule's expression, tier, text and handbook entry; the form of Prometheus' rule file.
May not know: who is told (`routing.py`), the limits' values (`alert_settings.py`).
Read next: `alert_cases.py`, the series that fire each rule and those that do not.
Seen in: `firsthand lab crying-wolf`.

P0 wakes somebody, P1 sends a message, P2 is recorded. A ratio sums both sides over the same labels
and is no number without traffic, so it is silent then. Probes and scrapes are no traffic.
"""

from __future__ import annotations

from collections.abc import Iterator
from typing import Any

from firsthand.observe.alert_settings import AlertSettings
from firsthand.observe.probes import PROBES
from firsthand.observe.promql import duration, quantile, series
from firsthand.values import dataclass

GROUP = "firsthand"


@dataclass(frozen=True, slots=True)
class Rule:
    """One alert. `for_s` 0: at once. `entry` is its page in the handbook."""

    name: str
    tier: str
    expression: str
    for_s: float
    entry: str
    summary: str
    summary_zh: str

    def form(self, handbook: str) -> dict[str, Any]:
        """As Prometheus' rule file has it."""
        return {
            "alert": self.name,
            "expr": self.expression,
            "for": duration(self.for_s),
            "labels": {"severity": self.tier},
            "annotations": self.annotations(handbook),
        }

    def annotations(self, handbook: str) -> dict[str, str]:
        return {
            "summary": self.summary,
            "summary_zh": self.summary_zh,
            "description": f"firsthand doctor {self.entry} ranks what may be behind it",
            "runbook_url": f"{handbook}/{self.entry}.md",
        }


def rules(settings: AlertSettings) -> list[Rule]:
    return [*_p0(settings), *_p1(settings), *_p2(settings)]


def rule_file(settings: AlertSettings) -> dict[str, Any]:
    """Prometheus' rule file, to be written as YAML."""
    forms = [rule.form(settings.handbook) for rule in rules(settings)]
    return {"groups": [{"name": GROUP, "rules": forms}]}


def error_ratio(settings: AlertSettings) -> str:
    """Answers of 5xx among all, by job."""
    window = duration(settings.error_window)
    job, name = settings.job, "firsthand_requests"
    bad = series(name, job=job, endpoint=f"!~{PROBES}", status="=~5..")
    whole = series(name, job=job, endpoint=f"!~{PROBES}")
    return f"sum by (job) (rate({bad}[{window}])) / (sum by (job) (rate({whole}[{window}])) > 0)"


def errors_high(s: AlertSettings) -> str:
    """What wakes somebody: so many, among enough. Fewer requests are a message at most; a server
    that answers nobody is seen by its checks."""
    whole = series("firsthand_requests", job=s.job, endpoint=f"!~{PROBES}")
    num = f"sum by (job) (increase({whole}[{duration(s.error_window)}]))"
    return f"{error_ratio(s)} > {s.error_ratio:g} and {num} >= {s.error_requests:g}"


def leaking(s: AlertSettings) -> str:
    """Memory will be full in a while, and one of our processes has grown in each of the last three
    windows. A start, or a model that is loaded, is over within one and touches two at most."""
    window = duration(s.leak_window)
    used = series("firsthand_memory_used_ratio", job=s.job)
    grows = " or ".join(
        "("
        + " and ".join(
            f"deriv({one}[{window}]{offset}) * {s.leak_window:g} > {s.leak_ratio:g} * {one}"
            for offset in ("", f" offset {window}", f" offset {duration(2 * s.leak_window)}")
        )
        + ")"
        for one in (
            series("process_resident_memory_bytes", job=s.job),
            series("firsthand_engine_resident_bytes", job=s.job),
        )
    )
    future = f"predict_linear({used}[{window}], {s.leak_ahead:g}) > {s.memory_used_ratio:g}"
    return f"{future} and on (job, instance) ({grows})"


def _p0(s: AlertSettings) -> Iterator[Rule]:
    yield Rule(
        "FirsthandServiceDown",
        "P0",
        f'up{{job="{s.job}"}} == 0 or absent(up{{job="{s.job}"}})',
        s.down_for,
        "FH-001",
        "The server does not answer",
        "服务没有应答",
    )
    checks = series("firsthand_check_ok", job=s.job, check="!~not_draining")
    yield Rule(
        "FirsthandNotReady",
        "P0",
        f"min by (job, instance) ({checks}) == 0",
        s.not_ready_for,
        "FH-002",
        "The server answers, but takes no requests",
        "服务有应答，但不接受请求",
    )
    yield Rule(
        "FirsthandSelfCheckWrong",
        "P0",
        f"{series('firsthand_selfcheck_ok', job=s.job)} == 0",
        s.selfcheck_for,
        "FH-003",
        "The model gives wrong answers: its golden tokens differ",
        "模型给出错误的结果：自检 token 不一致",
    )
    yield Rule(
        "FirsthandErrorRatioHigh",
        "P0",
        errors_high(s),
        s.error_for,
        "FH-004",
        f"Over {s.error_ratio:.3g} of the answers are errors of the server",
        f"服务端错误的比例超过 {s.error_ratio:.3g}",
    )
    ttft = quantile(0.99, "firsthand_ttft_seconds", s.latency_window, job=s.job)
    yield Rule(
        "FirsthandFirstTokenSlow",
        "P0",
        f"{ttft} > {s.ttft_p99:g}",
        s.latency_for,
        "FH-005",
        f"One first token in a hundred takes over {s.ttft_p99:g} s",
        f"首 token 延迟的 P99 超过 {s.ttft_p99:g} 秒",
    )
    name, phase = "firsthand_request_phase_seconds", "total"
    whole = quantile(0.99, name, s.latency_window, job=s.job, phase=phase)
    yield Rule(
        "FirsthandAnswersSlow",
        "P0",
        f"{whole} > {s.latency_p99:g}",
        s.latency_for,
        "FH-005",
        f"One answer in a hundred takes over {s.latency_p99:g} s",
        f"请求延迟的 P99 超过 {s.latency_p99:g} 秒",
    )


def _p1(s: AlertSettings) -> Iterator[Rule]:
    yield Rule(
        "FirsthandErrorRatioRaised",
        "P1",
        f"{error_ratio(s)} > {s.error_ratio_low:g} unless ({errors_high(s)})",
        s.error_for,
        "FH-004",
        f"Over {s.error_ratio_low:.3g} of the answers are errors of the server",
        f"服务端错误的比例超过 {s.error_ratio_low:.3g}",
    )
    yield from _load(s)
    yield from _memory(s)
    yield from _engine(s)
    yield from _disk(s)
    returned = series("firsthand_canary_returns", job=s.job)
    yield Rule(
        "FirsthandCanaryReturned",
        "P1",
        f"increase({returned}[{duration(s.canary_window)}]) > 0",
        0,
        "FH-016",
        "A canary was taken back: it was worse than the release that is served",
        "金丝雀版本表现不如现行版本，已被自动撤回",
    )


def _load(s: AlertSettings) -> Iterator[Rule]:
    name, window = "firsthand_request_phase_seconds", duration(s.latency_window)
    queue = quantile(0.95, name, s.latency_window, job=s.job, phase="queue")
    yield Rule(
        "FirsthandQueueSlow",
        "P1",
        f"{queue} > {s.queue_p95:g}",
        s.queue_for,
        "FH-006",
        f"One request in twenty waits over {s.queue_p95:g} s before it begins",
        f"排队时间的 P95 超过 {s.queue_p95:g} 秒",
    )
    refused = f"sum by (job) (rate({series('firsthand_refused', job=s.job)}[{window}]))"
    admitted = f"sum by (job) (rate({series('firsthand_admitted', job=s.job)}[{window}]))"
    yield Rule(
        "FirsthandRefusing",
        "P1",
        f"{refused} / ({refused} + {admitted} > 0) > {s.refused_ratio:g}",
        s.refused_for,
        "FH-007",
        f"Over {s.refused_ratio:.3g} of the requests are refused at the door",
        f"被拒绝的请求比例超过 {s.refused_ratio:.3g}",
    )
    yield Rule(
        "FirsthandShedding",
        "P1",
        f"{series('firsthand_degradation_level', job=s.job)} >= {s.degradation_level:g}",
        s.degradation_for,
        "FH-007",
        "The server refuses optional work to keep up",
        "服务因过载而拒绝可选的工作",
    )


def _memory(s: AlertSettings) -> Iterator[Rule]:
    window = duration(s.latency_window)
    used = series("firsthand_kv_blocks_used_ratio", job=s.job)
    evicted = f"rate({series('firsthand_preemptions', job=s.job, reason='memory')}[{window}])"
    waiting = series("firsthand_requests_waiting", job=s.job)
    yield Rule(
        "FirsthandCacheFull",
        "P1",
        f"{used} > {s.kv_used_ratio:g} and on (job, instance, model)"
        f" ({evicted} > 0 or sum by (job, instance, model) ({waiting}) > 0)",
        s.kv_for,
        "FH-008",
        "The KV cache is full: sequences wait for room, or are put back and computed again",
        "KV 缓存已满：序列在等待空间，或被换出并重新计算",
    )
    yield Rule(
        "FirsthandMemoryHigh",
        "P1",
        f"{series('firsthand_memory_used_ratio', job=s.job)} > {s.memory_used_ratio:g}",
        s.memory_for,
        "FH-009",
        f"Over {s.memory_used_ratio:.3g} of the machine's memory is used",
        f"机器内存使用率超过 {s.memory_used_ratio:.3g}",
    )
    yield Rule(
        "FirsthandMemoryGrows",
        "P1",
        leaking(s),
        0,
        "FH-009",
        "A process of ours grows without end, and will fill the machine's memory",
        "我们的进程占用的内存持续增长，将耗尽机器内存",
    )
    taken = series("firsthand_gpu_memory_used_bytes", job=s.job)
    whole = series("firsthand_gpu_memory_bytes", job=s.job)
    yield Rule(
        "FirsthandGpuMemoryHigh",
        "P1",
        f"{taken} / {whole} > {s.gpu_memory_ratio:g}",
        s.gpu_memory_for,
        "FH-009",
        f"Over {s.gpu_memory_ratio:.3g} of a GPU's memory is used",
        f"显存使用率超过 {s.gpu_memory_ratio:.3g}",
    )
    if s.gpu_utilization:
        busy = series("firsthand_gpu_utilization_ratio", job=s.job)
        yield Rule(
            "FirsthandGpuBusy",
            "P1",
            f"{busy} > {s.gpu_utilization_ratio:g}",
            s.gpu_utilization_for,
            "FH-006",
            f"A GPU computes over {s.gpu_utilization_ratio:.3g} of the time",
            f"GPU 利用率超过 {s.gpu_utilization_ratio:.3g}",
        )


def _engine(s: AlertSettings) -> Iterator[Rule]:
    age = series("firsthand_last_step_age_seconds", job=s.job)
    # The engine's own count is of its last step: of what came since, it knows nothing.
    waits = series("firsthand_admitted_open", job=s.job)
    yield Rule(
        "FirsthandEngineStalled",
        "P1",
        f"{age} > {s.step_age:g} and on (job, instance, model) {waits} > 0",
        s.step_age_for,
        "FH-010",
        f"The engine has made no step for {s.step_age:g} s, although requests are open",
        f"有未完成的请求，但引擎已 {s.step_age:g} 秒没有推进",
    )
    restarts = series("firsthand_engine_restarts", job=s.job)
    yield Rule(
        "FirsthandEngineRestarted",
        "P1",
        f"increase({restarts}[{duration(s.restart_window)}]) > 0",
        0,
        "FH-011",
        "An engine died or hung, and was replaced",
        "引擎崩溃或挂起，已被替换",
    )
    errors = series("firsthand_step_errors", job=s.job)
    yield Rule(
        "FirsthandStepErrors",
        "P1",
        f"increase({errors}[{duration(s.step_error_window)}]) > 0",
        0,
        "FH-012",
        "Steps of the engine fail",
        "引擎的计算步骤失败",
    )


def _disk(s: AlertSettings) -> Iterator[Rule]:
    yield Rule(
        "FirsthandDiskFull",
        "P1",
        f"{series('firsthand_disk_used_ratio', job=s.job)} > {s.disk_used_ratio:g}",
        s.disk_for,
        "FH-014",
        f"Over {s.disk_used_ratio:.3g} of the disk is used",
        f"磁盘使用率超过 {s.disk_used_ratio:.3g}",
    )
    lost = series("firsthand_log_lines_lost", job=s.job)
    yield Rule(
        "FirsthandLogLost",
        "P1",
        f"increase({lost}[{duration(s.lost_window)}]) > 0",
        0,
        "FH-014",
        "Lines of the log cannot be written",
        "日志无法写入",
    )


def _p2(s: AlertSettings) -> Iterator[Rule]:
    name, window = "firsthand_request_phase_seconds", duration(s.slow_window)
    every = series(name, "_count", job=s.job, phase="total")
    quick = series(name, "_bucket", job=s.job, phase="total", le=str(float(s.slow_request)))
    yield Rule(
        "FirsthandSlowRequest",
        "P2",
        f"sum by (job, model) (increase({every}[{window}]))"
        f" - sum by (job, model) (increase({quick}[{window}])) > 0.1",
        0,
        "FH-005",
        f"A request took over {s.slow_request:g} s",
        f"有请求耗时超过 {s.slow_request:g} 秒",
    )
    window = duration(s.log_window)
    found = [series("firsthand_log_events", job=s.job, level="error")]
    if s.log_events:
        words = "=~" + "|".join(s.log_events)
        found.append(series("firsthand_log_events", job=s.job, event=words))
    either = " or ".join(f"increase({one}[{window}])" for one in found)
    yield Rule(
        "FirsthandLogEvent",
        "P2",
        f"sum by (job, event) ({either}) > 0",
        0,
        "FH-013",
        "An error, or an event that is watched for, stands in the log",
        "日志中出现错误或受关注的事件",
    )
    cut = series("firsthand_connections_cut", job=s.job, reason="stalled")
    yield Rule(
        "FirsthandClientsStalled",
        "P2",
        f"increase({cut}[{duration(s.stalled_window)}]) > 0",
        0,
        "FH-015",
        "Clients read too slowly, and were cut off",
        "客户端读取太慢，连接已被切断",
    )
    yield Rule(
        "FirsthandDrillOld",
        "P2",
        f"{series('firsthand_release_drill_age_seconds', job=s.job)} > {s.drill_age:g}",
        0,
        "FH-016",
        f"The way back to the last release was not tried for {s.drill_age / 86400:.3g} days",
        f"已有 {s.drill_age / 86400:.3g} 天没有演练过版本回滚",
    )
