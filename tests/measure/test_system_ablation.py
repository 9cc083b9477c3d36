"""One variable at a time over the whole system, and its page."""

from __future__ import annotations

import json
import re
from html.parser import HTMLParser
from pathlib import Path
from typing import Any

import pytest
from typer.testing import CliRunner

from firsthand.cli.ablate import _profiles
from firsthand.cli.main import build_app
from firsthand.cli.micro_model import write_micro_model
from firsthand.errors import ContextLengthExceeded, InvalidRequest
from firsthand.generation.load_options import LoadOptions
from firsthand.measure import system_ablation
from firsthand.measure.ablation_page import ABOUT, COLOURS, NAMES, page_of
from firsthand.measure.system_ablation import (
    LESS_IS_BETTER,
    VARIABLES,
    SystemOutcome,
    Work,
    ablate_system,
    system_variations,
)

pytestmark = pytest.mark.native
PROFILES = {"quick": {"max_sequences": 2, "max_batch_wait_s": 0.001}}
SMALL = Work(3, 8, 4)


@pytest.fixture(scope="module")
def model(tmp_path_factory: pytest.TempPathFactory) -> str:
    return str(write_micro_model(tmp_path_factory.mktemp("micro")))


@pytest.fixture(autouse=True)
def few_texts(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(system_ablation, "NUM_TEXTS", 3)


def test_s47_variations_change_one_thing_at_a_time() -> None:
    base = LoadOptions(max_sequences=16)
    found = system_variations(base, PROFILES)
    assert list(dict.fromkeys(one.variable for one in found)) == list(VARIABLES)
    for one in found:
        names = {n for n in LoadOptions.__slots__ if getattr(one.options, n) != getattr(base, n)}
        if one.variable == "window":
            assert names == {"max_batch_wait_s", "min_batch_size"}
        elif one.variable == "profile":
            assert names == {"max_sequences", "max_batch_wait_s"}
        else:
            assert len(names) == (one.variable != "base"), one
    contiguous = LoadOptions(kv_store="contiguous", prefix_cache=False)
    assert "block" not in {one.variable for one in system_variations(contiguous, {})}


def test_the_profiles_are_the_servers() -> None:
    found = _profiles()
    assert set(found) == {"latency", "balanced", "throughput"}
    assert found["throughput"]["max_sequences"] == 128


def test_each_variable_is_measured_beside_the_base(model: str) -> None:
    begun: list[str] = []
    base = LoadOptions(threads=1, max_sequences=4)
    found = list(
        ablate_system(
            model,
            base,
            PROFILES,
            SMALL,
            1,
            lambda one: begun.append(one.variable),
            only=["batch", "window", "prefix", "profile"],
        )
    )
    assert [one.variable for one in found] == begun
    assert set(begun) == {"batch", "window", "prefix", "profile", "base"}
    for one in found:
        texts, answers = "text_ms" in one.ratios, "ttft_ms" in one.ratios
        assert texts == (one.variable in ("window", "profile", "base"))
        assert answers == (one.variable != "window")
        assert all(ratio > 0 for ratio in one.ratios.values())
        assert one.ratios.keys() == one.values.keys() == one.base_values.keys()
    assert json.loads(json.dumps(found[0].to_dict()))["variable"] == "batch"


def test_less_time_and_more_tokens_are_both_better(
    model: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Base 10 beside 20 of each: twice the tokens is 2, twice the time a half."""
    values = iter([1.0, 1.0, 10.0, 20.0, 10.0, 20.0, 1000.0, 1.0] * 50)

    def ran(*_: object) -> dict[str, float]:
        value = next(values)
        return {"tokens_per_second": value, "ttft_ms": value}

    monkeypatch.setattr(system_ablation, "run_answers", ran)
    (first, _) = ablate_system(
        model, LoadOptions(threads=1, max_sequences=1), {}, SMALL, 3, only=["scheduler"]
    )
    assert first.ratios == {"tokens_per_second": 2.0, "ttft_ms": 0.5}
    assert first.values["ttft_ms"] == 20


def test_it_refuses_by_name(model: str) -> None:
    base = LoadOptions(threads=1)
    with pytest.raises(InvalidRequest, match=r"only.*colour"):
        next(ablate_system(model, base, {}, SMALL, 1, only=["colour"]))
    with pytest.raises(ContextLengthExceeded, match="prompt_tokens"):
        next(ablate_system(model, base, {}, Work(2, 99_999, 4), 1))
    with pytest.raises(InvalidRequest, match="num_requests"):
        Work(1)


class Page(HTMLParser):
    """Every tag opened is closed, and nothing comes from elsewhere."""

    def __init__(self) -> None:
        super().__init__()
        self.open: list[str] = []
        self.foreign: list[str] = []
        self.count: dict[str, int] = {}

    def handle_starttag(self, tag: str, attrs: list[tuple[str, str | None]]) -> None:
        self.count[tag] = self.count.get(tag, 0) + 1
        if tag not in ("meta", "rect", "line"):
            self.open.append(tag)
        self.foreign += [name for name, _ in attrs if name in ("src", "href", "onload")]

    def handle_startendtag(self, tag: str, attrs: list[tuple[str, str | None]]) -> None:
        self.count[tag] = self.count.get(tag, 0) + 1

    def handle_endtag(self, tag: str) -> None:
        assert self.open.pop() == tag


def outcome(variable: str, value: str, **ratios: float) -> SystemOutcome:
    return SystemOutcome(variable, value, ratios, ratios, ratios)


def test_the_page_stands_alone_and_shows_every_ratio() -> None:
    found = [
        outcome("batch", "<1>", tokens_per_second=0.25, ttft_ms=0.5, p95_answer_ms=1.0),
        outcome("batch", "32", tokens_per_second=2.0, ttft_ms=1.5, p95_answer_ms=1.1),
        outcome("window", "0.05", text_ms=0.9, texts_per_second=1.0),
        outcome("base", "again", tokens_per_second=1.04, ttft_ms=0.9, p95_answer_ms=1.0),
    ]
    page = page_of("a & b", ["so many"], found)
    read = Page()
    read.feed(page)
    assert read.open == []
    assert read.foreign == []
    assert (read.count["svg"], read.count["table"], read.count["h2"]) == (3, 3, 3)
    assert "a &amp; b" in page
    assert "&lt;1&gt;" in page
    assert "script" not in page
    assert len(page) < 20_000
    bars = [float(x) for x in re.findall(r'width="([\d.]+)" height="9"', page)]
    assert len(bars) == 11
    # A quarter is twice as far from 1 as a half.
    assert bars[0] == pytest.approx(2 * bars[1], rel=0.01)
    assert bars[3] == pytest.approx(bars[1], rel=0.01), "half and twice are equally far"


def test_every_variable_and_figure_has_its_words() -> None:
    assert set(ABOUT) == set(VARIABLES)
    assert set(NAMES) == set(COLOURS) == set(LESS_IS_BETTER)


def called(*arguments: str, code: int = 0) -> Any:
    done = CliRunner().invoke(build_app("bench"), [*arguments, "--json"])
    assert done.exit_code == code, done.output
    return json.loads(done.stdout)


def test_bench_ablate_system_writes_its_page(model: str, tmp_path: Path) -> None:
    page = tmp_path / "page.html"
    sizes = ("--prompt-tokens", "8", "--output-tokens", "4", "--num-requests", "3")
    given = ("bench", "ablate", model, "--system", "--repeats", "1", "--threads", "1", *sizes)
    found = called(*given, "--only", "layout", "--report-out", str(page))["outcomes"]
    assert [one["variable"] for one in found] == ["layout", "base"]
    assert "layout" in page.read_text(encoding="utf-8")
    shown = CliRunner().invoke(build_app("bench"), [*given, "--only", "layout"]).stdout
    assert "tokens_per_second" in shown
    assert "█" in shown


@pytest.mark.parametrize(
    ("more", "field"),
    [
        (("--report-out", "page.html"), "report_out"),
        (("--system", "--report-out", "page.pdf"), "report_out"),
        (("--system", "--report-out", "no/such/folder/page.html"), "report_out"),
        (("--system", "--plot-out", "x.svg"), "plot_out"),
        (("--system", "--num-requests", "1"), "num_requests"),
        (("--num-requests", "9"), "num_requests"),
        (("--system", "--only", "rule"), "only"),
    ],
)
def test_a_bad_value_is_named_and_is_2(model: str, more: tuple[str, ...], field: str) -> None:
    assert field in called("bench", "ablate", model, *more, code=2)["error"]["message"]
