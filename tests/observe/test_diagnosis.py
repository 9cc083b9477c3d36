"""The doctor over numbers that are made: each cause alone, two at once, and what is unknown.

Owns: these series. May not know: servers. Read next: `test_handbook_live.py`, real faults.
"""

from __future__ import annotations

import json
import threading
from collections.abc import Iterator, Mapping
from contextlib import contextmanager
from datetime import UTC, datetime
from http.server import BaseHTTPRequestHandler, HTTPServer
from pathlib import Path

import pytest
from typer.testing import CliRunner

from firsthand.cli.main import build_app
from firsthand.config import read_environment
from firsthand.errors import InvalidRequest
from firsthand.observe.alert_settings import AlertSettings
from firsthand.observe.cause_texts import TEXTS
from firsthand.observe.causes import TESTS
from firsthand.observe.diagnosis import SYMPTOMS, UNKNOWN, Finding, diagnose
from firsthand.observe.evidence import Answers, Evidence
from firsthand.observe.recorded import sum_up
from firsthand.observe.request_log import LogFacts, read_log
from firsthand.observe.snapshot import Snapshot, read_page

LIMITS = AlertSettings()
PHASES = "firsthand_request_phase_seconds"
Series = dict[str, tuple[float, float, float]]  # at base, then, now
OK = {'endpoint="/v1/completions",status="200",finish_reason="stop"': (0.0, 100.0, 200.0)}


def spread(name: str, labels: str, usual: float, lately: float, num: float = 100) -> Series:
    """A histogram of so many values before, and as many lately."""
    both = f"{{{labels}}}" if labels else ""
    comma = f"{labels}," if labels else ""
    found: Series = {
        f"{name}_count{both}": (0, num, 2 * num),
        f"{name}_sum{both}": (0, num * usual, num * (usual + lately)),
    }
    for bound in (0.001, 0.01, 0.1, 1.0, 10.0, 80.0, 160.0):
        at = (0, num * (usual <= bound), num * (usual <= bound) + num * (lately <= bound))
        found[f'{name}_bucket{{{comma}le="{bound}"}}'] = at
    found[f'{name}_bucket{{{comma}le="+Inf"}}'] = (0, num, 2 * num)
    return found


def evidence(series: Series, log: LogFacts | None = None, **more: object) -> Evidence:
    moments = []
    for at in range(3):
        page = "".join(f"{name} {values[at]}\n" for name, values in series.items())
        moments.append(read_page(page, 10.0 * at))
    base, then, now = moments
    given = {"now": now, "then": then, "base": base, "log": log, **more}
    return Evidence(LIMITS, "test", **given)  # type: ignore[arg-type]


def requests(rows: Mapping[str, tuple[float, float, float]]) -> Series:
    return {f"firsthand_requests_total{{{labels}}}": values for labels, values in rows.items()}


FAILED = {'endpoint="/v1/completions",status="500",finish_reason="failed"': (0.0, 0.0, 50.0)}
RESTARTS: Series = {'firsthand_engine_restarts_total{model="m"}': (0, 0, 1)}
SLOW = spread("firsthand_step_seconds", 'phase="run"', 0.005, 0.5)
GROWS: Series = {'firsthand_engine_resident_bytes{model="m"}': (1e8, 1e8, 4e8)}
SEEN: dict[str, Evidence] = {
    "process-gone": Evidence(LIMITS, "test", answers=Answers.REFUSED),
    "process-hangs": Evidence(LIMITS, "test", answers=Answers.SILENT),
    "check-fails": evidence({'firsthand_check_ok{check="queue"}': (1, 1, 0)}),
    "weights-wrong": evidence({'firsthand_selfcheck_ok{model="m"}': (1, 1, 0)}),
    "errors-by-hour": evidence(
        {}, LogFacts("log", 1000, 40, {3: 30, 12: 10}, failed_days=4, days=5)
    ),
    "errors": evidence(requests({**OK, **FAILED})),
    "slow-steps": evidence(SLOW),
    "way-slow": evidence(spread(PHASES, 'phase="queue"', 0.01, 1.9)),
    "prompts-longer": evidence(spread("firsthand_request_prompt_tokens", "", 10, 90)),
    "answers-longer": evidence(spread("firsthand_request_generation_tokens", "", 10, 90)),
    "latency": evidence(spread("firsthand_ttft_seconds", "", 0.1, 20)),
    "queue-long": evidence(
        spread(PHASES, 'phase="queue"', 0.01, 9)
        | {'firsthand_requests_waiting{class="normal"}': (0, 0, 7)}
    ),
    "door-shut": evidence(
        {
            'firsthand_refused_total{model="m"}': (0, 0, 20),
            'firsthand_admitted_total{model="m"}': (0, 0, 80),
        }
    ),
    "cache-full": evidence(
        {
            'firsthand_kv_blocks_used_ratio{model="m"}': (0, 0.5, 0.99),
            'firsthand_preemptions_total{model="m",reason="memory"}': (0, 0, 4),
        }
    ),
    "memory-high": evidence({"firsthand_memory_used_ratio": (0.5, 0.9, 0.97)}),
    "engine-grows": evidence(GROWS),
    "server-grows": evidence({"process_resident_memory_bytes": (1e8, 1e8, 4e8)}),
    "engine-stalls": evidence(
        {
            'firsthand_last_step_age_seconds{model="m"}': (0, 0, 40),
            'firsthand_admitted_open{model="m"}': (1, 1, 1),
        }
    ),
    "engine-lost": evidence(RESTARTS),
    "steps-fail": evidence({'firsthand_step_errors_total{model="m"}': (0, 0, 3)}),
    "log-lines": evidence(
        {'firsthand_log_events_total{event="model_failed",level="error"}': (0, 0, 1)}
    ),
    "disk-full": evidence({"firsthand_disk_used_ratio": (0.9, 0.9, 0.99)}),
    "log-lost": evidence({"firsthand_log_lines_lost_total": (0, 0, 9)}),
    "clients-stall": evidence(
        {'firsthand_connections_cut_total{reason="stalled"}': (0, 0, 2)},
    ),
    "canary-worse": evidence(
        {'firsthand_canary_returns_total{model="m",reason="errors"}': (0, 0, 1)}
    ),
    "drill-old": evidence({"firsthand_release_drill_age_seconds": (1e7, 1e7, 1e7)}),
}


