"""What stands in deploy/ is what a server needs: by the schemas of those who read it, and by the
server's own limits.

Owns: these proofs. May not know: a cluster. Read next: deploy/README.md.
"""

from __future__ import annotations

import re
import shutil
import subprocess
from pathlib import Path
from typing import Any

import kubernetes_validate
import pytest
import yaml

from firsthand.server.guard.access import FREE, METRICS
from firsthand.server.setting_sources import read_settings
from firsthand.server.settings import Settings
from firsthand.server.until_end import FAREWELL_S

ROOT = Path(__file__).resolve().parents[1]
DEPLOY = ROOT / "deploy"
MANIFESTS = sorted((DEPLOY / "kubernetes").glob("*.yaml"))
UNITS = sorted((DEPLOY / "systemd").glob("*.service"))
SPARE_S = 5.0  # for the engine's end, and the process's


def manifest(kind: str) -> dict[str, Any]:
    found = [yaml.safe_load(path.read_text(encoding="utf-8")) for path in MANIFESTS]
    (one,) = [document for document in found if document["kind"] == kind]
    assert isinstance(one, dict)
    return one


def settings_of(text: str, folder: Path) -> Settings:
    file = folder / "server.toml"
    file.write_text(text)
    return read_settings({}, {}, file).settings


def pod() -> dict[str, Any]:
    spec: dict[str, Any] = manifest("Deployment")["spec"]["template"]["spec"]
    return spec


@pytest.mark.parametrize("path", MANIFESTS, ids=[path.stem for path in MANIFESTS])
def test_a_manifest_is_what_kubernetes_reads(path: Path) -> None:
    document = yaml.safe_load(path.read_text(encoding="utf-8"))
    for version in ("1.30", kubernetes_validate.latest_version()):
        kubernetes_validate.validate(document, version, strict=True)
    broken = {**document, "spec_": {}}
    with pytest.raises(kubernetes_validate.ValidationError):
        kubernetes_validate.validate(broken, "1.30", strict=True)


def test_a_pod_is_given_the_time_that_its_drain_may_take(tmp_path: Path) -> None:
    settings = settings_of(manifest("ConfigMap")["data"]["server.toml"], tmp_path)
    spec = pod()
    (container,) = spec["containers"]
    command, pause_s = container["lifecycle"]["preStop"]["exec"]["command"]
    assert command == "sleep"
    least_s = int(pause_s) + settings.drain_limit_s + FAREWELL_S + SPARE_S
    assert spec["terminationGracePeriodSeconds"] >= least_s
    assert settings.drain_limit_s >= settings.request_timeout
    probe = container["readinessProbe"]
    assert int(pause_s) >= probe["periodSeconds"] * probe["failureThreshold"]


def test_probes_ask_what_needs_no_key_at_the_port_that_is_served(tmp_path: Path) -> None:
    settings = settings_of(manifest("ConfigMap")["data"]["server.toml"], tmp_path)
    (container,) = pod()["containers"]
    assert [one["containerPort"] for one in container["ports"]] == [settings.port]
    assert container["livenessProbe"]["httpGet"] == {"path": "/livez", "port": "http"}
    assert container["readinessProbe"]["httpGet"] == {"path": "/readyz", "port": "http"}
    assert {"/livez", "/readyz"} <= FREE
    notes = manifest("Deployment")["spec"]["template"]["metadata"]["annotations"]
    assert notes["prometheus.io/path"] == METRICS
    assert notes["prometheus.io/port"] == str(settings.port)
    assert settings.metrics_public


def test_selectors_find_the_pods_and_one_may_be_taken_away() -> None:
    deployment, budget = manifest("Deployment"), manifest("PodDisruptionBudget")
    labels = deployment["spec"]["template"]["metadata"]["labels"]
    assert deployment["spec"]["selector"]["matchLabels"] == labels
    assert budget["spec"]["selector"]["matchLabels"] == labels
    assert manifest("Service")["spec"]["selector"] == labels
    assert deployment["spec"]["replicas"] > budget["spec"]["maxUnavailable"] > 0


