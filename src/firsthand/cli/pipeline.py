"""The command that runs a model over several workers: cluster run.

Owns: its options.
May not know: how a model is split, how anything travels.
Read next: `cluster/pipeline/opening.py`, which it opens; `pipeline_facts.py`.
"""

from __future__ import annotations

from pathlib import Path
from typing import Annotated

import typer

from firsthand.cli import options
from firsthand.cli.generate import MAX_AT_ONCE, request_options
from firsthand.cli.output import CHECK_FAILED, print_json, reported, say
from firsthand.files import check_writable

Prompts = Annotated[
    list[str], typer.Argument(metavar="PROMPT…", help="Texts to go on from, all at once.")
]
Stages = Annotated[
    int,
    typer.Option(
        "--stages", "--pipeline-parallel-size", help="Workers, each with some of the layers."
    ),
]
Split = Annotated[
    str, typer.Option(metavar="auto|N,N", help="Layers of each; auto: by measured cost.")
]
Balance = Annotated[
    str, typer.Option(help="What auto evens out: token, the step after a prompt, or prompt.")
]
MicroBatches = Annotated[int | None, typer.Option(help="Parts of a step; default: as many as pay.")]
Address = Annotated[
    str | None,
    typer.Option(metavar="ADDRESS", help="A Ray that runs; default: one of our own, here."),
]
Quantization = Annotated[
    str, typer.Option(help="auto (the file's own blocks, else int8), none, int8 or int4.")
]
Threads = Annotated[
    int | None, typer.Option(help="Of each worker; default: its share of the cores.")
]
MemoryLimit = Annotated[
    str,
    typer.Option(metavar="BYTES|SHARE%", help="Of each worker in bytes; a share is shared out."),
]
Compare = Annotated[
    bool, typer.Option("--compare", help="Run it in one process, too: are all bits equal?")
]
TraceOut = Annotated[
    Path | None,
    typer.Option(metavar="FILE", help="Write the steps for Perfetto; default: none."),
]
PlotOut = Annotated[
    Path | None,
    typer.Option(metavar="FILE", help="Draw two steps: .svg, .png or .pdf; default: none."),
]


def run(
    model: options.Model,
    prompts: Prompts,
    stages: Stages = 2,
    split: Split = "auto",
    balance: Balance = "token",
    micro_batches: MicroBatches = None,
    address: Address = None,
    sampling: options.Sampling = options.SAMPLING,
    quantization: Quantization = "auto",
    threads: Threads = None,
    max_context: options.MaxContext = None,
    memory_limit: MemoryLimit = "80%",
    compare: Compare = False,
    trace_out: TraceOut = None,
    plot_out: PlotOut = None,
    as_json: options.AsJson = False,
) -> None:
    """Run one model over several workers: its layers in stages, rows from one to the next."""
    with reported(as_json):
        from firsthand.cli import pipeline_facts as facts
        from firsthand.cluster.pipeline import loading, report
        from firsthand.cluster.pipeline.opening import open_pipeline
        from firsthand.cluster.pipeline.splits import check_stages, read_split
        from firsthand.generation.load_options import LoadOptions

        _check_files(trace_out, plot_out)
        check_stages(stages)
        asked = loading.Wanted(stages, read_split(split, stages), micro_batches, balance)
        load = LoadOptions(
            quantization=quantization,  # type: ignore[arg-type]  # it is checked there
            threads=threads,
            max_context=max_context,
            memory_limit=memory_limit,
            max_sequences=min(MAX_AT_ONCE, len(prompts)),
        )
        wanted = request_options(sampling, options.LOADING, logprobs=0)
        with open_pipeline(model, load, asked, address) as pipeline:
            about = {"model": model, "split": list(pipeline.split)}
            say(f"layers {', '.join(map(str, pipeline.split))} over {stages} workers")
            answers = facts.answers_of(pipeline, prompts, wanted)
            spans = pipeline.executor.spans
            found = report.facts_of(pipeline, spans)
        facts.write_files(trace_out, plot_out, spans, stages, about)
        equal = facts.is_equal(model, load, prompts, wanted, answers) if compare else None
        if as_json:
            given = {"answers": [done.to_dict() for done in answers], "is_equal": equal}
            print_json({**about, **given, "pipeline": found.to_dict()})
        else:
            facts.print_run(answers, found, spans)
        if equal:
            say("one process gives the same tokens and log-probabilities, bit for bit")
        elif equal is not None:
            say("error: one process gives other tokens or log-probabilities")
            raise typer.Exit(CHECK_FAILED)


def _check_files(trace_out: Path | None, plot_out: Path | None) -> None:
    if trace_out is not None:
        check_writable("trace_out", trace_out)
    if plot_out is not None:
        from firsthand.measure.ablation_plot import check_plot

        check_plot(plot_out)
