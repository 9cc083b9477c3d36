"""Grafana's dashboards, made of the catalogue: one for whoever is on call, one of every metric.

Owns: which questions the first one answers, the form of a dashboard and of its provisioning.
May not know: how anything is counted.
Read next: `alerts.py`, whose limits are drawn as lines.
"""

from __future__ import annotations

import json
from collections.abc import Iterator, Sequence
from typing import Any

from firsthand.observe.alert_settings import AlertSettings
from firsthand.observe.catalogue import SECTIONS
from firsthand.observe.entry import Entry, Kind
from firsthand.observe.probes import PROBES
from firsthand.observe.promql import series
from firsthand.values import dataclass

SOURCE = {"type": "prometheus", "uid": "${DS_PROMETHEUS}"}
SCHEMA_VERSION = 39
WIDTH, HEIGHT, COLUMNS = 8, 7, 24
_RATE = "$__rate_interval"
_UNITS = {"seconds": "s", "bytes": "bytes", "ratio": "percentunit"}


@dataclass(frozen=True, slots=True)
class Panel:
    """`queries` are (expression, legend). `limits` are drawn as lines, the worst last."""

    title: str
    unit: str
    queries: tuple[tuple[str, str], ...]
    text: str = ""
    limits: tuple[float, ...] = ()
    stacked: bool = False


Row = tuple[str, Sequence[Panel]]


def service_dashboard(settings: AlertSettings) -> dict[str, Any]:
    """What one asks at three in the morning, in that order."""
    rows = [
        ("Is it well?", list(_well(settings))),
        ("How long does it take?", list(_times(settings))),
        ("Where does the time go?", list(_engine())),
        ("What is full?", list(_room(settings))),
    ]
    return _dashboard("firsthand-service", "Firsthand: service", rows)


def metrics_dashboard() -> dict[str, Any]:
    """Every metric, section by section, as docs/metrics.md has them."""
    rows = [(one.title, [_panel_of(entry) for entry in one.entries]) for one in SECTIONS]
    return _dashboard("firsthand-metrics", "Firsthand: every metric", rows)


def provisioning() -> dict[str, dict[str, Any]]:
    """By file below Grafana's folder of provisioning."""
    return {
        "datasources/firsthand.yml": {
            "apiVersion": 1,
            "datasources": [
                {
                    "name": "Prometheus",
                    "type": "prometheus",
                    "access": "proxy",
                    "url": "http://127.0.0.1:9090",
                    "uid": "firsthand-prometheus",
                    "isDefault": True,
                }
            ],
        },
        "dashboards/firsthand.yml": {
            "apiVersion": 1,
            "providers": [
                {
                    "name": "Firsthand",
                    "orgId": 1,
                    "folder": "Firsthand",
                    "folderUid": "firsthand",
                    "type": "file",
                    "disableDeletion": True,
                    "updateIntervalSeconds": 60,
                    "allowUiUpdates": False,
                    "options": {"path": "/etc/grafana/dashboards/firsthand"},
                }
            ],
        },
    }


def as_json(dashboard: dict[str, Any]) -> str:
    return json.dumps(dashboard, indent=1, ensure_ascii=False) + "\n"


def expressions(dashboard: dict[str, Any]) -> list[str]:
    return [target["expr"] for panel in dashboard["panels"] for target in panel.get("targets", ())]


def _well(s: AlertSettings) -> Iterator[Panel]:
    tiers = 'sum by (alertname, severity) (ALERTS{alertstate="firing",job=~"$job"})'
    yield Panel("Alerts that fire", "short", ((tiers, "{{severity}} {{alertname}}"),))
    yield Panel(
        "Answers of scrapes, and of every check",
        "short",
        (
            ('up{job=~"$job",instance=~"$instance"}', "up {{instance}}"),
            (f"min by (check) ({_of('firsthand_check_ok')})", "{{check}}"),
            (f"min by (model) ({_of('firsthand_selfcheck_ok')})", "golden tokens {{model}}"),
        ),
        "1: it holds",
    )
    yield Panel(
        "Since the last drill of a rollback",
        "s",
        ((_of("firsthand_release_drill_age_seconds"), "{{instance}}"),),
        "None where no release of a store is served",
        (s.drill_age,),
    )
    bad = _rate("firsthand_requests", "job", endpoint=f"!~{PROBES}", status="=~5..")
    whole = _rate("firsthand_requests", "job", endpoint=f"!~{PROBES}")
    yield Panel(
        "Errors of the server",
        "percentunit",
        ((f"{bad} / ({whole} > 0)", "{{job}}"),),
        "Of all answers; none without traffic",
        (s.error_ratio_low, s.error_ratio),
    )
    yield Panel(
        "Answers",
        "reqps",
        (
            (_rate("firsthand_requests", "status", endpoint=f"!~{PROBES}"), "{{status}}"),
            (_rate("firsthand_refused", "job"), "refused at the door"),
        ),
    )
    yield Panel(
        "Warnings and errors in the log",
        "short",
        ((_rate("firsthand_log_events", "event, level"), "{{level}} {{event}}"),),
    )
    restarts = f"increase({_of('firsthand_engine_restarts')}[{_RATE}])"
    yield Panel("Engines replaced", "short", ((f"sum by (model) ({restarts})", "{{model}}"),))