def causes(found: list[Finding]) -> list[str]:
    return [one.cause for one in found if one.weight]


@pytest.mark.parametrize("cause", TESTS)
def test_a_cause_is_seen_by_its_numbers(cause: str) -> None:
    """S116; with evidence, a remedy, and the entry that has the rest."""
    found = {one.cause: one for one in diagnose(SEEN[cause])}
    assert cause in found
    one = found[cause]
    assert one.entry == TEXTS[cause].entry
    assert one.evidence
    assert one.remedy
    assert one.command


def test_nothing_is_seen_of_a_server_that_is_well() -> None:
    quiet = spread("firsthand_step_seconds", 'phase="run"', 0.005, 0.005)
    well: Series = {
        'firsthand_check_ok{check="queue"}': (1, 1, 1),
        'firsthand_check_ok{check="not_draining"}': (1, 1, 0),
        'firsthand_selfcheck_ok{model="m"}': (1, 1, 1),
        'firsthand_engine_restarts_total{model="m"}': (3, 3, 3),
        'firsthand_kv_blocks_used_ratio{model="m"}': (0, 0.9, 0.9),
        "firsthand_memory_used_ratio": (0.5, 0.5, 0.5),
    }
    assert diagnose(evidence(quiet | well | requests(OK), answers=Answers.YES)) == []


def test_an_engine_that_was_lost_before_is_told_and_weighs_little() -> None:
    before: Series = {'firsthand_engine_restarts_total{model="m"}': (0, 1, 1)}
    (one,) = diagnose(evidence(before))
    assert (one.cause, one.weight) == ("engine-lost", 0.3)
    assert one.evidence == ("firsthand_engine_restarts_total 1 before, none lately",)


def test_a_self_check_that_is_right_again_was_the_reason_and_no_full_queue() -> None:
    shut: Series = {
        'firsthand_selfcheck_ok{model="m"}': (1, 1, 1),
        'firsthand_selfcheck_wrong_total{model="m"}': (0, 0, 1),
        'firsthand_refused_total{model="m"}': (0, 0, 68),
        'firsthand_log_events_total{event="selfcheck_wrong",level="error"}': (0, 0, 1),
    }
    assert causes(diagnose(evidence(shut)))[0] == "weights-wrong"
    assert UNKNOWN not in causes(diagnose(evidence(shut)))


def test_memory_below_what_is_planned_is_no_leak() -> None:
    planned: Series = {'firsthand_model_memory_bytes{model="m"}': (5e8, 5e8, 5e8)}
    assert diagnose(evidence(GROWS | planned)) == []


def test_what_is_no_traffic_hides_no_errors() -> None:
    """However often somebody looks at the page."""
    paths = ("/page/app.js", "/firsthand/engine/state", "/metrics", "other")
    looks = {f'endpoint="{one}",status="200",finish_reason=""': (0.0, 0.0, 5e3) for one in paths}
    assert "errors" in causes(diagnose(evidence(requests({**FAILED, **looks}))))


