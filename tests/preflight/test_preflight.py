"""The checklist: a model and a server that are as they should be, and one broken thing per item.

Owns: these fixtures. May not know: how an item asks. Read next: `../../src/firsthand/preflight`.
"""

from __future__ import annotations

import json
import socket
from collections.abc import Callable
from pathlib import Path
from typing import Any
from xml.etree import ElementTree

import pytest
from typer.testing import CliRunner

from firsthand.cli.main import build_app
from firsthand.cli.micro_model import write_micro_model
from firsthand.generation.load_options import LoadOptions
from firsthand.generation.prompts import read_source
from firsthand.observe.alert_settings import AlertSettings
from firsthand.preflight.items import Item, LeftOut, Outcome, Wrong, junit, run
from firsthand.preflight.on_disk import OnDisk
from firsthand.preflight.on_release import OnRelease, signed
from firsthand.release.drill_report import Report, write_report
from firsthand.release.staging import Staged, stage
from firsthand.release.store import Store
from firsthand.release.switching import Switch
from firsthand.server.settings import Settings
from firsthand.weights.manifest_writing import Told, make_manifest, write_manifest
from firsthand.weights.sums import Sums

pytestmark = pytest.mark.native
NONE = Sums(None)


@pytest.fixture
def model(tmp_path: Path) -> Path:
    (tmp_path / "model").mkdir()
    return write_micro_model(tmp_path / "model")


def outcomes(model: Path, settings: Settings | None = None, **options: Any) -> dict[str, Outcome]:
    on_disk = OnDisk(str(model), LoadOptions(**options), settings, AlertSettings())
    items = list(on_disk.of_model())
    items += [one for one in on_disk.of_machine() if "promtool" not in one.name]
    return {one.name: one for one in run(items)}


@pytest.mark.process
@pytest.mark.slow
def test_a_good_model_is_a_go(model: Path, tmp_path: Path) -> None:
    """S70: every item, on a server that is started and ended."""
    report = tmp_path / "junit.xml"
    shown = CliRunner().invoke(
        build_app(),
        ["preflight", str(model), "--threads", "1", "--junit", str(report), "--json"],
    )
    assert shown.exit_code == 0, shown.output
    found = json.loads(shown.stdout)
    left_out = {one["name"] for one in found["items"] if one["passed"] is None}
    assert found["go"]
    assert len(found["items"]) >= 20
    assert left_out <= {
        "manifest is signed by a trusted key",
        "port is free",
        "address, key and certificate fit together",
        "alert rules pass promtool",
        "clock is synchronised",
        "what is loaded is what lies on the disk",
    }
    suite = ElementTree.fromstring(report.read_text())
    assert suite.attrib["failures"] == "0"
    assert len(suite) == len(found["items"])


def test_all_that_needs_no_load_holds(model: Path) -> None:
    assert all(one.passed is not False for one in outcomes(model).values())


def cut(model: Path) -> None:
    weights = model / "model.safetensors"
    weights.write_bytes(weights.read_bytes()[:-4])


def renamed(model: Path) -> None:
    weights = model / "model.safetensors"
    weights.write_bytes(
        weights.read_bytes().replace(b"layers.1.mlp.up_proj", b"layers.1.mlp.up_prox")
    )


def edited(name: str, change: Callable[[dict[str, Any]], None]) -> Callable[[Path], None]:
    def edit(model: Path) -> None:
        value = json.loads((model / name).read_text())
        change(value)
        (model / name).write_text(json.dumps(value))

    return edit


def _no_multi_byte(value: dict[str, Any]) -> None:
    vocab = value["model"]["vocab"]
    value["model"]["vocab"] = {text: at for text, at in vocab.items() if at != 0xE4}


@pytest.mark.parametrize(
    ("breaks", "item"),
    [
        (cut, "tensors are those of the architecture"),
        (renamed, "tensors are those of the architecture"),
        (
            edited(
                "tokenizer_config.json", lambda v: v.update(chat_template="{{ messages[9].none }}")
            ),
            "template renders a conversation",
        ),
        (edited("tokenizer.json", _no_multi_byte), "tokenizer gives text back"),
    ],
)
def test_a_broken_model_is_found_with_what_to_do(
    model: Path, breaks: Callable[[Path], None], item: str
) -> None:
    breaks(model)
    one = outcomes(model)[item]
    assert one.passed is False
    assert one.seen
    assert one.todo


