"""The divergence by its formula, of a model from itself and from its smaller forms; and the report.

Owns: `divergence.py`, `candidates.py`, and the windows of other programs. May not know: files.
Read next: `test_perplexity.py`.
"""

from __future__ import annotations

import json
import sys
from pathlib import Path
from typing import Any

import numpy as np
import pytest

from firsthand.cli.main import run_command
from firsthand.errors import InvalidRequest
from firsthand.evaluate.divergence import divergence
from firsthand.evaluate.pairs import Pair, read_pairs
from firsthand.evaluate.perplexity import load_for_scoring, logits_of, perplexity
from firsthand.evaluate.windows import Window, halves, strided
from firsthand.generation.load_options import LoadOptions

TEXT = "What a format costs is told by the words that it would have chosen otherwise. " * 3


def loaded(folder: Path, **options: Any) -> Any:
    return load_for_scoring(folder, LoadOptions(threads=1, max_context=128, **options))


@pytest.mark.native
def test_it_is_the_formula(micro_folder: Path) -> None:
    one, other = (
        loaded(micro_folder, quantization="none"),
        loaded(micro_folder, quantization="int4"),
    )
    ids = tuple(TEXT.encode()[:40])
    tables = []
    for model in (one, other):
        rows = logits_of(model.executor, model.store, ids, model.max_logit_rows)
        logits = np.array([row.copy() for row, _ in rows], np.float64)
        p = np.exp(logits - logits.max(axis=1, keepdims=True))
        tables.append(p / p.sum(axis=1, keepdims=True))
    found = divergence(one, other, TEXT, window=40, max_windows=1)
    expected = (tables[0] * np.log(tables[0] / tables[1])).sum(axis=1)
    assert np.allclose(found.divergences, expected, rtol=1e-6, atol=1e-9)
    assert found.same_top == tuple(tables[0].argmax(1) == tables[1].argmax(1))
    assert found.reference_perplexity == pytest.approx(
        perplexity(one, TEXT, window=40, max_windows=1).perplexity
    )


@pytest.mark.native
def test_a_model_is_not_far_from_itself_and_farther_with_fewer_bits(micro_folder: Path) -> None:
    floats = loaded(micro_folder, quantization="none")
    same = divergence(floats, loaded(micro_folder, quantization="none"), TEXT, window=64)
    assert same.mean == 0.0
    assert same.same_top_share == 1.0
    assert same.perplexity_change == 0.0
    eight, four = (
        divergence(floats, loaded(micro_folder, quantization=q), TEXT, window=64).mean
        for q in ("int8", "int4")
    )
    assert 0 < eight < four


def test_strided_windows_are_transformers_own() -> None:
    """The loop of its page on fixed-length models, with its masks of labels."""
    for length, size, stride in ((10, 4, 2), (11, 4, 3), (9, 4, 4), (3, 8, 4), (17, 8, 1)):
        expected, reached = [], 0
        for begin in range(0, length, stride):
            end = min(begin + size, length)
            labels = [position >= end - (end - reached) for position in range(begin, end)]
            scored = sum(labels[1:])
            expected.append((tuple(range(begin, end)), scored))
            reached = end
            if end == length:
                break
        found = strided(range(length), size, stride, None)
        kept = [(ids, scored) for ids, scored in expected if len(ids) > 1]
        assert [(w.token_ids, len(w.token_ids) - w.first) for w in found] == kept


def test_halves_are_those_of_llama_cpp() -> None:
    assert halves(range(9), 4, None) == [
        Window((0, 1, 2, 3), 3),
        Window((4, 5, 6, 7), 3),
    ]
    # BOS before the text moves it by one, and takes the place of each window's first token.
    assert halves(range(9), 4, 99) == [Window((99, 0, 1, 2), 3), Window((99, 4, 5, 6), 3)]


