"""Adapters of a real server: a name among the models, in the company of others.

Owns: proof that a request finds its adapter through the engine's process. May not know: how it is
computed. Read next: `tests/generation/test_adapters.py`.
"""

from __future__ import annotations

import threading
from collections.abc import Iterator
from concurrent.futures import ThreadPoolExecutor
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import httpx
import pytest

pytest.importorskip("safetensors")

from firsthand.cli.admin import ask_admin
from firsthand.cli.micro_model import write_micro_model
from firsthand.errors import InvalidRequest
from firsthand.generation.llm import LLM
from firsthand.server.settings import Settings
from tests.server.processes import Server, launched
from tests.weights.adapter_files import write_adapter

PROMPT = "The same beginning of sixteen bytes or more, "


@dataclass(frozen=True)
class Adapted:
    server: Server
    folder: Path

    def text(self, model: str) -> str:
        body = {"model": model, "prompt": PROMPT, "max_tokens": 12, "temperature": 0}
        url = self.server.url + "/v1/completions"
        answer = httpx.post(url, json=body | {"ignore_eos": True}, timeout=60)
        assert answer.status_code == 200, answer.text
        assert answer.json()["model"] == model
        return str(answer.json()["choices"][0]["text"])


@pytest.fixture(scope="module")
def adapted(tmp_path_factory: pytest.TempPathFactory) -> Iterator[Adapted]:
    folder = tmp_path_factory.mktemp("adapted")
    write_micro_model(folder)
    modules = [f"{name}={write_adapter(folder / name, seed=seed)}" for seed, name in NAMES]
    with launched(folder, str(folder), "--served-model-name", "micro", "--threads", "1",
                  "--enable-lora", "--lora-modules", ",".join(modules),
                  "--admin-socket", str(folder / "admin")) as server:  # fmt: skip
        server.wait_ready(60)
        yield Adapted(server, folder)


NAMES = ((1, "sql"), (2, "poem"))


@pytest.mark.native
@pytest.mark.process
def test_f_43_a_request_names_its_adapter_as_a_model(adapted: Adapted) -> None:
    """At once, and after each other in any order (the prompt's blocks are found again by requests
    of the same adapter only): each gets what it gets in a process of its own."""
    names = ["micro", *(name for _, name in NAMES)]
    lora = {name: str(adapted.folder / name) for _, name in NAMES}
    with LLM(adapted.folder, lora=lora, threads=1) as llm:
        options: Any = {"max_tokens": 12, "temperature": 0.0, "ignore_end": True}
        alone = {
            name: llm.generate(PROMPT, adapter="" if name == "micro" else name, **options).text
            for name in names
        }
    assert len(set(alone.values())) == 3
    with ThreadPoolExecutor(6) as pool:
        for name, text in zip(2 * names, pool.map(adapted.text, 2 * names), strict=True):
            assert text == alone[name]
    assert [adapted.text(name) for name in reversed(names)] == [alone[n] for n in reversed(names)]


@pytest.mark.native
@pytest.mark.process
def test_the_list_of_models_tells_whose_adapter_it_is(adapted: Adapted) -> None:
    cards = {
        card["id"]: card for card in httpx.get(adapted.server.url + "/v1/models").json()["data"]
    }
    assert {name: card["parent"] for name, card in cards.items()} == {
        "micro": None,
        "sql": "micro",
        "poem": "micro",
    }
    hashes = [card.get("firsthand_adapter_sha256") for card in cards.values()]
    assert hashes[0] is None
    assert hashes[1] != hashes[2]
    assert all(isinstance(one, str) and len(one) == 64 for one in hashes[1:])
    answer = httpx.post(
        adapted.server.url + "/v1/completions", json={"model": "rhyme", "prompt": "x"}
    )
    assert answer.status_code == 404
    assert answer.json()["error"]["code"] == "model_not_found"


@pytest.mark.native
@pytest.mark.process
def test_f_44_adapters_come_and_go_under_traffic(adapted: Adapted, tmp_path: Path) -> None:
    """Who is asked for meanwhile answers as ever; what cannot be loaded changes nothing."""
    third = Path(write_adapter(tmp_path / "third", seed=3))
    with LLM(adapted.folder, lora={"third": str(third)}, threads=1) as llm:
        alone = llm.generate(
            PROMPT, adapter="third", max_tokens=12, temperature=0.0, ignore_end=True
        ).text
    before = adapted.text("poem")
    admin = adapted.folder / "admin"
    over = threading.Event()

    def ask() -> set[str]:
        texts = set()
        while not over.is_set():
            texts.add(adapted.text("poem"))
        return texts

    with ThreadPoolExecutor(2) as pool:
        asking = [pool.submit(ask) for _ in range(2)]
        try:
            done = ask_admin(admin, "adapter", {"name": "third", "path": third})
            assert done["adapters"] == ["poem", "sql", "third"]
            assert adapted.text("third") == alone
            assert adapted.text("poem") == before
            for query, says in (
                ({"name": "third", "path": tmp_path / "absent"}, "absent"),
                ({"name": "micro", "path": third}, "something else is called 'micro'"),
                ({"name": "nobody"}, "has no adapter 'nobody'"),
                ({"name": "third", "path": "third"}, "from the root"),
            ):
                with pytest.raises(InvalidRequest, match=says):
                    ask_admin(admin, "adapter", query)
            assert adapted.text("third") == alone
            assert ask_admin(admin, "adapter", {"name": "third"})["adapters"] == ["poem", "sql"]
        finally:
            over.set()
        assert [one.result(60) for one in asking] == [{before}, {before}]
    url = adapted.server.url + "/v1/completions"
    assert httpx.post(url, json={"model": "third", "prompt": "x"}).status_code == 404


def test_two_things_of_one_name_are_refused(tmp_path: Path) -> None:
    from firsthand.server.model_entries import ModelEntry

    one = (ModelEntry("one"),)
    for settings in (
        {"model": one, "lora_modules": (("one", "x"),)},
        {"model": one, "served_model_name": ("sql",), "lora_modules": (("sql", "x"),)},
        {"model": (*one, ModelEntry("two")), "lora_modules": (("sql", "x"),)},
    ):
        with pytest.raises(InvalidRequest, match="lora_modules: more than one thing is called"):
            Settings(**settings)
    assert Settings(one, lora_modules=(("one", "x"),), enable_lora=False).adapters == {}
