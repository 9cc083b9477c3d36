"""The commands that look: queue, record and its playing, collect-env; and files of alerts tried.

Owns: proof of `cli/queue.py`, `cli/recording.py`, `cli/collect_env.py`, `observe/recording.py`.
Read next: `test_top.py`; `tests/server/page/test_recorded.py`, the page before a recording.
"""

from __future__ import annotations

import json
import shutil
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest

from firsthand.errors import InvalidRequest
from firsthand.observe.recording import FORM, read, write
from tests.cli.test_commands import call, called
from tests.cli.test_remote import Other, events, running
from tests.cli.test_top import STATE

QUEUE = {
    "at_s": 10.0,
    "models": [
        {
            "name": "micro", "running": 8, "places": 8, "waiting": 1, "free_blocks": 2,
            "queue": [
                {
                    "position": 1, "id": None, "engine_id": "e-1", "class": "normal",
                    "level": "overdue", "age_s": 6.0, "prompt_tokens": 20, "starts_in_s": None,
                    "why": "full",
                }
            ],
        }
    ],
}  # fmt: skip
NEWS = [STATE, {"at_s": 10.5, "models": [{"name": "micro", "state": {"status": "restarting"}}]}]


@pytest.fixture
def told() -> Iterator[Other]:
    """A server with a queue and a feed that ends."""

    class Telling(Other):
        def handler(self) -> Any:
            made = super().handler()

            class Handler(made):  # type: ignore[misc,valid-type]
                def do_GET(self) -> None:
                    feed = self.path.endswith("/engine/stream")
                    self.answer(events(*NEWS) if feed else json.dumps(QUEUE).encode(), 200)

            return Handler

    with running(Telling()) as made:
        yield made


def test_the_queue_is_told_in_the_language_of_the_terminal(
    told: Other, monkeypatch: pytest.MonkeyPatch
) -> None:
    """F95."""
    monkeypatch.delenv("LC_ALL", raising=False)
    monkeypatch.delenv("LC_MESSAGES", raising=False)
    for language, words in (("en_GB", "all 8 places are taken"), ("zh_CN", "8 个位置已占满")):
        monkeypatch.setenv("LANG", f"{language}.UTF-8")
        shown = call("queue", "--url", told.url).stdout
        assert words in shown and "e-1" in shown and "6.0 s" in shown
    assert called("queue", "--url", told.url) == QUEUE


def test_what_was_recorded_plays_again(told: Other, tmp_path: Path) -> None:
    file = tmp_path / "feed"
    done = called("record", str(file), "--url", told.url)
    assert done == {"file": str(file), "messages": len(NEWS)}
    assert [one for _, one in read(file)] == NEWS
    assert [gap_s for gap_s, _ in read(file)] == [0.0, 0.5]
    shown = call("top", "--recording", str(file)).stdout
    assert "restarting" in shown and "running 1 of 8" in shown
    called("record", str(file), "--url", told.url, code=2)
    assert [one for _, one in read(file)] == NEWS


def test_a_recording_has_a_largest_size(tmp_path: Path) -> None:
    file = tmp_path / "feed"
    number = write(({"at_s": float(n)} for n in range(10_000)), file, 1000)
    assert 10 < number < 100 and file.stat().st_size <= 1000
    assert len(list(read(file))) == number


@pytest.mark.parametrize(
    ("lines", "message"),
    [
        ([{"at_s": 1}], "is none of ours"),
        ([FORM, {"models": []}], "line 2: has no time"),
        ([FORM, {"at_s": True}], "line 2: has no time"),
        ([FORM, [1]], "line 2: is no JSON object"),
    ],
)
def test_a_file_that_is_no_recording_is_refused_by_its_line(
    tmp_path: Path, lines: list[Any], message: str
) -> None:
    file = tmp_path / "feed"
    file.write_text("".join(json.dumps(one) + "\n" for one in lines))
    with pytest.raises(InvalidRequest, match=message):
        list(read(file))
    assert message in call("top", "--recording", str(file), code=2).stderr


def test_the_page_needs_a_recording() -> None:
    assert "--recording" in call("top", "--page", code=2).stderr


def test_f_91_a_report_of_a_fault_has_what_is_needed_and_nothing_secret(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    monkeypatch.setenv("FIRSTHAND_API_KEY", "secret-0123456789")
    monkeypatch.setenv("HF_TOKEN", "secret-9876543210")
    found = called("collect-env")
    assert set(found) == {"firsthand", "machine", "python", "libraries", "programs"}
    assert found["firsthand"]["version"] and found["machine"]["cores"] > 0
    assert "FIRSTHAND_API_KEY" in found["firsthand"]["variables"]
    assert "secret" not in json.dumps(found)
    shown = call("collect-env").stdout
    assert "instruction set:" in shown and "secret" not in shown


@pytest.mark.skipif(shutil.which("promtool") is None, reason="needs promtool")
def test_files_that_somebody_has_changed_are_tried_as_they_are(tmp_path: Path) -> None:
    called("alerts", "export", str(tmp_path))
    assert called("alerts", "test", str(tmp_path))["passed"] is True
    rules = tmp_path / "firsthand.rules.yml"
    rules.write_text(rules.read_text().replace("FirsthandServiceDown", "FirsthandGone"))
    found = called("alerts", "test", str(tmp_path), code=3)
    assert {one["check"]: one["passed"] for one in found["checks"]}["cases"] is False
    called("alerts", "test", str(tmp_path / "nowhere"), code=2)
