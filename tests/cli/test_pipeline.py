"""How a run over several workers looks, and the files that it writes."""

from __future__ import annotations

import json
from pathlib import Path

import pytest

from firsthand.cli import pipeline_facts as facts
from firsthand.cli.micro_model import write_micro_model
from firsthand.cluster.pipeline.links import LocalLinks
from firsthand.cluster.pipeline.loading import Wanted, load_pipeline
from firsthand.cluster.pipeline.report import facts_of
from firsthand.cluster.pipeline.stage import Stage
from firsthand.generation.load_options import LoadOptions

pytestmark = pytest.mark.native


def test_answers_stages_bubbles_and_hops_are_shown(
    tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    """S108, S109: in text, as a trace and as a picture; and the comparison can fail."""
    model, options = str(write_micro_model(tmp_path)), LoadOptions(threads=1, max_context=64)
    stages = [Stage(number, model, options) for number in range(2)]
    wanted = Wanted(2, num_parts=2)
    pipeline = load_pipeline(model, options, wanted, lambda *_: LocalLinks(stages))
    prompts, asked = ["one prompt", "another"], {"max_tokens": 3, "seed": 5, "logprobs": 0}
    answers = facts.answers_of(pipeline, prompts, asked)
    spans = pipeline.executor.spans
    facts.print_run(answers, facts_of(pipeline, spans), spans)
    shown = capsys.readouterr()
    assert shown.out == "".join(f"{one.text}\n".replace("\n\n", "\n") for one in answers)
    assert "LAYERS" in shown.err
    assert "bubble " in shown.err
    assert "ms each" in shown.err
    assert "stage 1  " in shown.err
    trace, plot = tmp_path / "steps.json", tmp_path / "steps.svg"
    pytest.importorskip("matplotlib")
    facts.write_files(trace, plot, spans, 2, {"model": model})
    assert len(json.loads(trace.read_text())["traceEvents"]) == len(spans) + 3
    assert "stage 1" in plot.read_text()
    assert facts.is_equal(model, options, prompts, asked, answers)
    assert not facts.is_equal(model, options, prompts, {**asked, "top_k": 1}, answers)