def _times(s: AlertSettings) -> Iterator[Panel]:
    phases = "firsthand_request_phase_seconds"
    for title, name, labels, limit in (
        ("Until the first token", "firsthand_ttft_seconds", {}, s.ttft_p99),
        ("Between two tokens", "firsthand_inter_token_seconds", {}, None),
        ("Whole answers", phases, {"phase": "total"}, s.latency_p99),
        ("In the queue", phases, {"phase": "queue"}, s.queue_p95),
    ):
        yield Panel(title, "s", _quantiles(name, **labels), "", () if limit is None else (limit,))


def _engine() -> Iterator[Panel]:
    spent = _rate("firsthand_step_seconds", "phase", "_sum", phase="!~run")
    yield Panel("A second of steps, by part", "s", ((spent, "{{phase}}"),), stacked=True)
    yield Panel(
        "Tokens", "short", ((_rate("firsthand_tokens", "phase"), "{{phase}}"),), "Per second"
    )
    yield Panel(
        "By class",
        "short",
        ((_rate("firsthand_class_tokens", "class"), "{{class}}"),),
        "Computed tokens per second: who gets the machine",
        stacked=True,
    )
    sizes = _rate("firsthand_batch_size", "model", "_sum")
    steps = _rate("firsthand_batch_size", "model", "_count")
    yield Panel("Sequences in a step", "short", ((f"{sizes} / ({steps} > 0)", "{{model}}"),))


def _room(s: AlertSettings) -> Iterator[Panel]:
    waiting = f"sum by (class) ({_of('firsthand_requests_waiting')})"
    yield Panel(
        "Sequences",
        "short",
        (
            (f"sum by (model) ({_of('firsthand_requests_running')})", "run: {{model}}"),
            (waiting, "wait: {{class}}"),
        ),
    )
    yield Panel(
        "KV cache in use",
        "percentunit",
        ((f"max by (model) ({_of('firsthand_kv_blocks_used_ratio')})", "{{model}}"),),
        limits=(s.kv_used_ratio,),
    )
    evicted = _rate("firsthand_preemptions", "model")
    yield Panel("Sequences put back", "short", ((evicted, "{{model}}"),), "Per second")
    hit = _rate("firsthand_prefix_cache_tokens", "model", result="hit")
    both = _rate("firsthand_prefix_cache_tokens", "model")
    yield Panel(
        "Prompts found in the cache", "percentunit", ((f"{hit} / ({both} > 0)", "{{model}}"),)
    )
    yield Panel(
        "Memory of the machine",
        "percentunit",
        ((f"max by (instance) ({_of('firsthand_memory_used_ratio')})", "{{instance}}"),),
        limits=(s.memory_used_ratio,),
    )
    yield Panel(
        "Processors",
        "short",
        (
            (_rate("process_cpu_seconds", "instance"), "server {{instance}}"),
            (_rate("firsthand_engine_cpu_seconds", "model"), "engine {{model}}"),
        ),
        "Cores in use",
    )


def _panel_of(entry: Entry) -> Panel:
    """A rate of a counter, quantiles of a histogram, a gauge as it is."""
    by = ", ".join(("instance", *entry.label_names))
    legend = " ".join(f"{{{{{name}}}}}" for name in entry.label_names) or "{{instance}}"
    unit = _UNITS.get(entry.unit, "short")
    if entry.kind is Kind.HISTOGRAM:
        others = [name for name in entry.label_names if name != "model"]
        queries = _quantiles(entry.name, by=others)
    elif entry.kind is Kind.COUNTER:
        queries = ((_rate(entry.name, by), legend),)
        unit = "short" if unit == "s" else unit
    else:
        queries = ((f"sum by ({by}) ({_of(entry.name)})", legend),)
    per = "Per second. " if entry.kind is Kind.COUNTER else ""
    return Panel(entry.exposed, unit, queries, per + entry.meaning)


