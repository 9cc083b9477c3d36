"""Each command on the generated model: what it prints, and that `--json` is one line."""

from __future__ import annotations

import json
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any

import pytest
from typer.testing import CliRunner, Result

from firsthand.cli.main import build_app
from firsthand.cli.micro_model import NUM_LAYERS, VOCAB_SIZE, write_micro_model
from firsthand.cli.properties import Check, run_checks
from firsthand.engine.worker import EventStream
from firsthand.evaluate.parity import PROPERTIES
from firsthand.evaluate.transcript import Difference
from firsthand.generation import LLM
from firsthand.generation.llm import Messages
from firsthand.request import TokenEvent

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


def test_plan_shows_the_budget_and_refuses_with_numbers(model: str) -> None:
    budget = called("plan", model, "--memory-limit", "1GiB", "--kv-dtype", "int8")["budget"]
    assert (budget["limit_bytes"], budget["estimated"]) == (2**30, True)
    assert budget["kv_bytes_per_token"] == 2 * 2 * 2 * (16 + 4)
    shown = call("plan", model, "--memory-limit", "1G").output
    assert "2 layers × 2 heads × 2 × (16 × 2 + 4) bytes = 288 B" in shown
    assert "KV cache" in shown
    assert "KV cache" in call("plan", "memory", model).output
    advice = called("plan", "load", model, "--requests-per-hour", "0.1")
    assert (advice["load"], advice["table"]) == ("lazy", "whole")
    assert "--load whole" in call("plan", "load", model).output
    said = called("plan", model, "--memory-limit", "1MiB", code=5)["error"]
    assert said["type"] == "CapacityExceeded"
    assert "are needed and the limit is 1.0 MiB (as given)" in said["message"]


def test_the_page_names_every_key_of_run(model: str) -> None:
    page = (Path(__file__).resolve().parents[2] / "docs" / "cli.md").read_text(encoding="utf-8")
    done = called("run", model, "Hello", *GREEDY, "--report")
    assert [key for key in (*done, *done["usage"]) if f"`{key}`" not in page] == []


def test_run_with_guesses_gives_the_same_tokens(
    model: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    """By flag or variable; `adaptive` off, so that no clock decides whether any are computed."""
    given = ("run", model, "abc abc", "--max-tokens", "60", "--temperature", "0", "--ignore-end")
    text = '{"method": "ngram", "prompt_lookup_min": 1, "adaptive": false}'
    plain, guessed = called(*given), called(*given, "--speculative-config", text)
    assert guessed["token_ids"] == plain["token_ids"]
    assert guessed["timings"]["draft_n"] >= guessed["timings"]["draft_n_accepted"] > 0
    assert "draft_n" not in plain["timings"]
    assert "of them right" in call(*given, "--report", "--speculative-config", text).output
    monkeypatch.setenv("FIRSTHAND_SPECULATIVE_CONFIG", text)
    assert called(*given)["timings"]["draft_n_accepted"] == guessed["timings"]["draft_n_accepted"]
    wrong = called(*given, "--speculative-config", '{"method": "x"}', code=2)["error"]
    assert wrong["message"].startswith("speculative_config.method: must be one of")


def test_run_gives_several_answers(model: str) -> None:
    given = ("run", model, "Hello", "--max-tokens", "6", "--ignore-end", "--seed", "5", "-n", "3")
    answers = called(*given)["answers"]
    assert [(done["index"], done["seed"]) for done in answers] == [(0, 5), (1, 6), (2, 7)]
    alone = called(*given[:-3], "7")
    assert answers[2]["token_ids"] == alone["token_ids"]
    shown = call(*given)
    assert shown.stdout.count(answers[1]["text"].rstrip("\n")) >= 1
    assert "answer 3 of 3, seed 7" in shown.stderr
    assert "n: " in called(*given[:-1], "0", code=2)["error"]["message"]


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
    for word in ("load", "tokenize", "prompt", "output", "sample", "detokenize", "tok/s"):
        assert word in shown.stderr
    for word in ("memory", "weights", "KV", "scratch", "linear", "5 × 64"):
        assert word in shown.stderr
    assert "memory" not in shown.stdout
    for words in (
        "peak resident memory",
        " × int8/",
        " × float32",
        "ended     length (6), seed ",
    ):
        assert words in shown.stderr
    assert "10 tokens used of 512; reserved: " in shown.stderr
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
        ("--kv-dtype", "int7"),
        ("--threads", "0"),
        ("--max-context", "0"),
        ("--device", "cuda"),
        ("--disable-rule", "no-such"),
        ("--attention", "fast"),
        ("--system", "without --chat"),
    ],
)
def test_a_bad_value_is_named_and_is_2(model: str, option: str, value: str) -> None:
    said = called("run", model, "Hello", option, value, code=2)["error"]
    assert said["type"] == "InvalidRequest"
    name = "disabled_rules" if option == "--disable-rule" else option[2:].replace("-", "_")
    assert name in said["message"]


