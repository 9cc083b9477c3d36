"""Each command on the generated model: what it prints, and that `--json` is one line."""

from __future__ import annotations

import json
from pathlib import Path
from typing import Any

import pytest
from typer.testing import CliRunner, Result

from firsthand.cli.main import build_app
from firsthand.cli.micro import NUM_LAYERS, VOCAB_SIZE, write_micro_model

pytestmark = pytest.mark.native


@pytest.fixture(scope="module")
def model(tmp_path_factory: pytest.TempPathFactory) -> str:
    return str(write_micro_model(tmp_path_factory.mktemp("micro")))


def call(*arguments: str, stdin: str | bytes | None = None, code: int = 0) -> Result:
    shown = CliRunner().invoke(build_app(), arguments, input=stdin)
    assert shown.exit_code == code, shown.output
    return shown


def called(*arguments: str, stdin: str | bytes | None = None, code: int = 0) -> dict[str, Any]:
    """What a command prints with --json: one line, one object."""
    shown = call(*arguments, "--json", stdin=stdin, code=code)
    (line,) = shown.stdout.splitlines()
    value = json.loads(line)
    assert isinstance(value, dict)
    return value


GREEDY = ("--temperature", "0", "--max-tokens", "6", "--ignore-end")


def test_run_says_everything_in_json(model: str) -> None:
    done = called("run", model, "Hello", *GREEDY, "--logprobs", "2", "--seed", "5")
    assert {"model", "text", "token_ids", "finish_reason", "usage", "timings", "seed"} <= set(done)
    assert (done["model"], done["seed"], done["finish_reason"]) == (model, 5, "length")
    assert len(done["token_ids"]) == done["usage"]["completion_tokens"] == 6
    assert done["usage"]["prompt_tokens"] == 5
    assert {"load_ms", "prompt_ms", "predicted_ms"} <= set(done["timings"])
    assert [len(entry["top"]) for entry in done["logprobs"]] == [2] * 6


def test_run_prints_the_text_that_json_has(model: str) -> None:
    text = called("run", model, "Hello", *GREEDY)["text"]
    assert call("run", model, "Hello", *GREEDY).stdout.rstrip("\n") == text.rstrip("\n")


@pytest.mark.parametrize("argument", [[], ["-"]])
def test_the_prompt_may_come_through_a_pipe(model: str, argument: list[str]) -> None:
    whole = called("run", model, "Hello", *GREEDY)
    piped = called("run", model, *argument, *GREEDY, stdin="Hello\n")
    assert piped["token_ids"] == whole["token_ids"]


def test_an_end_token_is_in_the_ids_and_not_in_the_text(model: str) -> None:
    end = VOCAB_SIZE - 1
    done = called("run", model, "Hello", "--logit-bias", f"{end}=100", "--temperature", "0")
    assert (done["token_ids"], done["text"], done["finish_reason"]) == ([end], "", "end_token")
    assert done["usage"]["completion_tokens"] == 1


def test_chat_applies_the_template(model: str) -> None:
    plain = called("run", model, "Hello", *GREEDY)
    chat = called("run", model, "Hello", "--chat", "--system", "Be kind.", *GREEDY)
    extra = "system: Be kind.\nuser: \nassistant: "
    assert chat["usage"]["prompt_tokens"] == plain["usage"]["prompt_tokens"] + len(extra)


def test_the_report_has_times_memory_and_shapes(model: str) -> None:
    shown = call("run", model, "Hello", *GREEDY, "--report")
    for word in ("load", "tokenise", "prompt", "output", "sample", "detokenise", "tok/s"):
        assert word in shown.stderr
    for word in ("memory", "weights", "KV", "scratch", "linear", "5 × 64"):
        assert word in shown.stderr
    assert "memory" not in shown.stdout
    step = called("run", model, "Hello", *GREEDY, "--report")["step"]
    assert step[0]["name"] == "embed"
    assert step[0]["shape"] == [5, 64]


@pytest.mark.parametrize(
    ("option", "value"),
    [
        ("--temperature", "-1"),
        ("--top-p", "0"),
        ("--top-k", "-1"),
        ("--min-p", "1.5"),
        ("--max-tokens", "0"),
        ("--repetition-penalty", "0"),
        ("--presence-penalty", "3"),
        ("--frequency-penalty", "nan"),
        ("--logit-bias", "x"),
        ("--seed", "-1"),
        ("--logprobs", "21"),
        ("--executor", "abacus"),
        ("--quantization", "int3"),
        ("--kv-dtype", "int8"),
        ("--threads", "0"),
        ("--max-context", "0"),
        ("--device", "cuda"),
        ("--disable-rule", "no-such"),
        ("--system", "without --chat"),
    ],
)
def test_a_bad_value_is_named_and_is_2(model: str, option: str, value: str) -> None:
    said = called("run", model, "Hello", option, value, code=2)["error"]
    assert said["type"] == "InvalidRequest"
    assert option.removeprefix("--").replace("-", "_") in said["message"]


def test_a_prompt_that_is_not_utf_8_is_refused(model: str) -> None:
    assert "UTF-8" in called("run", model, stdin=b"\xff\xfe", code=2)["error"]["message"]