def _of(name: str, suffix: str = "", **labels: str) -> str:
    return series(name, suffix, job="=~$job", instance="=~$instance", **labels)


def _rate(name: str, by: str, suffix: str = "", **labels: str) -> str:
    return f"sum by ({by}) (rate({_of(name, suffix, **labels)}[{_RATE}]))"


def _quantiles(name: str, by: Sequence[str] = (), **labels: str) -> tuple[tuple[str, str], ...]:
    rates = _rate(name, ", ".join((*by, "le")), "_bucket", **labels)
    legend = "".join(f" {{{{{one}}}}}" for one in by)
    return tuple(
        (f"histogram_quantile({q:g}, {rates})", f"P{q * 100:g}{legend}") for q in (0.5, 0.95, 0.99)
    )


def _dashboard(uid: str, title: str, rows: Sequence[Row]) -> dict[str, Any]:
    return {
        "uid": uid,
        "title": title,
        "tags": ["firsthand"],
        "schemaVersion": SCHEMA_VERSION,
        "version": 1,
        "editable": True,
        "timezone": "browser",
        "refresh": "15s",
        "time": {"from": "now-1h", "to": "now"},
        "templating": {"list": list(_variables())},
        "panels": list(_panels(rows)),
    }


def _variables() -> Iterator[dict[str, Any]]:
    yield {"name": "DS_PROMETHEUS", "type": "datasource", "query": "prometheus", "label": "Source"}
    for name, query in (
        ("job", "label_values(firsthand_build_info, job)"),
        ("instance", 'label_values(firsthand_build_info{job=~"$job"}, instance)'),
    ):
        yield {
            "name": name,
            "type": "query",
            "datasource": SOURCE,
            "query": query,
            "refresh": 2,
            "includeAll": True,
            "multi": True,
            "allValue": ".*",
            "current": {"text": "All", "value": "$__all"},
        }


def _panels(rows: Sequence[Row]) -> Iterator[dict[str, Any]]:
    number, y = 0, 0
    for title, panels in rows:
        number += 1
        at = {"h": 1, "w": COLUMNS, "x": 0, "y": y}
        yield {"id": number, "type": "row", "title": title, "collapsed": False, "gridPos": at}
        y += 1
        for place, panel in enumerate(panels):
            number += 1
            line, column = divmod(place, COLUMNS // WIDTH)
            at = {"h": HEIGHT, "w": WIDTH, "x": column * WIDTH, "y": y + line * HEIGHT}
            yield _panel(number, panel, at)
        y += HEIGHT * -(-len(panels) // (COLUMNS // WIDTH))


def _panel(number: int, panel: Panel, at: dict[str, int]) -> dict[str, Any]:
    steps: list[dict[str, Any]] = [{"color": "green", "value": None}]
    for limit, color in zip(panel.limits, ("orange", "red")[-len(panel.limits) :], strict=False):
        steps.append({"color": color, "value": limit})
    custom: dict[str, Any] = {"fillOpacity": 20 if panel.stacked else 0}
    if panel.stacked:
        custom["stacking"] = {"mode": "normal", "group": "A"}
    if panel.limits:
        custom["thresholdsStyle"] = {"mode": "line"}
    defaults = {
        "unit": panel.unit,
        "min": 0,
        "custom": custom,
        "thresholds": {"mode": "absolute", "steps": steps},
    }
    return {
        "id": number,
        "type": "timeseries",
        "title": panel.title,
        "description": panel.text,
        "datasource": SOURCE,
        "gridPos": at,
        "fieldConfig": {"defaults": defaults, "overrides": []},
        "options": {
            "legend": {"displayMode": "list", "placement": "bottom", "showLegend": True},
            "tooltip": {"mode": "multi", "sort": "desc"},
        },
        "targets": [
            {
                "refId": chr(ord("A") + place),
                "datasource": SOURCE,
                "expr": expression,
                "legendFormat": legend,
            }
            for place, (expression, legend) in enumerate(panel.queries)
        ],
    }