def test_too_little_memory_is_found(model: Path) -> None:
    found = outcomes(model, memory_limit=1 << 20)
    assert found["memory is enough"].passed is False
    assert found["tensors are those of the architecture"].passed


def test_a_port_that_is_taken_and_an_open_address_are_found(model: Path) -> None:
    with socket.socket() as taken:
        taken.bind(("127.0.0.1", 0))
        taken.listen()
        busy = outcomes(model, Settings(port=taken.getsockname()[1]))
    assert busy["port is free"].passed is False
    name = "address, key and certificate fit together"
    assert busy[name].passed
    assert outcomes(model, Settings(host="0.0.0.0", port=0))[name].passed is False


def test_the_report_says_what_failed_and_what_was_left_out() -> None:
    def wrong() -> str:
        raise Wrong("seen \x00 it")

    def away() -> str:
        raise LeftOut("not here")

    def broken() -> str:
        raise OSError(13, "denied")

    items = [Item("a", "do a", wrong), Item("b", "do b", away), Item("c", "do c", broken)]
    found = list(run([*items, Item("d", "do d", lambda: "fine")]))
    assert [one.passed for one in found] == [False, None, False, True]
    assert [one.todo for one in found] == ["do a", "do b", "do c", ""]
    suite = ElementTree.fromstring(junit(found))
    assert (suite.attrib["failures"], suite.attrib["skipped"]) == ("2", "1")


def test_a_broken_model_is_no_go(model: Path) -> None:
    cut(model)
    shown = CliRunner().invoke(build_app(), ["check", str(model), "--json"])
    assert shown.exit_code in (1, 3), shown.output


def test_a_model_is_served_under_the_hash_that_is_asked_for(model: Path) -> None:
    """Of its manifest, where it has one, whether it is one file or several."""
    options = LoadOptions()
    on_disk = OnDisk(str(model), options, None, AlertSettings())
    assert on_disk.identity() is None
    write_manifest(model, make_manifest(model, Told(), Sums(None)))
    assert on_disk.identity() == read_source(model, options).sha256 is not None


def test_a_release_is_asked_for_its_files_its_drill_and_the_way_back(
    model: Path, tmp_path: Path
) -> None:
    store, switch = Store(tmp_path / "store"), Switch(Store(tmp_path / "store"), None, None, NONE)
    for name in ("chat", "cha"):
        stage(store, model, Staged(name, {"max-model-len": 64 + len(name)}, None, None), NONE)
    switch.promote("1")
    found = {one.name: one for one in run(OnRelease(store.folder(1)).items())}
    assert found["release is whole"].passed
    assert found["engine of the release is there"].passed
    assert found["last drill of the release passed"].passed is None
    assert found["the way back is whole"].passed is None
    assert found["names are not taken for each other"].seen.startswith("cha and chat")
    switch.promote("2", force=True)
    found = {one.name: one for one in run(OnRelease(store.folder(2)).items())}
    assert found["last drill of the release passed"].seen == "it has had none"
    assert found["the way back is whole"].passed
    ids = (store.read(2).id, 1, store.read(1).id)
    write_report(store, Report(2, *ids, "2026-01-01T00:00:00.000Z", (), 8, 0, 1.0, 1.0, 2.0))
    for counts_s, passed in ((1.0, False), (1e12, True)):
        found = {one.name: one for one in run(OnRelease(store.folder(2), counts_s).items())}
        assert found["last drill of the release passed"].passed is passed
    weights = store.folder(1) / "model" / "model.safetensors"
    weights.chmod(0o644)
    weights.write_bytes(b"")
    found = {one.name: one for one in run(OnRelease(store.folder(2)).items())}
    assert found["the way back is whole"].passed is False


def test_a_manifest_without_a_signature_is_no_go_where_keys_are_configured(
    model: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    (left_out,) = run([signed(str(model))])
    assert left_out.passed is None
    monkeypatch.setenv("FIRSTHAND_TRUSTED_KEYS", str(model / "keys.pem"))
    (refused,) = run([signed(str(model))])
    assert refused.passed is False
    assert "only models with a manifest signed by" in refused.seen
