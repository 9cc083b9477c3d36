"""Who is told of an alert: the configurations of Alertmanager and of Prometheus.

Owns: the three ways of the tiers, what silences what.
May not know: any rule but the one that silences others; what a receiver does.
Read next: `alerts.py`; `received.py`, a receiver that keeps a record.

P0 goes to the phone at once and again every five minutes, P1 to messaging, and every alert to the
record. While a server is down, what else is said of it waits.
"""

from __future__ import annotations

from typing import Any

from firsthand.observe.alert_cases import RULE_FILE
from firsthand.observe.alert_settings import AlertSettings
from firsthand.observe.promql import duration

PHONE, MESSAGE, RECORD = "phone", "message", "record"


def alertmanager_file(settings: AlertSettings, group_wait_s: float = 30) -> dict[str, Any]:
    """`group_wait_s`: that messages wait for others of their group."""
    s = settings
    return {
        "global": {"resolve_timeout": "5m"},
        "route": {
            "receiver": RECORD,
            "group_by": ["alertname", "job"],
            "group_wait": duration(group_wait_s),
            "group_interval": duration(max(1, 10 * group_wait_s)),
            "repeat_interval": "12h",
            "routes": [
                {
                    "receiver": PHONE,
                    "matchers": ['severity="P0"'],
                    "group_wait": "0s",
                    "group_interval": duration(max(1, group_wait_s)),
                    "repeat_interval": "5m",
                    "continue": True,
                },
                {
                    "receiver": MESSAGE,
                    "matchers": ['severity="P1"'],
                    "repeat_interval": "4h",
                    "continue": True,
                },
                {"receiver": RECORD, "group_wait": "0s", "matchers": ['severity=~"P0|P1|P2"']},
            ],
        },
        "inhibit_rules": [
            {
                "source_matchers": ['alertname="FirsthandServiceDown"'],
                "target_matchers": ['severity=~"P1|P2"'],
                "equal": ["job", "instance"],
            }
        ],
        "receivers": [
            _webhook(PHONE, s.phone_url),
            _webhook(MESSAGE, s.message_url),
            _webhook(RECORD, s.record_url),
        ],
    }


def prometheus_file(settings: AlertSettings) -> dict[str, Any]:
    s = settings
    scrape: dict[str, Any] = {
        "job_name": s.job,
        "static_configs": [{"targets": list(s.targets)}],
    }
    if s.key_file:
        scrape["authorization"] = {"type": "Bearer", "credentials_file": s.key_file}
    interval = duration(s.scrape_interval)
    return {
        "global": {
            "scrape_interval": interval,
            "scrape_timeout": duration(min(10, s.scrape_interval)),
            "evaluation_interval": interval,
        },
        "rule_files": [RULE_FILE],
        "alerting": {"alertmanagers": [{"static_configs": [{"targets": [s.alertmanager]}]}]},
        "scrape_configs": [scrape],
    }


def _webhook(name: str, url: str) -> dict[str, Any]:
    return {"name": name, "webhook_configs": [{"url": url, "send_resolved": True}]}
