"""The examples run as they stand, and their pages name each of them.

Owns: a small model in place of theirs, and a line that is cut between a client and its server.
May not know: what a model says. Read next: `examples/README.md`.
"""

from __future__ import annotations

import json
import re
import runpy
import shutil
import socket
import sys
import threading
from collections.abc import Iterator
from contextlib import closing, contextmanager
from pathlib import Path
from typing import Any

import pytest
from typer.testing import CliRunner

from examples import client, shortest_first
from firsthand.cli.main import build_app
from firsthand.cli.micro_model import VOCAB_SIZE, write_micro_model
from firsthand.errors import InvalidRequest
from firsthand.models.families import read_config
from tests.server.guarded import KEY, guarded

ROOT = Path(__file__).resolve().parents[1]
EXAMPLES = ROOT / "examples"
PAGES = ("README.md", "README.zh-CN.md")


@pytest.fixture(scope="module")
def model(tmp_path_factory: pytest.TempPathFactory) -> str:
    return str(write_micro_model(tmp_path_factory.mktemp("micro")))


def command(*arguments: str) -> str:
    done = CliRunner().invoke(build_app(), arguments)
    assert done.exit_code == 0, done.output
    return done.stdout


@pytest.mark.native
def test_chat(
    model: str, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    said = iter(("Hello!", "And now?", ""))
    monkeypatch.setattr("builtins.input", lambda prompt: next(said))
    monkeypatch.setattr(sys, "argv", ["chat.py", model])
    found = runpy.run_path(str(EXAMPLES / "chat.py"))
    roles = [message["role"] for message in found["messages"]]
    assert roles == ["user", "assistant"] * 2
    answers = [message["content"] for message in found["messages"][1::2]]
    assert capsys.readouterr().out == "".join(answer + "\n" for answer in answers)


@pytest.mark.native
def test_a_batch_job_and_a_contract(model: str, tmp_path: Path) -> None:
    folder = shutil.copytree(EXAMPLES / "tickets", tmp_path / "tickets")
    job = folder / "job.toml"
    text = job.read_text(encoding="utf-8")
    job.write_text(text.replace("smollm2-135m", model), encoding="utf-8")
    contract = f"{folder}/tickets.py:Ticket"
    said = ["data", "check", f"{folder}/tickets.csv", "--contract", contract, "--json"]
    checked = json.loads(command(*said))
    done = json.loads(command("data", "run", str(job), "--json"))
    for books in (checked, done):
        counts = [books[name] for name in ("read", "accepted", "quarantined", "duplicates")]
        assert counts == [7, 3, 3, 1]
    assert {reason.split()[0] for reason in done["reasons"]}
    lines = (folder / "answers.jsonl").read_text(encoding="utf-8").splitlines()
    assert [json.loads(line)["ticket_id"] for line in lines] == ["T-1", "T-2", "T-6"]


@pytest.mark.native
def test_a_scheduling_policy(model: str, capsys: pytest.CaptureFixture[str]) -> None:
    shortest_first.main(model)
    order = [int(line.split()[0]) for line in capsys.readouterr().out.splitlines()]
    assert order == [200, 5, 10, 20, 40]  # the first was alone when it came


@pytest.mark.parametrize(
    ("name", "words"),
    [
        ("nowhere.py:FAMILY", "cannot be loaded"),
        ("firsthand.models.llama:forward", "is no firsthand.models.family.Family"),
        ("firsthand.models.llama", "is not module:name"),
    ],
)
def test_a_family_that_is_none_is_refused(name: str, words: str) -> None:
    with pytest.raises(InvalidRequest, match=words):
        read_config({}, own=name)


@pytest.mark.oracle
@pytest.mark.torch
@pytest.mark.native
@pytest.mark.slow
def test_a_model_family(tmp_path: Path) -> None:
    """OLMo 2 by our example, against transformers."""
    torch, transformers = pytest.importorskip("torch"), pytest.importorskip("transformers")
    from firsthand.generation.llm import LLM
    from tests.models.tiny_families import COMMON

    torch.manual_seed(7)
    theirs = transformers.Olmo2ForCausalLM(transformers.Olmo2Config(**COMMON)).eval()
    with torch.no_grad():
        for name, values in theirs.named_parameters():
            is_gain = name.endswith("norm.weight")
            values.normal_(float(is_gain), 0.3 if is_gain else 1.5 * values.shape[-1] ** -0.5)
    write_micro_model(tmp_path)
    theirs.save_pretrained(tmp_path)
    prompt = [(7 * number) % (VOCAB_SIZE - 1) for number in range(40)]
    family = f"{EXAMPLES}/olmo2.py:FAMILY"
    with LLM(tmp_path, family=family, quantization="none", kv_dtype="float32", threads=1) as llm:
        ours = llm.generate(prompt, max_tokens=24, temperature=0, ignore_end=True)
        scored = llm.generate(prompt, max_tokens=0, prompt_logprobs=0).prompt_logprobs
    with torch.inference_mode():
        again = theirs.generate(
            torch.tensor([prompt]), max_new_tokens=24, do_sample=False, eos_token_id=None
        )
        logprobs = theirs(torch.tensor([prompt])).logits[0].log_softmax(-1)
    assert list(ours.token_ids) == again[0, len(prompt) :].tolist()
    assert scored is not None
    for position, entry in enumerate(scored[1:]):
        assert entry is not None
        expected = float(logprobs[position, prompt[position + 1]])
        assert entry.logprob == pytest.approx(expected, abs=1e-4)
    said = ["run", str(tmp_path), "Once", "--family", family, "--max-tokens", "4", "--json"]
    assert json.loads(command(*said))["usage"]["completion_tokens"] == 4


@contextmanager
def line_cut_once(port: int) -> Iterator[str]:
    """The address of a relay to `port` that loses the first reply, when it was given."""
    listener = socket.create_server(("127.0.0.1", 0))

    def relay() -> None:
        for number in range(2):
            near, _ = listener.accept()
            with near, socket.create_connection(("127.0.0.1", port)) as far:
                far.settimeout(10)
                far.sendall(_message(near))
                reply = _message(far)
                if number:
                    near.sendall(reply)

    thread = threading.Thread(target=relay, daemon=True)
    thread.start()
    with closing(listener):
        yield f"http://127.0.0.1:{listener.getsockname()[1]}"
        thread.join(20)


def _message(opened: socket.socket) -> bytes:
    """A head, and the body that it announces."""
    found = b""
    while b"\r\n\r\n" not in found:
        found += opened.recv(65536)
    head, _, body = found.partition(b"\r\n\r\n")
    length = re.search(rb"content-length: (\d+)", head, re.IGNORECASE)
    assert length is not None
    while len(body) < int(length[1]):
        body += opened.recv(65536)
    return head + b"\r\n\r\n" + body


def test_a_client_that_lost_the_reply_pays_once(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr("examples.client.random.uniform", lambda low, high: low)
    body: dict[str, Any] = {"messages": [{"role": "user", "content": "hi"}], "max_tokens": 8}
    with guarded() as server, line_cut_once(server.port) as url:
        reply = client.ask(url, body, KEY)
        assert reply["choices"][0]["message"]["content"] == "Hello"
        assert len(server.service.streams) == 1  # computed once, though asked twice


def test_a_client_does_not_repeat_what_is_refused() -> None:
    with guarded() as server, pytest.raises(RuntimeError, match="401"):
        client.ask(f"http://127.0.0.1:{server.port}", {"messages": []}, "another-key-0123456")


def test_the_pages_name_each_example_alike() -> None:
    files = {path.relative_to(EXAMPLES).as_posix() for path in EXAMPLES.rglob("*.py")}
    english, chinese = ((EXAMPLES / name).read_text(encoding="utf-8") for name in PAGES)
    for page in (english, chinese):
        assert files | {"tickets/job.toml"} == set(re.findall(r"^\| \[([\w./]+)\]", page, re.M))
        for link in re.findall(r"\]\(([\w./-]+)\)", page):
            assert (EXAMPLES / link).exists(), link
    assert re.findall(r"`[^`]+`", english) == re.findall(r"`[^`]+`", chinese)
