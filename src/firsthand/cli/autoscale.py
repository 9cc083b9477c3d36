"""The command plan autoscale.

Owns: its options, the layout of what a policy would have done.
May not know: how a decision is made, how replicas are simulated.
Read next: `../cluster/autoscaling/simulator.py`; `capacity.py`, how many without a policy.
"""

from __future__ import annotations

from pathlib import Path
from typing import Annotated, Any

import typer

from firsthand.cli import options
from firsthand.cli.output import print_json, print_table, reported
from firsthand.errors import InvalidRequest

TICK_S = 5.0


def autoscale(
    from_file: Annotated[Path, typer.Option("--from", metavar="FILE", help="Of `bench knee`.")],
    trace: Annotated[
        Path | None,
        typer.Option(metavar="FILE", help="A recorded load; default: none, but --load."),
    ] = None,
    load: Annotated[
        str | None,
        typer.Option(help="day, burst, step, sawtooth, wave or constant, drawn; default: day."),
    ] = None,
    qps: Annotated[
        float | None,
        typer.Option(help="The highest rate of --load; default: 4 replicas' worth."),
    ] = None,
    limits: Annotated[
        Path | None, typer.Option(metavar="FILE", help="Of the policy, TOML; default: the knee's.")
    ] = None,
    max_replicas: Annotated[
        int | None, typer.Option(help="In place of the file's; default: the file's, or 8.")
    ] = None,
    start_s: Annotated[float, typer.Option(help="Until a new replica is ready.")] = 30.0,
    seed: Annotated[int, typer.Option(help="Of the draw of --load.")] = 0,
    plot_out: Annotated[
        Path | None,
        typer.Option(metavar="FILE", help="Draw it too, as .svg, .png or .pdf; default: none."),
    ] = None,
    as_json: options.AsJson = False,
) -> None:
    """Play a load to the autoscaling policy: when it adds and removes, and whether it flaps."""
    with reported(as_json):
        from dataclasses import asdict

        from firsthand.checks import check_number
        from firsthand.cluster.autoscaling import simulator
        from firsthand.cluster.autoscaling.limits import MAX_S
        from firsthand.cluster.autoscaling.loads import drawn
        from firsthand.loadtest.curve import read_curve
        from firsthand.measure.ablation_plot import check_plot

        if plot_out is not None:
            check_plot(plot_out)
        check_number("start_s", start_s, 0, MAX_S)
        for name, given in (("load", load), ("qps", qps)):
            if trace is not None and given is not None:
                raise InvalidRequest(name, "is of a load that is drawn; a trace has its own")
        curve = read_curve(from_file)
        service = simulator.service_of(curve, start_s)
        chosen = _limits(limits, max_replicas, curve)
        if trace is None:
            peak = 4 * service.rate if qps is None else qps
            arrivals = drawn(load or "day", peak, TICK_S, seed)
        else:
            arrivals = _recorded(trace, curve.output_tokens)
        found = simulator.compared(arrivals, service, chosen, TICK_S)
        if plot_out is not None:
            from firsthand.cluster.scaling_plot import write_plot

            write_plot(found, TICK_S, plot_out)
        said = {name: outcome.to_dict() for name, outcome in found.items()}
        if as_json:
            moments = [asdict(one) for one, _ in found["ours"].changes]
            print_json({"limits": asdict(chosen), "changes": moments, **said})
        else:
            _print(found["ours"].changes, said)


def _limits(file: Path | None, max_replicas: int | None, curve: Any) -> Any:
    from dataclasses import replace

    from firsthand.cluster.autoscaling.limits import Limits, limits_at, read_limits

    chosen = Limits(max_replicas=8, **limits_at(curve)) if file is None else read_limits(file)
    return chosen if max_replicas is None else replace(chosen, max_replicas=max_replicas)


def _recorded(trace: Path, mean_tokens: float) -> list[float]:
    from firsthand.cluster.autoscaling.loads import recorded
    from firsthand.loadtest.arrivals import Lengths, read_sizes

    try:
        sizes = read_sizes(trace, Lengths(output_tokens=max(1, round(mean_tokens))))
    except InvalidRequest as error:
        raise InvalidRequest("trace", error.message) from None
    return recorded(((one.at_s, one.output_tokens / mean_tokens) for one in sizes), TICK_S)


def _print(changes: list[tuple[Any, int]], said: dict[str, dict[str, Any]]) -> None:
    if changes:
        rows = [
            (_clock(now.at_s), f"{before} → {now.target}", now.reason) for now, before in changes
        ]
        print_table(("AT", "REPLICAS", "WHY"), rows)
        print()
    names = list(said["ours"])
    figures = [
        [name.replace("_", " "), *(f"{one[name]:.4g}" for one in said.values())] for name in names
    ]
    print_table(("", "THIS POLICY", "WITHOUT PATIENCE"), figures)


def _clock(seconds: float) -> str:
    return f"{int(seconds // 3600)}:{int(seconds % 3600 // 60):02}:{int(seconds % 60):02}"
