"""`suffix` of `/v1/completions`: the answer belongs between two texts.

Owns: what the route makes of it, and what it refuses. May not know: which vocabularies can.
Read next: `tests/text/test_infill.py`.
"""

from __future__ import annotations

import json
from pathlib import Path
from typing import Any

import httpx
import pytest

from firsthand.cli.micro_model import write_micro_model
from firsthand.generation.llm import LLM
from firsthand.generation.load_options import LoadOptions
from firsthand.generation.service import ServiceOptions
from tests.server.conftest import Client, live_server

PATH = "/v1/completions"


def infill_model(folder: Path) -> Path:
    """The micro model, with three markers in the place of bytes that no text has."""
    write_micro_model(folder)
    path = folder / "tokenizer.json"
    content = json.loads(path.read_text())
    vocab = content["model"]["vocab"]
    content["model"]["vocab"] = {text: id_ for text, id_ in vocab.items() if not 253 <= id_ <= 255}
    content["added_tokens"] += [
        {"id": 253 + number, "content": f"<|fim_{word}|>", "special": False}
        for number, word in enumerate(("prefix", "suffix", "middle"))
    ]
    path.write_text(json.dumps(content))
    return folder


@pytest.mark.native
def test_it_is_the_prompt_of_ids_that_the_vocabulary_asks_for(tmp_path: Path) -> None:
    folder = infill_model(tmp_path)
    asked = {"temperature": 0, "max_tokens": 8, "ignore_eos": True, "return_token_ids": True}
    with live_server(ServiceOptions(folder, LoadOptions(threads=1), name="m")) as live:
        body: dict[str, Any] = {"prompt": ["ab", "<|fim_middle|>"], "suffix": "cd", **asked}
        reply = httpx.post(live.running.url + PATH, json=body, timeout=30).json()
        streamed = live.client.completions.create(
            model="m", prompt="ab", suffix="cd", temperature=0, max_tokens=8, stream=True,
            extra_body={"ignore_eos": True},
        )  # fmt: skip
        text = "".join(chunk.choices[0].text for chunk in streamed)
    first, second = reply["choices"]
    assert first["prompt_token_ids"] == [253, *b"ab", 254, *b"cd", 255]
    assert second["prompt_token_ids"] == [253, *b"<|fim_middle|>", 254, *b"cd", 255]
    assert text == first["text"]
    with LLM(folder, threads=1) as llm:
        ids = llm.tokenize_infill("ab", "cd")
        same = llm.generate(ids, temperature=0, max_tokens=8, ignore_end=True)
    assert list(same.token_ids) == first["token_ids"]


@pytest.mark.parametrize(
    ("more", "param"),
    [
        ({}, "suffix"),  # a model without the tokens
        ({"suffix": ""}, "suffix"),
        ({"suffix": 7}, "suffix"),
        ({"prompt": [1, 2]}, "suffix"),
        ({"prompt": [[1], [2]]}, "suffix"),
        ({"echo": True}, "echo"),
        ({"truncate_prompt_tokens": 3}, "truncate_prompt_tokens"),
    ],
)
def test_what_is_refused(ask: Client, more: dict[str, Any], param: str) -> None:
    reply = ask("POST", PATH, json={"prompt": "a", "suffix": "b", "max_tokens": 2, **more})
    assert (reply.status_code, reply.json()["error"]["param"]) == (400, param)


def test_null_is_no_suffix(ask: Client) -> None:
    assert ask("POST", PATH, json={"prompt": "a", "suffix": None}).status_code == 200
