"""deploy/compose.yaml by the specification's own schema, and by what it names.

Owns: these proofs. May not know: how a container is run. Read next: deploy/README.md.
"""

from __future__ import annotations

import re
from pathlib import Path
from typing import Any

import pytest
import yaml
from compose_spec.models import ComposeSpecification, Service
from pydantic import ValidationError
from typer.testing import CliRunner

from firsthand.cli.main import build_app
from firsthand.server.setting_sources import read_settings
from firsthand.server.until_end import FAREWELL_S
from tests.test_deploy import DEPLOY, SPARE_S

COMPOSE: dict[str, Any] = yaml.safe_load((DEPLOY / "compose.yaml").read_text(encoding="utf-8"))
SERVICES: dict[str, Any] = COMPOSE["services"]
OURS = [name for name, one in SERVICES.items() if one["image"].startswith("firsthand:")]


def test_it_is_what_compose_reads() -> None:
    ComposeSpecification.model_validate(COMPOSE)
    for one in SERVICES.values():  # a word that it does not know would be passed over
        assert set(one) <= set(Service.model_fields)
    broken = {**COMPOSE, "services": {"server": {"image": ["firsthand"]}}}
    with pytest.raises(ValidationError):
        ComposeSpecification.model_validate(broken)


def test_what_is_mounted_is_there_and_volumes_are_declared() -> None:
    for one in SERVICES.values():
        for place, *_ in (mount.split(":") for mount in one["volumes"]):
            if place == "./keys":  # the operator's own
                continue
            held = (DEPLOY / place).exists() if place.startswith("./") else None
            assert held or place in COMPOSE["volumes"], place


def test_nothing_is_open_to_other_machines_and_all_share_one_network() -> None:
    ports = [port for one in SERVICES.values() for port in one.get("ports", ())]
    assert ports and all(port.startswith("127.0.0.1:") for port in ports)
    inside = {port.rsplit(":", 1)[1] for port in ports}
    named = re.findall(
        r"127\.0\.0\.1:(\d+)",
        "".join(
            path.read_text()
            for path in (DEPLOY / "prometheus/prometheus.yml", *DEPLOY.glob("grafana/prov*/*/*"))
        ),
    )
    assert named and set(named) <= inside
    others = set(SERVICES) - {"alerts", "model"}
    assert all(SERVICES[name]["network_mode"] == "service:alerts" for name in others)


@pytest.mark.parametrize("name", OURS)
def test_our_commands_know_their_options(name: str) -> None:
    words = [word for word in SERVICES[name]["command"] if re.fullmatch(r"--[a-z-]+|[a-z]+", word)]
    verb = [word for word in words if not word.startswith("--")]
    shown = CliRunner().invoke(build_app(), [*verb, "--help"])
    assert shown.exit_code == 0
    assert all(word in shown.output for word in words if word.startswith("--"))


def test_the_server_is_given_the_time_that_its_drain_may_take(tmp_path: Path) -> None:
    settings = read_settings({}, {}, DEPLOY / "server.toml").settings
    given = SERVICES["server"]["stop_grace_period"]
    assert int(given.removesuffix("s")) >= settings.drain_limit_s + FAREWELL_S + SPARE_S
