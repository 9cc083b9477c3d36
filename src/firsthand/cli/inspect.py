"""The commands that look inside a model: inspect, plan, plan load, trace-step.

Owns: their options.
May not know: how a model is read or computed, how its facts are laid out.
Read next: `generation/inspection.py`; `facts.py` and `report.py` for the layout.

`inspect` and `plan` load no weights. `inspect` also shows files of models that we cannot run, and
says why not.
"""

from __future__ import annotations

from typing import Annotated, Literal

import typer

from firsthand.checks import shown
from firsthand.cli import options
from firsthand.cli.generate import open_llm, read_text, say_context
from firsthand.cli.output import print_json, reported
from firsthand.errors import InvalidRequest

STEPS: dict[str, Literal["prompt", "token"]] = {"prompt": "prompt", "token": "token"}


def inspect(
    model: options.Model,
    plan: Annotated[
        bool, typer.Option("--plan", help="Show the native plan before and after fusion.")
    ] = False,
    all_layers: Annotated[
        bool, typer.Option("--all-layers", help="With --plan: show layers that are alike, too.")
    ] = False,
    tensors: Annotated[
        bool, typer.Option("--tensors", help="List every tensor of the file.")
    ] = False,
    max_context: options.MaxContext = None,
    disabled_rules: options.DisableRule = None,
    as_json: options.AsJson = False,
) -> None:
    """Show what a model is, without loading it."""
    with reported(as_json):
        from firsthand.cli import facts
        from firsthand.compute.fusion import check_rules
        from firsthand.generation.inspection import inspect_model

        for field, given in (("disabled_rules", disabled_rules), ("all_layers", all_layers)):
            if given and not plan:
                raise InvalidRequest(field, "is about the plan; add --plan")
        check_rules(disabled_rules or ())  # also where no plan can be made
        found = inspect_model(
            model, max_context, with_plan=plan, disabled_rules=tuple(disabled_rules or ())
        )
        if found.spec is not None:
            say_context(max_context, found.spec.context_length)
        if as_json:
            print_json({"model": model, **facts.as_dict(found, tensors)})
        else:
            facts.print_facts(found, tensors, all_layers)


def plan(
    model: options.Model,
    max_sequences: options.Sequences = None,
    loading: options.Loading = options.LOADING,
    as_json: options.AsJson = False,
) -> None:
    """Show what memory a model would get, without loading it."""
    with reported(as_json):
        from firsthand.cli.budget_facts import as_dict, print_plan
        from firsthand.generation.load_options import LoadOptions
        from firsthand.generation.loading import plan_model

        chosen = options.load_keywords(loading)
        wanted = LoadOptions(**chosen, max_sequences=max_sequences)
        spec, budget = plan_model(model, wanted)
        say_context(loading.max_context, spec.context_length)
        if as_json:
            print_json({"model": model, **as_dict(budget, wanted.kv_dtype)})
        else:
            print_plan(spec, budget, wanted.kv_dtype)


def plan_load(
    model: options.Model,
    requests_per_hour: Annotated[
        float | None, typer.Option(help="How often it is asked for; default: not known.")
    ] = None,
    loading: options.Loading = options.LOADING,
    as_json: options.AsJson = False,
) -> None:
    """Recommend a way to load a model, with the arithmetic; it is not loaded."""
    with reported(as_json):
        from firsthand.generation.load_advice import advise_load
        from firsthand.generation.load_options import LoadOptions

        advice = advise_load(
            model, LoadOptions(**options.load_keywords(loading)), requests_per_hour
        )
        if as_json:
            print_json({"model": model, **advice.to_dict()})
        else:
            print(f"--load {advice.load}")
            for reason in advice.why:
                print(f"  {reason}")


def trace_step(
    model: options.Model,
    text: Annotated[
        str, typer.Argument(metavar="TEXT", help="The prompt of the step; - reads standard input.")
    ] = "The capital of France is",
    step: Annotated[
        str, typer.Option(help="prompt: the step of the whole prompt; token: of its last token.")
    ] = "prompt",
    loading: options.Loading = options.LOADING,
    as_json: options.AsJson = False,
) -> None:
    """Run one step and show each operator."""
    with reported(as_json):
        from firsthand.cli.report import op_as_dict, print_step

        if step not in STEPS:
            raise InvalidRequest("step", f"must be prompt or token, not {shown(step)}")
        content = read_text(text, "text")
        with open_llm(model, loading) as llm:
            ops = llm.trace(content, step=STEPS[step])
        if as_json:
            operators = [op_as_dict(op) for op in ops]
            total_ms = sum(op.ms for op in ops)
            print_json({"model": model, "step": step, "total_ms": total_ms, "operators": operators})
        else:
            print_step(ops)
