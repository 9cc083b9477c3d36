"""The dashboards are Grafana's, by the models that its makers publish, and their queries parse.

Owns: this proof; Grafana itself is not here. May not know: what a panel is for.
Read next: `test_alerts_live.py`, where the queries are asked of a real server.
"""

from __future__ import annotations

import json
import re
import shutil
import subprocess
from pathlib import Path
from typing import Any

import pytest
from grafana_foundation_sdk.cog.encoder import JSONEncoder
from grafana_foundation_sdk.models.dashboard import Dashboard

from firsthand.observe.alert_settings import AlertSettings
from firsthand.observe.catalogue import CATALOGUE
from firsthand.observe.dashboards import (
    COLUMNS,
    as_json,
    expressions,
    metrics_dashboard,
    provisioning,
    service_dashboard,
)
from firsthand.observe.yaml_text import as_yaml

SERVICE, METRICS = service_dashboard(AlertSettings()), metrics_dashboard()
BOTH = pytest.mark.parametrize("dashboard", [SERVICE, METRICS], ids=["service", "metrics"])


def asked(expression: str) -> str:
    """As Grafana would ask it, of everything."""
    for name, value in (("$__rate_interval", "1m"), ("$job", ".*"), ("$instance", ".*")):
        expression = expression.replace(name, value)
    assert "$" not in expression
    return expression


@BOTH
def test_it_is_what_grafana_reads(dashboard: dict[str, Any]) -> None:
    """A field that its model does not know, or knows elsewhere, would be lost on the way."""
    model = Dashboard.from_json(json.loads(as_json(dashboard)))
    back = json.loads(JSONEncoder(sort_keys=True).encode(model))
    missing = list(lost(dashboard, back, ""))
    assert not missing


def lost(ours: Any, theirs: Any, path: str) -> Any:
    if isinstance(ours, dict) and isinstance(theirs, dict):
        for key, value in ours.items():
            if key in theirs or value is not None:
                yield from lost(value, theirs.get(key), f"{path}.{key}")
    elif isinstance(ours, list) and isinstance(theirs, list) and len(ours) == len(theirs):
        for number, pair in enumerate(zip(ours, theirs, strict=True)):
            yield from lost(*pair, f"{path}[{number}]")
    elif ours != theirs:
        yield path, ours, theirs


@BOTH
def test_panels_have_places_of_their_own(dashboard: dict[str, Any]) -> None:
    taken: set[tuple[int, int]] = set()
    for panel in dashboard["panels"]:
        at = panel["gridPos"]
        cells = {
            (x, y)
            for x in range(at["x"], at["x"] + at["w"])
            for y in range(at["y"], at["y"] + at["h"])
        }
        assert not cells & taken, panel["title"]
        assert all(x < COLUMNS for x, _ in cells)
        taken |= cells
    numbers = [panel["id"] for panel in dashboard["panels"]]
    assert len(numbers) == len(set(numbers))


@pytest.mark.skipif(shutil.which("promtool") is None, reason="needs promtool")
def test_every_query_parses(tmp_path: Path) -> None:
    found = [asked(one) for one in (*expressions(SERVICE), *expressions(METRICS))]
    rules = [{"record": f"a:b{number}", "expr": one} for number, one in enumerate(found)]
    file = tmp_path / "all.yml"
    file.write_text(as_yaml({"groups": [{"name": "all", "rules": rules}]}))
    done = subprocess.run(["promtool", "check", "rules", file], capture_output=True, text=True)
    assert done.returncode == 0, done.stdout + done.stderr
    assert f"{len(found)} rules found" in done.stdout


def test_queries_name_metrics_of_the_catalogue_and_one_shows_each() -> None:
    known = {entry.exposed for entry in CATALOGUE.values()}
    for dashboard in (SERVICE, METRICS):
        names = set()
        for expression in expressions(dashboard):
            for name in re.findall(r"\b(?:firsthand|process)_\w+(?=\{)", expression):
                names.add(re.sub(r"_(bucket|count|sum)$", "", name))
        assert names <= known
    assert names == known


def test_provisioning_finds_the_source_and_the_dashboards() -> None:
    files = provisioning()
    assert set(files) == {"datasources/firsthand.yml", "dashboards/firsthand.yml"}
    assert all(form["apiVersion"] == 1 for form in files.values())
