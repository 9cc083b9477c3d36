"""What stands in deploy/kuberay/ is what KubeRay, Ray and this program read, and it is closed.

Owns: these proofs. May not know: a cluster. Read next: deploy/README.md.

`kuberay_raycluster.schema.json` has the names, types and limits of KubeRay's own definition of a
RayCluster (1.7, Apache-2.0), without its texts; pods in it are checked by Kubernetes' schemas.
"""

from __future__ import annotations

import json
import re
from pathlib import Path
from typing import Any

import kubernetes_validate
import pytest
import yaml
from typer.testing import CliRunner

from firsthand.cli.main import build_app
from firsthand.cluster.autoscaling.limits import read_limits
from firsthand.server.guard.access import FREE
from firsthand.server.setting_sources import read_settings

KUBERAY = Path(__file__).resolve().parents[1] / "deploy" / "kuberay"
SCHEMA = Path(__file__).with_name("kuberay_raycluster.schema.json")
OTHERS = sorted(path for path in KUBERAY.glob("*.yaml") if path.stem != "cluster")


def read(name: str) -> Any:
    return yaml.safe_load((KUBERAY / f"{name}.yaml").read_text(encoding="utf-8"))


def cluster() -> dict[str, Any]:
    spec: dict[str, Any] = read("cluster")["spec"]
    return spec


def pods() -> dict[str, dict[str, Any]]:
    found = {"head": cluster()["headGroupSpec"]["template"]}
    return found | {one["groupName"]: one["template"] for one in cluster()["workerGroupSpecs"]}


def container(name: str) -> dict[str, Any]:
    (one,) = pods()[name]["spec"]["containers"]
    assert isinstance(one, dict)
    return one


def settings_in(folder: Path) -> Any:
    for name, text in read("settings")["data"].items():
        (folder / name).write_text(text)
    return read_settings({}, {}, folder / "server.toml").settings


def door_command() -> list[str]:
    """Of `firsthand`, as words."""
    (script,) = container("doors")["args"]
    words: list[str] = script.partition("exec firsthand ")[2].split()
    return words


def flag(name: str) -> str:
    words = door_command()
    return words[words.index(name) + 1]


@pytest.mark.parametrize("path", OTHERS, ids=[path.stem for path in OTHERS])
def test_a_manifest_is_what_kubernetes_reads(path: Path) -> None:
    document = yaml.safe_load(path.read_text(encoding="utf-8"))
    for version in ("1.30", kubernetes_validate.latest_version()):
        kubernetes_validate.validate(document, version, strict=True)


def test_the_cluster_is_what_kuberay_reads() -> None:
    jsonschema = pytest.importorskip("jsonschema")
    schema = json.loads(SCHEMA.read_text())
    jsonschema.validate(read("cluster"), schema)
    broken = read("cluster")
    broken["spec"]["gcsFaultToleranceOptions"]["redisAdress"] = "x"
    with pytest.raises(jsonschema.ValidationError):
        jsonschema.validate(broken, schema)


@pytest.mark.parametrize("name", list(pods()))
def test_its_pods_are_what_kubernetes_reads(name: str) -> None:
    template = pods()[name]
    document = {"apiVersion": "v1", "kind": "Pod", **template}
    document["metadata"] = {**template["metadata"], "name": "pod"}
    kubernetes_validate.validate(document, "1.30", strict=True)


def test_it_is_closed() -> None:
    spec = cluster()
    assert spec["authOptions"] == {"mode": "token", "secretName": "firsthand-ray-token"}
    assert spec["headGroupSpec"]["rayStartParams"]["dashboard-host"] == "127.0.0.1"
    labels = read("network")["spec"]["podSelector"]["matchLabels"]
    for pod in pods().values():
        assert labels.items() <= pod["metadata"]["labels"].items()
        assert pod["spec"]["securityContext"]["runAsNonRoot"]
    inside, outside = read("network")["spec"]["ingress"]
    assert inside == {"from": [{"podSelector": {"matchLabels": labels}}]}
    (port,) = outside["ports"]
    assert port["port"] == container("doors")["ports"][0]["containerPort"]


def test_the_head_may_be_lost() -> None:
    address = cluster()["gcsFaultToleranceOptions"]["redisAddress"]
    service = read("redis-service")
    assert address == f"{service['metadata']['name']}:{service['spec']['ports'][0]['port']}"
    redis = read("redis")["spec"]["template"]
    assert service["spec"]["selector"] == redis["metadata"]["labels"]
    assert "--appendonly" in redis["spec"]["containers"][0]["args"]


def test_the_door_is_asked_and_reached_where_it_listens(tmp_path: Path) -> None:
    settings = settings_in(tmp_path)
    door = container("doors")
    assert [one["containerPort"] for one in door["ports"]] == [settings.port]
    assert door["readinessProbe"]["httpGet"] == {"path": "/readyz", "port": "http"}
    assert door["livenessProbe"]["httpGet"] == {"path": "/livez", "port": "http"}
    assert {"/livez", "/readyz"} <= FREE
    selector = read("service")["spec"]["selector"]
    found = [
        name
        for name, pod in pods().items()
        if selector.items() <= pod["metadata"]["labels"].items()
    ]
    assert found == ["doors"]
    places = {one["name"]: one["mountPath"] for one in door["volumeMounts"]}
    assert set(places) == {one["name"] for one in pods()["doors"]["spec"]["volumes"]}
    assert str(settings.api_key_file) == f"{places['keys']}/keys"
    assert str(settings.log_folder) == places["logs"]
    assert flag("--config") == f"{places['settings']}/server.toml"
    assert flag("--scaling") == f"{places['settings']}/scaling.toml"


def test_there_is_room_for_as_many_replicas_as_there_may_be(tmp_path: Path) -> None:
    settings_in(tmp_path)
    limits = read_limits(tmp_path / "scaling.toml")
    (engines,) = [one for one in cluster()["workerGroupSpecs"] if one["groupName"] == "engines"]
    each = int(container("engines")["resources"]["limits"]["cpu"]) // int(flag("--replica-cpus"))
    assert engines["maxReplicas"] * each >= limits.max_replicas
    assert engines["minReplicas"] * each >= limits.min_replicas


def test_a_drain_has_its_time(tmp_path: Path) -> None:
    settings = settings_in(tmp_path)
    for name in ("engines", "doors"):
        assert pods()[name]["spec"]["terminationGracePeriodSeconds"] >= settings.drain_limit_s + 30


def test_the_flags_are_those_of_the_command() -> None:
    shown = CliRunner().invoke(build_app(), ["cluster", "serve", "--help"])
    assert shown.exit_code == 0
    text = re.sub(r"\x1b\[[0-9;]*m", "", shown.stdout)
    words = door_command()
    assert words[:2] == ["cluster", "serve"]
    (init,) = pods()["doors"]["spec"]["initContainers"]
    assert init["args"] == ["pull", words[2]]
    for word in words:
        if word.startswith("--"):
            assert word in text, word