def test_an_unknown_model_is_4() -> None:
    said = called("run", "no-such-model", "Hello", code=4)["error"]
    assert said["type"] == "ModelNotFound"


def test_a_prompt_longer_than_the_context_is_2(model: str) -> None:
    said = called("run", model, "x" * 600, code=2)["error"]
    assert said["type"] == "ContextLengthExceeded"


def test_chat_keeps_the_conversation_until_reset(model: str) -> None:
    options = ("--max-tokens", "4", "--temperature", "0", "--ignore-end", "--report")
    shown = call("chat", model, *options, stdin="one\ntwo\n/reset\none\n/bye\nlost\n")
    prompts = [
        int(line.split()[3]) for line in shown.stderr.splitlines() if line.startswith("tokenise")
    ]
    assert len(prompts) == 3
    assert prompts[0] == prompts[2] < prompts[1]


def test_chat_goes_on_after_a_refused_message(model: str) -> None:
    options = ("--max-tokens", "4", "--temperature", "0", "--ignore-end", "--report")
    shown = call("chat", model, *options, stdin="x" * 600 + "\none\n")
    assert "error: " in shown.stderr
    assert shown.stderr.count("tok/s") >= 1


def test_tokenize(model: str) -> None:
    done = called("tokenize", model, "Hé")
    assert [token["id"] for token in done["tokens"]] == list("Hé".encode())
    assert done["num_tokens"] == 3
    assert called("tokenize", model, stdin="Hé\n")["tokens"] == done["tokens"]
    marked = called("tokenize", model, "<|end|>", "--special")
    assert [token["id"] for token in marked["tokens"]] == [VOCAB_SIZE - 1]
    assert called("tokenize", model, "<|end|>")["num_tokens"] == len("<|end|>")


def test_inspect(model: str) -> None:
    done = called("inspect", model, "--tensors", "--plan")
    assert done["spec"]["num_layers"] == NUM_LAYERS
    assert done["problem"] is None
    assert done["num_tensors"] == len(done["tensors"]) == 2 + 9 * NUM_LAYERS
    (shared,) = done["shared"]
    assert shared["name"] == "lm_head.weight"
    assert done["saved_bytes"] == shared["saved_bytes"] == 4 * VOCAB_SIZE * 64
    assert done["tokenizer"]["chat_template"] is True
    assert len(done["plan"]["after"]) < len(done["plan"]["before"])
    assert {rule["applied"] for rule in done["plan"]["rules"]} == {True}
    shown = call("inspect", model, "--tensors", "--plan").stdout
    for word in ("llama", "F32", "lm_head.weight", "KV", "plan before", "plan after"):
        assert word in shown


def test_a_rule_that_is_left_out_stays_out(model: str) -> None:
    rule = "residual"
    done = called("inspect", model, "--plan", "--disable-rule", rule)["plan"]
    assert [each["name"] for each in done["rules"] if not each["applied"]] == [rule]
    assert any(" = add(" in line for line in done["after"])
    assert called("inspect", model, "--plan", "--disable-rule", "x", code=2)["error"]


def test_inspect_shows_what_cannot_be_run(model: str, tmp_path: Path) -> None:
    for file in Path(model).iterdir():
        (tmp_path / file.name).write_bytes(file.read_bytes())
    config = json.loads((tmp_path / "config.json").read_text(encoding="utf-8"))
    changed = json.dumps(config | {"architectures": ["NovelForCausalLM"]})
    (tmp_path / "config.json").write_text(changed, encoding="utf-8")
    done = called("inspect", str(tmp_path))
    assert done["architecture"] == "NovelForCausalLM"
    assert "NovelForCausalLM" in done["problem"]
    assert "cannot run" in call("inspect", str(tmp_path)).stdout


@pytest.mark.parametrize("step", ["prompt", "token"])
def test_trace_step(model: str, step: str) -> None:
    done = called("trace-step", model, "Hello", "--step", step)
    rows = 5 if step == "prompt" else 1
    assert done["operators"][0]["shape"] == [rows, 64]
    assert done["operators"][-1]["shape"] == [1, VOCAB_SIZE]
    assert done["total_ms"] >= max(op["ms"] for op in done["operators"])
    assert "head" in call("trace-step", model, "Hello", "--step", step).stdout


def test_trace_step_knows_two_steps(model: str) -> None:
    assert "step" in called("trace-step", model, "--step", "other", code=2)["error"]["message"]


def test_selftest_passes() -> None:
    done = called("selftest")
    assert done["passed"] is True
    assert len(done["checks"]) >= 10


def test_selftest_can_fail(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr("firsthand.cli.check._equal", lambda *_: (False, "other bits"))
    done = called("selftest", code=3)
    assert done["passed"] is False


@pytest.mark.model
def test_inspect_the_real_models(smollm2_path: Path, gemma3_path: Path) -> None:
    smollm2 = called("inspect", str(smollm2_path))
    assert {row["kind"]: row["num_tensors"] for row in smollm2["kinds"]} == {
        "Q4_1": 210,
        "F32": 61,
        "Q8_0": 1,
    }
    assert smollm2["problem"] is None
    gemma3 = called("inspect", str(gemma3_path))
    assert (gemma3["architecture"], gemma3["spec"]) == ("gemma3", None)
    assert "gemma3" in gemma3["problem"]
