"""The alert rules: they fire on what they are for, and on nothing else, as Prometheus' own programs
say.

Owns: these proofs. May not know: a running server. Read next: `test_alerts_live.py`.
"""

from __future__ import annotations

import ast
import json
import re
import shutil
import subprocess
from dataclasses import fields, replace
from pathlib import Path
from typing import Any

import pytest
import yaml
from hypothesis import given, settings
from hypothesis import strategies as st

from firsthand.errors import InvalidRequest
from firsthand.observe.alert_cases import RULE_FILE, cases
from firsthand.observe.alert_settings import AlertSettings, read_alert_settings
from firsthand.observe.alerts import Rule, rule_file, rules
from firsthand.observe.catalogue import CATALOGUE
from firsthand.observe.exports import CASE_FILE, alert_files, write
from firsthand.observe.labels import LOG_EVENTS
from firsthand.observe.probes import is_probe
from firsthand.observe.promql import duration, series
from firsthand.observe.proving import prove
from firsthand.observe.yaml_text import as_yaml
from firsthand.server.guard.access import FREE, METRICS

ROOT = Path(__file__).resolve().parents[2]
ALL = AlertSettings(gpu_utilization=True)
TIMES = {
    one.name: 1 if one.name.endswith("_for") else 4
    for one in fields(AlertSettings)
    if one.name.endswith(("_for", "_window"))
}
SHORT = replace(
    AlertSettings(
        scrape_interval=0.5,
        error_ratio=0.5,
        error_ratio_low=0.2,
        slow_request=10,
        ttft_p99=2.5,
        log_events=(),
    ),
    **TIMES,  # type: ignore[arg-type]
)
needs_promtool = pytest.mark.skipif(shutil.which("promtool") is None, reason="needs promtool")
needs_amtool = pytest.mark.skipif(shutil.which("amtool") is None, reason="needs amtool")


@needs_promtool
@pytest.mark.slow
@pytest.mark.parametrize("limits", [ALL, SHORT], ids=["default", "short"])
def test_every_rule_stands_its_cases(limits: AlertSettings) -> None:
    for outcome in prove(limits):
        assert outcome.passed is not False, outcome.said


@needs_promtool
@pytest.mark.slow
@pytest.mark.parametrize(("expression", "fails"), [("vector(0) > 1", True), ("vector(1)", False)])
def test_a_rule_that_never_or_always_fires_fails_its_cases(
    tmp_path: Path, expression: str, fails: bool
) -> None:
    """So the cases see: each alert has one that fires and one that does not."""
    broken = rule_file(ALL)
    for rule in broken["groups"][0]["rules"]:
        rule["expr"] = expression
    write(alert_files(ALL) | {RULE_FILE: as_yaml(broken)}, tmp_path)
    done = subprocess.run(
        ["promtool", "test", "rules", CASE_FILE], cwd=tmp_path, capture_output=True, text=True
    )
    assert done.returncode != 0
    missing = set(re.findall(r"alertname: (\w+)", done.stdout + done.stderr))
    assert missing == {rule.name for rule in rules(ALL)}


@pytest.mark.parametrize("limits", [ALL, SHORT, AlertSettings()])
def test_each_alert_has_a_case_that_fires_and_one_that_does_not(limits: AlertSettings) -> None:
    found = [(case.alert, case.fires is not None) for case in cases(limits)]
    names = {rule.name for rule in rules(limits)}
    assert set(found) == {(name, fires) for name in names for fires in (True, False)}


@pytest.mark.parametrize("rule", rules(ALL), ids=[rule.name for rule in rules(ALL)])
def test_a_rule_names_metrics_of_the_catalogue_only(rule: Rule) -> None:
    known = {entry.exposed for entry in CATALOGUE.values()} | {"up"}
    for name in re.findall(r"\b(up|firsthand_\w+|process_\w+)\b(?=[{\[])", rule.expression):
        assert re.sub(r"_(bucket|count|sum)$", "", name) in known, name
    assert re.fullmatch(r"FH-\d{3}", rule.entry)
    assert rule.summary
    assert rule.summary_zh
    assert rule.tier in ("P0", "P1", "P2")


def test_a_selector_of_no_metric_is_a_fault() -> None:
    with pytest.raises(KeyError):
        series("firsthand_anything")
    with pytest.raises(KeyError):
        series("firsthand_requests", colour="red")
    with pytest.raises(KeyError):
        series("firsthand_requests", "_bucket")


def test_a_busy_device_wakes_nobody_unless_it_is_asked_for() -> None:
    names = {rule.name for rule in rules(AlertSettings())}
    assert {rule.name for rule in rules(ALL)} - names == {"FirsthandGpuBusy"}