def test_two_faults_at_once_are_both_named() -> None:
    found = diagnose(evidence(SLOW | GROWS | RESTARTS))
    assert causes(found) == ["engine-lost", "slow-steps", "engine-grows"]


def test_what_explains_a_symptom_comes_before_it() -> None:
    found = causes(diagnose(evidence(requests({**OK, **FAILED}) | RESTARTS)))
    assert found == ["engine-lost", "errors"]


def test_a_symptom_without_a_cause_is_unknown_with_its_numbers() -> None:
    found = diagnose(SEEN["errors"])
    assert causes(found) == [UNKNOWN, "errors"]
    assert found[0].entry is None
    assert any("50 × 500 failed" in fact for fact in found[0].evidence)


def test_trouble_without_an_entry_is_unknown() -> None:
    refused = {'endpoint="/v1/completions",status="404",finish_reason=""': (0.0, 0.0, 90.0)}
    (one,) = diagnose(evidence(requests({**OK, **refused})))
    assert (one.entry, one.cause) == (None, UNKNOWN)
    assert "4xx" in one.evidence[0]


def rows(*given: tuple[str, float, str, int], at: float = 1000.0) -> list[dict[str, object]]:
    """As the recorder's list has them: id, ms in a stage, the stage, status."""
    arrived = datetime.fromtimestamp(at, UTC).isoformat()
    return [
        {
            "id": name,
            "arrived": arrived,
            "total_ms": ms,
            "status": status,
            "state": "done" if status < 500 else "failed",
            "stages": [{"name": "receive", "ms": 0.1}, {"name": stage, "ms": ms}],
        }
        for name, ms, stage, status in given
    ]


QUEUED = sum_up(rows(("a", 900, "queue", 200), ("b", 300, "queue", 200)), 0)
LONG_QUEUE = spread(PHASES, 'phase="queue"', 0.01, 9) | {"firsthand_admission_waiting": (0, 0, 7)}


def test_the_recorder_says_which_cause_the_requests_felt() -> None:
    """S116: of two that the metrics show, the one in whose stage the time went comes first."""
    both = SLOW | LONG_QUEUE
    assert causes(diagnose(evidence(both))) == ["slow-steps", "queue-long"]
    found = diagnose(evidence(both, requests=QUEUED))
    assert causes(found) == ["queue-long", "slow-steps"]
    assert "the time of 2 requests is queue 100%; the slowest is a, 900 ms" in found[0].evidence[-1]


def test_what_is_unknown_has_the_requests_as_evidence() -> None:
    slow = evidence(spread("firsthand_ttft_seconds", "", 0.1, 20), requests=QUEUED)
    found = diagnose(slow)
    assert causes(found) == [UNKNOWN, "latency"]
    assert "slowest is a" in found[0].evidence[-1]


def test_requests_that_failed_without_a_cause_are_unknown_with_their_ids() -> None:
    failed = sum_up(rows(*((f"r{n}", 5, "prefill", 500) for n in range(9))), 0)
    (one,) = diagnose(evidence(requests(OK), requests=failed))
    assert (one.entry, one.cause) == (None, UNKNOWN)
    assert one.evidence == ("recorder: 9 × failed: r0, r1, r2",)
    assert causes(diagnose(evidence(RESTARTS, requests=failed))) == ["engine-lost"]


def test_a_server_that_is_gone_leaves_the_records_of_those_that_failed() -> None:
    failed = sum_up(rows(("last", 5, "prefill", 503)), 0)
    (one,) = diagnose(Evidence(LIMITS, "test", answers=Answers.REFUSED, requests=failed))
    assert "recorder: 1 × failed: last" in one.evidence


def test_rows_that_are_old_or_none_of_ours_are_passed_over() -> None:
    odd = [7, {}, {"id": 1}, {"id": "a", "stages": [{"name": "x", "ms": 1}]}, None]
    assert sum_up([*odd, *rows(("a", 5, "queue", 200), at=10)], 1000) is None
    assert sum_up([*odd, *rows(("a", 995_000, "queue", 200), at=10)], 1000) is not None


def test_a_counter_that_began_anew_has_grown_by_what_it_has() -> None:
    again: Series = {'firsthand_step_errors_total{model="m"}': (0, 900, 2)}
    (one,) = diagnose(evidence(again))
    assert one.evidence == ("firsthand_step_errors_total +2",)


@pytest.mark.parametrize("about", [*SYMPTOMS, "FH-005", "fh-001"])
def test_what_was_asked_about_has_all_its_causes_the_seen_ones_first(about: str) -> None:
    found = diagnose(SEEN["slow-steps"], about)
    assert [one.weight > 0 for one in found] == sorted(one.weight > 0 for one in found)[::-1]
    if about == "FH-005":
        entry = [name for name, text in TEXTS.items() if text.entry == about]
        assert sorted(one.cause for one in found) == sorted(entry)
        assert found[0].cause == "slow-steps"