@pytest.mark.parametrize("command", ["run", "chat"])
@pytest.mark.parametrize("option", ["--temperature=-1", "--logit-bias=x", "--stop=\udcff"])
def test_an_option_is_checked_before_the_model_is_loaded(
    model: str, command: str, option: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr("firsthand.cli.generate.open_llm", lambda *_: pytest.fail("loaded"))
    text = [] if command == "chat" else ["Hello"]
    call(command, model, *text, option, code=2)


@pytest.mark.parametrize(
    ("command", "arguments"),
    [("run", ["\udcff"]), ("tokenize", ["\udcff"]), ("run", ["x", "--chat", "--system", "\udcff"])],
)
def test_an_argument_that_is_not_utf_8_is_named(
    model: str, command: str, arguments: list[str]
) -> None:
    said = called(command, model, *arguments, code=2)["error"]["message"]
    assert said.endswith(": the argument is not valid UTF-8")


def test_why_a_text_ended_is_told_unless_it_was_meant_to(model: str) -> None:
    assert "(stopped: max_tokens 6 reached)" in call("run", model, "Hello", *GREEDY).stderr
    long = ("--max-context", "12", "--ignore-end", "--max-tokens", "99")
    assert "(stopped: the context of 12 tokens is full)" in call("run", model, "Hi", *long).stderr
    end = ("--logit-bias", f"{VOCAB_SIZE - 1}=100", "--temperature", "0")
    assert "stopped" not in call("run", model, "Hello", *end).stderr
    same = ("--logit-bias", "65=100", "--temperature", "0", "--repetition-guard")
    assert "(stopped: the same tokens" in call("run", model, "Hello", *same).stderr
    assert "(stopped: max_tokens 6 reached)" in call("chat", model, *GREEDY, stdin="a\n").stderr
    assert "stopped" not in call("run", model, "Hello", *GREEDY, "--json").stderr


def test_a_context_beyond_the_models_is_told(model: str) -> None:
    asked = ("--max-context", "513")
    note = "max_context 513 is beyond the model's; it is 512"
    assert note in call("run", model, "Hello", *GREEDY, *asked).stderr
    assert note in call("inspect", model, *asked).stderr
    assert "max_context" not in call("inspect", model, "--max-context", "512").stderr


def test_logprobs_are_not_dropped_in_silence(model: str) -> None:
    """The text has no place for them."""
    assert "--json" in call("run", model, "Hello", "--logprobs", "2", code=2).stderr


def test_the_prompt_is_tokenized_again_only_for_the_report(
    model: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    """A --chat run renders once; the traced step of --report needs the ids a second time."""
    rendered = []

    def counted(llm: LLM, messages: Messages) -> list[int]:
        rendered.append(messages)
        return tokenize_chat(llm, messages)

    tokenize_chat = LLM.tokenize_chat
    monkeypatch.setattr(LLM, "tokenize_chat", counted)
    call("run", model, "Hello", "--chat", *GREEDY)
    assert len(rendered) == 1
    call("run", model, "Hello", "--chat", *GREEDY, "--report")
    assert len(rendered) == 3


def test_a_suffix_wants_a_model_that_can_fill_in(model: str) -> None:
    error = called("run", model, "a", "--suffix", "b", code=2)["error"]
    assert "no tokens for filling in" in error["message"]
    error = called("run", model, "a", "--suffix", "b", "--chat", code=2)["error"]
    assert "not with --chat" in error["message"]


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
        int(line.split()[3]) for line in shown.stderr.splitlines() if line.startswith("tokenize")
    ]
    assert len(prompts) == 3
    assert prompts[0] == prompts[2] < prompts[1]


def test_chat_knows_its_commands(model: str) -> None:
    """A path is a message like any other."""
    shown = call("chat", model, *GREEDY, stdin="/rest\n/reset now\n/etc/hosts\n/bye\nlost\n")
    assert "unknown command /rest; there are /reset and /bye" in shown.stderr
    assert shown.stderr.count("unknown command") == 2
    assert shown.stderr.count("max_tokens 6 reached") == 1


def test_chat_goes_on_after_a_refused_message(model: str) -> None:
    options = ("--max-tokens", "4", "--temperature", "0", "--ignore-end", "--report")
    shown = call("chat", model, *options, stdin="x" * 600 + "\none\n", code=2)
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
    assert done["tokenizer"]["has_chat_template"] is True
    assert len(done["plan"]["after"]) < len(done["plan"]["before"])
    assert {rule["applied"] for rule in done["plan"]["rules"]} == {True}
    shown = call("inspect", model, "--tensors", "--plan").stdout
    for word in ("llama", "F32", "lm_head.weight", "KV", "plan before", "plan after"):
        assert word in shown
    assert done["shared"][0]["is"] == "model.embed_tokens.weight"
    assert done["memory"]["kv_bytes"] == 512 * done["memory"]["kv_bytes_per_token"]


def test_a_rule_that_is_left_out_stays_out(model: str) -> None:
    rule = "residual"
    done = called("inspect", model, "--plan", "--disable-rule", rule)["plan"]
    assert [each["name"] for each in done["rules"] if not each["applied"]] == [rule]
    assert any(" = add(" in line for line in done["after"])
    assert called("inspect", model, "--plan", "--disable-rule", "x", code=2)["error"]
    for options in (["--disable-rule", rule], ["--all-layers"]):
        assert "--plan" in called("inspect", model, *options, code=2)["error"]["message"]


def test_layers_that_are_alike_are_shown_once(model: str) -> None:
    short = call("inspect", model, "--plan").stdout
    whole = call("inspect", model, "--plan", "--all-layers").stdout
    assert short.count("alike") == 2
    assert "alike" not in whole
    assert "layers.1." in whole
    assert "layers.1." not in short
    assert "logits = head(" in short


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
    assert called("inspect", str(tmp_path), "--plan", "--disable-rule", "x", code=2)["error"]


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
    found = Difference("a request", 3, "logit 7", "1.0", "2.0")
    monkeypatch.setattr("firsthand.evaluate.transcript.differing_row", lambda *_: found)
    done = called("selftest", code=3)
    assert done["passed"] is False
    assert [check["seen"] for check in done["checks"] if not check["passed"]] == [str(found)]


def test_verify_proves_every_property(model: str) -> None:
    done = called("verify", model)
    assert done["passed"] is True
    assert [one["name"] for one in done["properties"]] == list(PROPERTIES)
    assert done["num_logits"] == sum(one["num_logits"] for one in done["properties"]) > 500_000
    shown = call("verify", model, "--only", "threads")
    assert "equal bits: " in shown.stdout
    assert "any number of threads: ok" in shown.stderr


def test_s38_f53_a_sum_that_depends_on_the_batch_is_found(model: str) -> None:
    done = called("verify", model, "--batch-parity", "--sabotage", "split-by-batch", code=3)
    assert [one["passed"] for one in done["properties"]] == [True, False]
    found = done["properties"][-1]["difference"]
    assert found["expected"] != found["got"]
    assert found["request"].startswith("request 0")
    shown = call("verify", model, "--batch-parity", "--sabotage", "split-by-batch", code=3)
    assert f"position {found['position']}: {found['what']}" in shown.stdout
    assert called("verify", model, "--batch-parity")["passed"] is True


@pytest.mark.parametrize(
    "given",
    [
        ["--sabotage", "other"],
        ["--only", "other"],
        ["--only", "store", "--batch-parity"],
        ["--kv-store", "contiguous"],
        ["--no-prefix-cache"],
        ["--executor", "torch", "--only", "threads"],
        ["--max-context", "64"],
    ],
)
def test_verify_refuses_by_name(model: str, given: list[str]) -> None:
    assert called("verify", model, *given, code=2)["error"]["type"] == "InvalidRequest"


@pytest.mark.parametrize("at", [1, 40, 80, 130, 170])
def test_an_interrupted_selftest_is_no_failed_check(
    monkeypatch: pytest.MonkeyPatch, at: int
) -> None:
    """Ctrl-C while a token is waited for ends a completion with reason CANCELLED."""
    waits = iter(range(1_000_000))

    def interrupted(stream: EventStream) -> TokenEvent:
        if next(waits) == at:
            raise KeyboardInterrupt
        return next_event(stream)

    next_event = EventStream.__next__
    monkeypatch.setattr(EventStream, "__next__", interrupted)
    assert CliRunner().invoke(build_app(), ["selftest"]).exit_code == 130


def test_a_check_that_was_left_out_has_not_passed(monkeypatch: pytest.MonkeyPatch) -> None:
    def two_checks(model: Path) -> Iterator[Check]:
        yield Check("one", True, "seen", 1.0)
        yield Check("torch", None, "not installed", 0.0)

    monkeypatch.setattr("firsthand.cli.properties.run_checks", two_checks)
    assert [check["passed"] for check in called("selftest")["checks"]] == [True, None]
    shown = call("selftest").stdout
    assert "1 passed, 0 failed, 1 left out" in shown
    assert shown.count("ok") == 1


def test_without_torch_its_check_is_left_out(
    monkeypatch: pytest.MonkeyPatch, tmp_path: Path
) -> None:
    def only(name: str, check: Callable[[], tuple[bool, str]]) -> Check:
        return Check(name, True, "", 0.0)

    monkeypatch.setattr("firsthand.cli.properties._timed", only)
    monkeypatch.setattr("firsthand.cli.properties.find_spec", lambda name: None)
    assert [check.passed for check in run_checks(tmp_path)][-1] is None


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
    assert (gemma3["architecture"], gemma3["problem"]) == ("gemma3", None)
    assert (gemma3["spec"]["num_layers"], gemma3["spec"]["head_size"]) == (18, 256)


def test_verify_refuses_a_name_before_it_looks_for_the_model() -> None:
    error = called("verify", "no-such-model", "--only", "nonsense", code=2)["error"]
    assert error["message"].startswith("only")