def test_what_is_mounted_is_there(tmp_path: Path) -> None:
    spec = pod()
    settings = settings_of(manifest("ConfigMap")["data"]["server.toml"], tmp_path)
    (container,) = spec["containers"]
    places = {one["name"]: one["mountPath"] for one in container["volumeMounts"]}
    assert set(places) == {one["name"] for one in spec["volumes"]}
    assert str(settings.api_key_file) == f"{places['keys']}/keys"
    assert container["args"][-1] == f"{places['settings']}/server.toml"


@pytest.mark.skipif(shutil.which("systemd-analyze") is None, reason="needs systemd-analyze")
@pytest.mark.parametrize("path", UNITS, ids=[path.stem for path in UNITS])
def test_a_unit_is_what_systemd_reads(path: Path, tmp_path: Path) -> None:
    text = path.read_text(encoding="utf-8")
    unit = tmp_path / path.name
    unit.write_text(text.replace("/opt/firsthand/bin/firsthand", "/bin/true"))
    assert "/bin/true" in unit.read_text()
    assert verified(unit) == ""
    unit.write_text(unit.read_text().replace("KillMode=", "KilMode=").replace("Type=", "Tipe="))
    assert "Unknown key" in verified(unit)


def verified(unit: Path) -> str:
    """What systemd says of this unit; others of this machine may be wrong."""
    done = subprocess.run(
        ["systemd-analyze", "verify", "--man=no", unit], capture_output=True, text=True
    )
    return "\n".join(line for line in done.stderr.splitlines() if unit.name in line)


def test_a_unit_waits_for_the_drain(tmp_path: Path) -> None:
    settings = settings_of((DEPLOY / "server.toml").read_text(), tmp_path)
    text = (DEPLOY / "systemd/firsthand.service").read_text()
    found = re.search(r"^TimeoutStopSec=(\d+)$", text, re.MULTILINE)
    assert found is not None
    assert int(found[1]) >= settings.drain_limit_s + FAREWELL_S + SPARE_S
    assert settings.host == "0.0.0.0"
    assert settings.api_key_file is not None


def test_commands_of_units_and_image_are_ours() -> None:
    from typer.testing import CliRunner

    from firsthand.cli.main import build_app

    for words in commands():
        known = CliRunner().invoke(build_app(), [*words[: 1 + (words[0] == "alerts")], "--help"])
        assert known.exit_code == 0
        shown = re.sub(r"\x1b\[[0-9;]*m", "", known.stdout)
        for flag in (word for word in words if word.startswith("--")):
            assert flag in shown, flag


def commands() -> list[list[str]]:
    found = []
    for path in UNITS:
        line = re.search(r"^ExecStart=\S+/firsthand (.*)$", path.read_text(), re.MULTILINE)
        assert line is not None
        found.append(line[1].split())
    (container,) = pod()["containers"]
    (model,) = pod()["initContainers"]
    recipe = (DEPLOY / "container/Containerfile").read_text()
    command = re.search(r"^CMD (.*)$", recipe, re.MULTILINE)
    assert command is not None
    return [*found, container["args"], model["args"], yaml.safe_load(command[1])]


def test_the_image_copies_what_there_is_and_runs_as_nobody() -> None:
    recipe = (DEPLOY / "container/Containerfile").read_text()
    for line in re.findall(r"^COPY (?!--from)(.*)$", recipe, re.MULTILINE):
        for name in line.split()[:-1]:
            assert (ROOT / name).exists(), name
    user = re.search(r"^USER (\d+)$", recipe, re.MULTILINE)
    assert user is not None
    assert int(user[1]) == pod()["securityContext"]["runAsUser"] > 0


def test_the_page_names_every_place() -> None:
    page = (DEPLOY / "README.md").read_text(encoding="utf-8")
    for path in DEPLOY.iterdir():
        if not path.name.startswith("README."):
            assert f"`{path.name}{'/' * path.is_dir()}`" in page, path.name