def test_probes_are_no_traffic() -> None:
    """Else a scrape every 15 s would hide that every answer of an hour was an error."""
    for path in (*FREE, METRICS, "/firsthand/requests/{request_id}", "other"):
        assert is_probe(path), path
    assert not is_probe("/v1/chat/completions")


def test_every_warning_of_the_log_has_its_event_in_the_catalogue() -> None:
    """An event that is not there would be counted as `other`."""
    found = set()
    for path in (ROOT / "src/firsthand/server").rglob("*.py"):
        for node in ast.walk(ast.parse(path.read_text(encoding="utf-8"))):
            if isinstance(node, ast.Call) and getattr(node.func, "id", "") == "tell":
                text = ast.unparse(node)
                if re.search(r"logging\.(WARNING|ERROR)", text) and len(node.args) > 2:
                    found.add(ast.literal_eval(node.args[0]))
    assert found
    assert found <= set(LOG_EVENTS)


@needs_amtool
@pytest.mark.parametrize(
    ("tier", "receivers"), [("P0", "phone,record"), ("P1", "message,record"), ("P2", "record")]
)
def test_each_tier_reaches_its_receiver(tmp_path: Path, tier: str, receivers: str) -> None:
    write(alert_files(ALL), tmp_path)
    command = ["amtool", "config", "routes", "test", "--config.file=alertmanager.yml"]
    more = [f"--verify.receivers={receivers}", f"severity={tier}", "alertname=x"]
    done = subprocess.run([*command, *more], cwd=tmp_path, capture_output=True, text=True)
    assert done.returncode == 0, done.stdout + done.stderr
    assert done.stdout.strip() == receivers


def test_a_file_sets_limits_and_slips_are_named(tmp_path: Path) -> None:
    def read(text: str) -> AlertSettings:
        file = tmp_path / "alerts.toml"
        file.write_text(text)
        return read_alert_settings(file)

    assert read('error-ratio = 0.2\njob = "x"\ntargets = ["a:1", "b:2"]') == AlertSettings(
        error_ratio=0.2, job="x", targets=("a:1", "b:2")
    )
    assert read_alert_settings(None) == AlertSettings()
    for text, named in (
        ("eror-ratio = 0.2", "did you mean error-ratio?"),
        ("error-ratio = 2", "at most 1"),
        ('error-ratio = "2"', "must be a number"),
        ("error-ratio = true", "must be a number"),
        ("error-ratio = nan", "must be above 0"),
        ("error-ratio-low = 0.1", "below error_ratio"),
        ("slow-request = 81", "a bucket's bound"),
        ("error-window = 30", "at least 4 scrape intervals, 60 s"),
        ("gpu-utilization = 1", "true or false"),
        ('targets = "a"', "list of texts"),
        ('phone-url = "file:///x"', "http address"),
        ('log-events = ["everything"]', "none of"),
        ("job = 1", "must be a text"),
        ("job = ", "no TOML"),
        ("ttft-p99 = " + "9" * 5000, "no TOML"),
        ("ttft-p99 = 3\nttft_p99 = 4", "is given twice"),
    ):
        with pytest.raises(InvalidRequest, match=re.escape(named)):
            read(text)
    with pytest.raises(InvalidRequest, match="No such file"):
        read_alert_settings(tmp_path / "none.toml")


@pytest.mark.parametrize(("seconds", "text"), [(30, "30s"), (90.0, "90s"), (0.5, "500ms")])
def test_durations_are_prometheus(seconds: float, text: str) -> None:
    assert duration(seconds) == text


# What a person writes: no control characters, no line separators of other scripts.
TEXTS = st.text(st.characters(codec="utf-8", exclude_categories=("C", "Zl", "Zp")))
KEYS = st.sampled_from(["alert", "expr", "labels"])
TREES = st.recursive(
    st.none() | st.booleans() | st.integers() | TEXTS,
    lambda inner: st.lists(inner, max_size=3) | st.dictionaries(KEYS, inner),
    max_leaves=12,
)


@settings(deadline=None, max_examples=50)
@given(st.dictionaries(KEYS, TREES, min_size=1))
def test_what_is_written_is_read_back(tree: dict[str, Any]) -> None:
    assert yaml.safe_load(as_yaml(tree, "a\nb")) == tree


def test_each_limit_stands_on_the_page_with_its_default() -> None:
    page = (Path(__file__).parents[2] / "docs" / "observe.md").read_text(encoding="utf-8")
    for one in fields(AlertSettings):
        value = one.default
        if isinstance(value, tuple):
            value = list(value)
        elif not isinstance(value, str | bool):
            value = f"{value:g}"
        shown = value if isinstance(value, str) and one.type == "float" else json.dumps(value)
        assert f"`{one.name} = {shown}`" in page, one.name