@pytest.mark.native
def test_methods_score_what_they_say(micro_folder: Path) -> None:
    model = loaded(micro_folder, quantization="none")
    whole = perplexity(model, TEXT[:96], window=32)
    overlapping = perplexity(model, TEXT[:96], window=32, stride=8, method="strided")
    second = perplexity(model, TEXT[:96], window=32, method="halves")
    assert (whole.num_tokens, overlapping.num_tokens, second.num_tokens) == (93, 95, 45)
    assert second.nlls[:15] == whole.nlls[16:31]
    with pytest.raises(InvalidRequest, match="stride: goes with the method strided"):
        perplexity(model, TEXT, window=32, stride=8)


@pytest.mark.native
def test_the_command_writes_a_report(micro_folder: Path, tmp_path: Path, capsys: Any) -> None:
    pytest.importorskip("matplotlib")
    text = tmp_path / "text"
    text.write_text(TEXT)
    out = tmp_path / "out"
    names = [f"{micro_folder}@int8", f"{micro_folder}@int4"]
    arguments = ["eval", str(micro_folder), "--metric", "divergence", "--text", str(text)]
    arguments += ["--window", "64", "--report-out", str(out), "--json", "--threads", "1"]
    for name in names:
        arguments += ["--candidate", name]
    assert run_command(arguments) == 0
    rows = json.loads(capsys.readouterr().out)["rows"]
    assert [row["quantization"] for row in rows] == ["none", "int8", "int4"]
    assert rows == json.loads((out / "report.json").read_text())
    assert (out / "report.md").read_text().count("\n") == 5
    assert "svg" in (out / "report.svg").read_text()[:400]


@pytest.mark.native
def test_the_command_scores_answers(micro_folder: Path, tmp_path: Path, capsys: Any) -> None:
    pairs = tmp_path / "pairs"
    pairs.write_text('{"answer": "今天天气", "reference": "今天天气好"}\n')
    arguments = ["eval", str(micro_folder), "--metric", "rouge", "--pairs", str(pairs), "--json"]
    assert run_command(arguments) == 0
    assert json.loads(capsys.readouterr().out)["rouge1"] == pytest.approx(8 / 9)
    pairs.write_text('{"prompt": "x", "reference": "y"}\n')
    assert run_command([*arguments, "--max-tokens", "2"]) == 0


def test_pairs_are_checked(tmp_path: Path) -> None:
    path = tmp_path / "pairs"
    path.write_text('{"prompt": "a", "reference": "b"}\n\n{"answer": "c", "reference": "d"}\n')
    assert read_pairs(path) == [Pair("b", prompt="a"), Pair("d", answer="c")]
    path.write_text('{"answer": "a\u2028b", "reference": "c"}\n')
    assert read_pairs(path) == [Pair("c", answer="a\u2028b")], "an end of a line in Unicode alone"
    for line, message in (
        ("[]", "line 1: must be an object"),
        ('{"prompt": 1, "reference": "b"}', "an object of texts"),
        ('{"reference": "b"}', "and `prompt` or `answer`"),
        ("{", "line 1: "),
        ("[" * 100_000, "nested too deep"),
        ('{"answer": "a", "answer": "b", "reference": "c"}', "twice"),
        ("", "holds none"),
    ):
        path.write_text(line)
        with pytest.raises(InvalidRequest, match=message):
            read_pairs(path)


@pytest.mark.native
def test_a_report_without_the_library_of_pictures(
    micro_folder: Path, tmp_path: Path, capsys: Any, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setitem(sys.modules, "matplotlib", None)
    (tmp_path / "text").write_text(TEXT)
    arguments = ["eval", str(micro_folder), "--metric", "divergence", "--threads", "1"]
    arguments += ["--text", str(tmp_path / "text"), "--window", "64", "--windows", "1"]
    arguments += ["--candidate", f"{micro_folder}@int8", "--report-out", str(tmp_path / "out")]
    assert run_command(arguments) == 0
    assert "no picture" in capsys.readouterr().err
    assert sorted(path.name for path in (tmp_path / "out").iterdir()) == [
        "report.json",
        "report.md",
    ]
