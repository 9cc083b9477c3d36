"""The commands that measure: bench latency, throughput, startup, load and compare; profile.

Owns: their options and the layout of what they found.
May not know: how anything is measured.
Read next: `measure/latency.py`, `measure/throughput.py`, `measure/profile.py`.
"""

from __future__ import annotations

import json
from dataclasses import asdict
from pathlib import Path
from typing import Annotated, Any

import typer

from firsthand.cli import options
from firsthand.cli.generate import open_llm
from firsthand.cli.inspect import STEPS
from firsthand.cli.output import in_bytes, print_json, print_table, reported, say
from firsthand.errors import InvalidRequest
from firsthand.files import check_writable

PromptTokens = Annotated[int, typer.Option(help="Tokens of the prompt.")]
OutputTokens = Annotated[int, typer.Option(help="New tokens, the first one included.")]
Repeats = Annotated[int, typer.Option(help="Measured runs; one more warms up.")]
PlotOut = Annotated[
    Path | None,
    typer.Option(metavar="FILE", help="Draw it too, as .svg, .png or .pdf; default: none."),
]


def latency(
    model: options.Model,
    prompt_tokens: PromptTokens = 512,
    output_tokens: OutputTokens = 128,
    repeats: Repeats = 5,
    loading: options.Loading = options.LOADING,
    as_json: options.AsJson = False,
) -> None:
    """Time one sequence, and how near it comes to the machine's limits."""
    with reported(as_json):
        from firsthand.cli.profile_facts import machine_line
        from firsthand.cli.report import compiled_line
        from firsthand.measure.latency import check_sizes, measure_latency

        check_sizes(None, prompt_tokens, output_tokens, repeats)
        with open_llm(model, loading) as llm:
            found = measure_latency(llm, prompt_tokens, output_tokens, repeats)
        if as_json:
            print_json(found.to_dict())
            return
        speed, machine = found.speed, found.machine
        rows = [
            (name, *(f"{value:.1f}" for value in asdict(spread).values()), f"{share:.0%}")
            for name, spread, share in (
                ("prompt", speed.prompt_tokens_per_second, found.limit_share_prompt),
                ("decode", speed.decode_tokens_per_second, found.limit_share_decode),
            )
        ]
        print_table(("TOKENS/S", "MIN", "MEDIAN", "MAX", "OF LIMIT"), rows)
        print(f"first token after {speed.ttft_ms:.1f} ms; {found.format}; {found.threads} threads")
        print(f"peak resident memory {in_bytes(found.peak_rss_bytes)}")
        if found.compiled is not None:
            print(f"compiled {compiled_line(found.compiled)}")
        print(machine_line(machine))


def throughput(
    model: options.Model,
    concurrency: Annotated[int, typer.Option(help="Sequences at once.")] = 16,
    prompt_tokens: PromptTokens = 64,
    output_tokens: OutputTokens = 128,
    repeats: Repeats = 5,
    loading: options.Loading = options.LOADING,
    as_json: options.AsJson = False,
) -> None:
    """Time many sequences at once, and what of a step is not computing."""
    with reported(as_json):
        from firsthand.measure.latency import check_sizes
        from firsthand.measure.throughput import check_concurrency, measure_throughput

        check_concurrency(concurrency)
        check_sizes(None, prompt_tokens, output_tokens, repeats)
        with open_llm(model, loading, concurrency) as llm:
            found = measure_throughput(llm, concurrency, prompt_tokens, output_tokens, repeats)
        if as_json:
            print_json(found.to_dict())
            return
        rows = [
            (name, *(f"{value:.1f}" for value in asdict(spread).values()))
            for name, spread in (
                ("output tokens/s", found.output_tokens_per_second),
                ("step, ms", found.step_ms),
            )
        ]
        print_table(("", "MIN", "MEDIAN", "MAX"), rows)
        print(f"outside the kernels {found.outside_kernels_share:.1%} of a step")
        print(
            f"cache blocks {found.kv_blocks.peak} of {found.kv_blocks.total}; "
            f"{found.num_preemptions} preemptions; {found.format}; {found.threads} threads"
        )


def startup(
    model: options.Model,
    prompt_tokens: PromptTokens = 16,
    repeats: Repeats = 5,
    loading: options.Loading = options.LOADING,
    as_json: options.AsJson = False,
) -> None:
    """Time a new process from its start to the first token."""
    with reported(as_json):
        from firsthand.measure.startup import measure_startup

        found = measure_startup(model, load_options(loading), repeats, prompt_tokens)
        if as_json:
            print_json(found.to_dict())
            return
        rows = [
            (name, *(f"{value:.0f}" for value in asdict(spread).values()))
            for name, spread in (("first token", found.first_token_ms), ("load", found.load_ms))
        ]
        print_table(("MS", "MIN", "MEDIAN", "MAX"), rows)
        print(
            f"peak resident memory {in_bytes(found.peak_rss_bytes)}: weights "
            f"{in_bytes(found.weights_bytes)}, KV {in_bytes(found.kv_used_bytes)}, the rest "
            f"{in_bytes(found.overhead_bytes)}"
        )


