"""How a run over several workers looks: answers, stages, bubbles and hops.

Owns: the table, the pictures and files of a pipeline's steps, the comparison with one process.
May not know: how a model is split, how anything travels.
Read next: `cluster/pipeline/report.py`, whose figures these are.
"""

from __future__ import annotations

import json
from collections.abc import Mapping, Sequence
from dataclasses import replace
from pathlib import Path
from typing import Any

from firsthand.cli.output import say, table
from firsthand.cluster.pipeline import timeline
from firsthand.cluster.pipeline.loading import Pipeline
from firsthand.cluster.pipeline.report import PipelineFacts, shown_steps
from firsthand.cluster.pipeline.timeline import Span
from firsthand.errors import EngineError
from firsthand.generation.completion import Completion
from firsthand.generation.llm import LLM
from firsthand.generation.load_options import LoadOptions
from firsthand.generation.loading import load_model
from firsthand.request import FinishReason

MIB = 2**20
HEADINGS = ("STAGE", "LAYERS", "THREADS", "MS/TOKEN", "BUSY MS", "WEIGHTS", "KV", "RESIDENT")


def answers_of(
    pipeline: Pipeline, prompts: list[str], wanted: Mapping[str, Any]
) -> list[Completion]:
    """Of all prompts at once; the spans are then those of these answers. Raises EngineError when
    one has ended by a fault."""
    pipeline.executor.forget_spans()
    with LLM(pipeline.loaded) as llm:
        answers = llm.generate(prompts, **wanted)
    for done in answers:
        if done.finish.reason is FinishReason.ERROR:
            raise EngineError(done.finish.cause or "an answer ended by a fault")
    return answers


def is_equal(
    model: str,
    load: LoadOptions,
    prompts: Sequence[str],
    wanted: Mapping[str, Any],
    answers: Sequence[Completion],
) -> bool:
    """Whether one process gives the same tokens and log-probabilities, to the last bit. Seeds are
    those that were drawn."""
    with LLM(load_model(model, replace(load, threads=None))) as llm:
        others = [
            llm.generate(prompt, **{**wanted, "seed": done.seed})
            for prompt, done in zip(prompts, answers, strict=True)
        ]
    return all(
        (one.token_ids, one.logprobs) == (other.token_ids, other.logprobs)
        for one, other in zip(answers, others, strict=True)
    )


def write_files(
    trace_out: Path | None,
    plot_out: Path | None,
    spans: Sequence[Span],
    num_stages: int,
    about: Mapping[str, Any],
) -> None:
    if trace_out is not None:
        trace = timeline.chrome_trace(spans, num_stages, about)
        trace_out.write_text(json.dumps(trace), encoding="utf-8")
        say(f"wrote {trace_out}")
    if plot_out is not None:
        from firsthand.cluster.pipeline.plot import write_plot

        write_plot(shown_steps(spans), num_stages, plot_out)
        say(f"wrote {plot_out}")


def print_run(answers: Sequence[Completion], found: PipelineFacts, spans: Sequence[Span]) -> None:
    """Texts to standard output, figures beside them."""
    for done in answers:
        print(done.text, end="" if done.text.endswith("\n") else "\n", flush=True)
    for line in table(HEADINGS, _rows(found)):
        say(line)
    say(
        f"bubble {found.bubble_share:.1%} of the stages' time; (S − 1) / (M + S − 1) of equal "
        f"stages: {found.formula_share:.1%}"
    )
    say(
        f"{found.num_hops} hops in {found.num_steps} steps of {found.num_parts} parts: "
        f"{found.mean_hop_bytes:,} bytes and {found.mean_hop_ms:.2f} ms each"
    )
    for title, step in shown_steps(spans):
        say(title)
        for line in timeline.picture(step, len(found.stages)):
            say(f"  {line}")


def _rows(found: PipelineFacts) -> list[tuple[str, ...]]:
    return [
        (
            str(number),
            f"{one.first_layer}–{one.last_layer}",
            str(one.threads),
            f"{one.measured_ms:.2f}",
            f"{one.busy_ms:.0f}",
            f"{one.weights_bytes / MIB:.1f} MiB",
            f"{one.kv_bytes / MIB:.1f} MiB",
            f"{one.resident_bytes / MIB:.0f} MiB",
        )
        for number, one in enumerate(found.stages)
    ]
