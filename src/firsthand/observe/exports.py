"""The files that are made of the catalogue: those of this repository, and those of a user.

Owns: which they are, and their paths. May not know: what stands in them.
Read next: `metrics_page.py`, `alerts.py`, `routing.py`, `dashboards.py`.

`make generated` writes those of the repository; a test fails while one differs from what it would
write. `firsthand alerts export` writes a user's, with the user's limits.
"""

from __future__ import annotations

from collections.abc import Mapping
from pathlib import Path

from firsthand.observe.alert_cases import RULE_FILE, case_file
from firsthand.observe.alert_settings import AlertSettings
from firsthand.observe.alerts import rule_file
from firsthand.observe.dashboards import (
    as_json,
    metrics_dashboard,
    provisioning,
    service_dashboard,
)
from firsthand.observe.metrics_page import metrics_page
from firsthand.observe.routing import alertmanager_file, prometheus_file
from firsthand.observe.yaml_text import as_yaml

CASE_FILE = "firsthand.rules.test.yml"
_HEAD = "Made by `firsthand alerts export`; change the settings that it reads, not this file."


def alert_files(settings: AlertSettings) -> dict[str, str]:
    """By name, in one folder: rules, their tests, and the configurations around them."""
    forms = {
        RULE_FILE: rule_file(settings),
        CASE_FILE: case_file(settings),
        "prometheus.yml": prometheus_file(settings),
        "alertmanager.yml": alertmanager_file(settings),
    }
    return {name: as_yaml(form, _HEAD) for name, form in forms.items()}


def generated() -> dict[str, str]:
    """Every file's path from the root of the repository, and its text."""
    files = {"docs/metrics.md": metrics_page()}
    for name, text in alert_files(AlertSettings()).items():
        files[f"deploy/prometheus/{name}"] = text
    for name, form in provisioning().items():
        files[f"deploy/grafana/provisioning/{name}"] = as_yaml(form)
    for dashboard in (service_dashboard(AlertSettings()), metrics_dashboard()):
        files[f"deploy/grafana/{dashboard['uid']}.json"] = as_json(dashboard)
    return files


def write(files: Mapping[str, str], root: Path) -> None:
    for path, text in files.items():
        target = root / path
        target.parent.mkdir(parents=True, exist_ok=True)
        target.write_text(text, encoding="utf-8")


if __name__ == "__main__":
    write(generated(), Path())