def load(
    model: options.Model,
    repeats: Repeats = 3,
    shards_limit: Annotated[
        str | None,
        typer.Option(metavar="BYTES|SHARE%", help="The limit in shards; default: --memory-limit."),
    ] = None,
    loading: options.Loading = options.LOADING,
    as_json: options.AsJson = False,
) -> None:
    """Time the ways to load a model: packing it, whole, and in shards."""
    with reported(as_json):
        from firsthand.measure.loads import measure_loads

        ways = measure_loads(model, load_options(loading), repeats, shards_limit)
        if as_json:
            print_json({"model": model, "ways": [one.to_dict() for one in ways]})
            return
        rows = [
            (
                one.way,
                f"{one.found.load_ms.median:.0f}",
                f"{one.found.first_token_ms.median:.0f}",
                in_bytes(one.found.peak_rss_bytes),
                in_bytes(one.found.weights_bytes),
            )
            for one in ways
        ]
        print_table(("WAY", "LOAD MS", "FIRST TOKEN MS", "PEAK MEMORY", "WEIGHTS HELD"), rows)


def compare(
    model: options.Model,
    concurrency: Annotated[int, typer.Option(help="Sequences at once, at most.")] = 8,
    output_tokens: Annotated[int, typer.Option(help="New tokens of the longest answer.")] = 128,
    prefix_tokens: Annotated[int, typer.Option(help="Tokens that two prompts share.")] = 512,
    repeats: Annotated[int, typer.Option(help="Measured pairs; one more warms up.")] = 3,
    only: Annotated[
        list[str] | None,
        typer.Option(
            metavar="COMPARISON", help="Only batching, store or prefix; repeatable; default: all."
        ),
    ] = None,
    plot_out: PlotOut = None,
    loading: options.Loading = options.LOADING,
    as_json: options.AsJson = False,
) -> None:
    """Ours beside the plain way: continuous and static, paged and contiguous, shared prefixes."""
    with reported(as_json):
        from firsthand.generation.load_options import LoadOptions
        from firsthand.measure import ablation_plot, comparison

        if plot_out is not None:
            ablation_plot.check_plot(plot_out)
        outcomes = list(
            comparison.compare(
                model,
                LoadOptions(**load_options(loading)),
                concurrency=concurrency,
                output_tokens=output_tokens,
                prefix_tokens=prefix_tokens,
                repeats=repeats,
                only=only or (),
                begin=lambda name: say(f"measuring {name}"),
            )
        )
        if plot_out is not None:
            title = f"{Path(model).name}: {concurrency} at once, answers up to {output_tokens}"
            ablation_plot.write_plot(outcomes, title, plot_out)
            say(f"wrote {plot_out}")
        if as_json:
            print_json({"outcomes": [outcome.to_dict() for outcome in outcomes]})
            return
        rows = [
            (
                one.name,
                one.unit,
                side.name,
                f"{side.value.median:.1f}",
                f"{one.advantage:.2f} ×" if side is one.ours else "",
                ", ".join(f"{name} {value:.4g}" for name, value in side.facts.items()),
            )
            for one in outcomes
            for side in (one.plain, one.ours)
        ]
        print_table(("COMPARISON", "UNIT", "WAY", "MEDIAN", "OURS", "SEEN"), rows)


def profile(
    model: options.Model,
    step: Annotated[
        str, typer.Option(help="prompt: the step of the whole prompt; token: of its last token.")
    ] = "prompt",
    prompt_tokens: PromptTokens = 512,
    repeats: Annotated[int, typer.Option(help="Traced steps; the quickest one is shown.")] = 5,
    trace_out: Annotated[
        Path | None,
        typer.Option(
            metavar="FILE", help="Write the step for Perfetto or chrome://tracing; default: none."
        ),
    ] = None,
    loading: options.Loading = options.LOADING,
    as_json: options.AsJson = False,
) -> None:
    """Show each operator of a step: time, bytes, products, share of the machine's limit."""
    with reported(as_json):
        from firsthand.checks import check_integer
        from firsthand.cli import profile_facts as facts
        from firsthand.measure import profile as profiling
        from firsthand.measure.latency import prompt_of

        if step not in STEPS:
            raise InvalidRequest("step", f"must be prompt or token, not {step!r}")
        check_integer("prompt_tokens", prompt_tokens, 1)
        check_integer("repeats", repeats, 1)
        if trace_out is not None:
            check_writable("trace_out", trace_out)
        with open_llm(model, loading) as llm:
            prompt = prompt_of(prompt_tokens, llm.loaded.limits.vocab_size)
            found = profiling.profile(llm, prompt, STEPS[step], repeats)
        if trace_out is not None:
            trace_out.write_text(json.dumps(profiling.chrome_trace(found)), encoding="utf-8")
            say(f"wrote {trace_out}")
        if as_json:
            print_json(facts.profile_as_dict(found))
        else:
            facts.print_profile(found)


def load_options(loading: options.Loading) -> dict[str, Any]:
    """For one sequence, as `open_llm` has it."""
    return options.load_keywords(loading) | {"max_sequences": 1}