def test_an_entry_that_is_none_is_refused() -> None:
    with pytest.raises(InvalidRequest, match="is none of latency"):
        diagnose(SEEN["latency"], "FH-999")


def test_errors_at_set_hours_are_read_from_the_log(tmp_path: Path) -> None:
    """S116: to the data."""
    lines = ["no JSON", "{broken"]
    for day in (1, 2, 3):
        for hour, status, count in ((3, 500, 5), (12, 500, 1), (12, 200, 20)):
            at = f"2026-11-0{day}T{hour:02d}:15:00.000Z"
            line = {"timestamp": at, "event": "request", "status": status, "level": "info"}
            lines += [json.dumps(line)] * count
    lines.append(json.dumps({"event": "engine_lost", "level": "error"}))
    file = tmp_path / "log"
    file.write_text("\n".join(lines))
    log = read_log(file)
    assert (log.num_requests, log.num_failed, log.days) == (78, 18, 3)
    found = diagnose(Evidence(LIMITS, "test", log=log))
    assert causes(found) == ["errors-by-hour"]
    assert "15 of 18 failed requests at 03:00" in found[0].evidence[0]


@contextmanager
def answering(pages: Mapping[str, tuple[int, str]]) -> Iterator[str]:
    """A server with these replies."""

    class Handler(BaseHTTPRequestHandler):
        def do_GET(self) -> None:
            status, text = pages.get(self.path, (404, ""))
            self.send_response(status)
            self.end_headers()
            self.wfile.write(text.encode())

        def log_message(self, *_: object) -> None:
            pass

    server = HTTPServer(("127.0.0.1", 0), Handler)
    thread = threading.Thread(target=server.serve_forever, args=(0.02,), daemon=True)
    thread.start()
    try:
        yield f"http://127.0.0.1:{server.server_port}"
    finally:
        server.shutdown()
        thread.join()
        server.server_close()


def doctor(*arguments: str, code: int = 0, **variables: str) -> str:
    command = ["doctor", *arguments, "--window", "0.1"]
    shown = CliRunner().invoke(build_app(), command, env=variables)
    assert shown.exit_code == code, shown.output
    return shown.stdout


METRICS = 'firsthand_check_ok{check="queue"} 0\nfirsthand_memory_used_ratio 0.99\n'
CHECKS = json.dumps({"checks": {"queue": {"ok": False, "detail": "9 of 8 wait"}}})
ILL = {"/metrics": (200, METRICS), "/livez": (200, "{}"), "/readyz?verbose": (503, CHECKS)}


def test_the_command_asks_the_server_itself() -> None:
    recorded = json.dumps({"requests": rows(("mine", 40, "decode", 503), at=2e9)})
    asks_recorder = {**ILL, "/firsthand/requests?limit=200": (200, recorded)}
    with answering(asks_recorder) as url:
        found = json.loads(doctor("--url", url, "--json"))
    assert found["answers"] == "yes"
    assert [one["cause"] for one in found["findings"]] == ["memory-high", "check-fails"]
    assert found["findings"][1]["evidence"] == ["queue: 9 of 8 wait"]
    assert found["findings"][1]["command"] == f"curl -sS '{url}/readyz?verbose'"


def test_a_server_that_is_gone_is_a_finding() -> None:
    with answering({}) as url:
        pass
    found = json.loads(doctor("--url", url, "--json"))
    assert [one["cause"] for one in found["findings"]] == ["process-gone"]


def test_a_key_that_does_not_open_it_is_the_callers_fault() -> None:
    with answering({**ILL, "/metrics": (401, "")}) as url:
        doctor("--url", url, code=2)


def test_the_words_follow_the_language() -> None:
    """F95."""
    with answering(ILL) as url:
        english = doctor("FH-009", "--url", url, LANG="en_GB.UTF-8", LC_ALL="")
        chinese = doctor("FH-009", "--url", url, LANG="zh_CN.UTF-8", LC_ALL="")
    for language, text in (("en", english), ("zh", chinese)):
        for name in ("memory-high", "engine-grows", "server-grows"):
            assert TEXTS[name].said(language)[0] in text
    assert "怎么办" in chinese
    assert read_environment({"LC_ALL": "C", "LANG": "zh_CN"}).language == "en"


def test_no_prometheus_is_told() -> None:
    with answering({}) as url:
        doctor("--prometheus", url, code=1)


def test_a_snapshot_keeps_what_is_ours() -> None:
    found = read_page("up 1\nother_total 3\n# nothing\n", 5.0)
    assert found == Snapshot(5.0, {"up": [({}, 1.0)]})
