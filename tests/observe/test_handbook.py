"""The handbook: an entry per alert, in two languages with the same commands, about real metrics."""

import re
from pathlib import Path

import pytest

from firsthand.observe.alert_settings import AlertSettings
from firsthand.observe.alerts import rules
from firsthand.observe.catalogue import CATALOGUE
from firsthand.observe.cause_texts import TEXTS
from firsthand.observe.causes import TESTS
from firsthand.server.chaos import FAULTS

FOLDER = Path("docs/handbook")
ENTRIES = sorted({rule.entry for rule in rules(AlertSettings(gpu_utilization=True))})
BLOCKS = re.compile(r"^```.*?^```", re.MULTILINE | re.DOTALL)
METRIC = re.compile(r"\bfirsthand_[a-z0-9_]+")


@pytest.mark.parametrize("entry", ENTRIES)
def test_an_entry_names_its_alerts_and_has_the_same_commands_in_both_languages(entry: str) -> None:
    english, chinese = (
        (FOLDER / f"{entry}{suffix}").read_text() for suffix in (".md", ".zh-CN.md")
    )
    for rule in rules(AlertSettings(gpu_utilization=True)):
        assert (f"`{rule.name}`" in english) == (rule.entry == entry)
        assert (f"`{rule.name}`" in chinese) == (rule.entry == entry)
    assert BLOCKS.findall(english) == BLOCKS.findall(chinese) != []
    assert english.count("\n- ") == chinese.count("\n- ")


@pytest.mark.parametrize("page", sorted(FOLDER.glob("FH-*.md")), ids=lambda page: page.name)
def test_an_entry_is_about_metrics_that_exist(page: Path) -> None:
    known = {entry.exposed for entry in CATALOGUE.values()}
    for name in METRIC.findall(page.read_text()):
        assert re.sub(r"_(bucket|count|sum)$", "", name) in known, name


def test_the_index_has_every_entry() -> None:
    for name, suffix in (("README.md", ".md"), ("README.zh-CN.md", ".zh-CN.md")):
        text = (FOLDER / name).read_text()
        assert re.findall(r"\((FH-\d+[^)]*)\)", text) == [f"{one}{suffix}" for one in ENTRIES]


@pytest.mark.parametrize("entry", ENTRIES)
def test_an_entry_says_what_the_doctor_tells_apart_and_how_to_try_it(entry: str) -> None:
    """S115: the same titles as on the terminal, in either language, and commands that there are."""
    causes = [text for text in TEXTS.values() if text.entry == entry]
    assert causes
    for suffix, language in ((".md", "en"), (".zh-CN.md", "zh")):
        page = (FOLDER / f"{entry}{suffix}").read_text(encoding="utf-8")
        titles = "\n".join(f"- {text.said(language)[0]}" for text in causes)
        assert f"```bash\nfirsthand doctor {entry}\n```\n\n{titles}\n" in page
        commands = re.findall(r"^firsthand chaos (\w+)(.*)$", page, re.MULTILINE)
        assert commands
        for fault, flags in commands:
            kind = FAULTS[fault]
            assert set(re.findall(r"--(\w+)", flags)) <= {"seconds", kind.unit}


def test_every_cause_has_words_and_an_entry() -> None:
    assert TESTS.keys() | {"unknown"} == TEXTS.keys()
    assert {text.entry for name, text in TEXTS.items() if name != "unknown"} == set(ENTRIES)
    for text in TEXTS.values():
        assert all(text.said("en")) and all(text.said("zh"))
        assert text.said("en") != text.said("zh")


def test_every_entry_and_every_fault_is_proven() -> None:
    """The fault in a server, its alert, the doctor, the remedy. FH-016's canaries are proven with
    releases, in tests/release."""
    proof = Path(__file__).with_name("test_handbook_live.py").read_text(encoding="utf-8")
    proven = set(re.findall(r"FH-\d{3}", proof))
    assert set(ENTRIES) - proven == {"FH-016"}
    assert len(proven) >= 12
    pages = "".join(page.read_text(encoding="utf-8") for page in FOLDER.glob("FH-???.md"))
    assert set(re.findall(r"^firsthand chaos (\w+)", pages, re.MULTILINE)) == set(FAULTS)
