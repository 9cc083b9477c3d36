"""The commands that load a server: bench serve, bench knee.

Owns: their options and the layout of what they found.
May not know: how a load is kept, where a knee is.
Read next: `../loadtest/playing.py`, `../loadtest/ramp.py`; `capacity.py` plans with what was found.
"""

from __future__ import annotations

import json
import random
import time
from pathlib import Path
from typing import Annotated, Any

import typer

from firsthand.cli import options
from firsthand.cli.output import print_json, print_table, reported, say
from firsthand.cli.remote import DEFAULT_URL, ApiKey, Url, first_key, only_model
from firsthand.errors import EngineUnavailable, InvalidRequest
from firsthand.files import check_writable
from firsthand.values import dataclass

PlotOut = Annotated[
    Path | None,
    typer.Option(metavar="FILE", help="Draw it too, as .svg, .png or .pdf; default: none."),
]


@dataclass(frozen=True, slots=True)
class Load:
    """Whom to load, and with what kind of requests."""

    url: Url = DEFAULT_URL
    api_key: ApiKey = None
    allow_host: Annotated[
        str | None,
        typer.Option(metavar="HOST", help="Load this other machine; default: only this one."),
    ] = None
    model: Annotated[
        str | None, typer.Option(help="Which of the server's models; default: its first.")
    ] = None
    endpoint: Annotated[str, typer.Option(help="/v1/completions or /v1/chat/completions.")] = (
        "/v1/completions"
    )
    random_input_len: Annotated[int, typer.Option(help="Words of a prompt.")] = 64
    random_output_len: Annotated[int, typer.Option(help="Tokens of an answer.")] = 64
    ignore_eos: Annotated[
        bool,
        typer.Option(
            "--ignore-eos/--no-ignore-eos",
            help="Ask for answers of full length; not every server knows it.",
        ),
    ] = True
    seed: Annotated[int, typer.Option(help="Of arrivals and prompts.")] = 0


@dataclass(frozen=True, slots=True)
class Rate:
    """How many requests, and when."""

    num_prompts: Annotated[int, typer.Option(help="Requests in all; of a trace: at most.")] = 200
    request_rate: Annotated[float, typer.Option(help="Requests per second; inf: all at once.")] = (
        float("inf")
    )
    burstiness: Annotated[
        float, typer.Option(help="Of arrivals: 1 is a Poisson process, inf evenly spaced.")
    ] = 1.0
    max_concurrency: Annotated[
        int | None, typer.Option(help="Under way at once at most; default: no bound.")
    ] = None
    dataset_name: Annotated[
        str, typer.Option(help="random, custom (prompts of a file) or trace (arrivals, too).")
    ] = "random"
    dataset_path: Annotated[
        Path | None, typer.Option(metavar="FILE", help="Of custom and trace; default: none.")
    ] = None
    ramp_up_strategy: Annotated[
        str | None, typer.Option(help="linear or exponential; default: one rate.")
    ] = None
    ramp_up_start_rps: Annotated[
        float | None, typer.Option(help="The first rate of a ramp; default: none.")
    ] = None
    ramp_up_end_rps: Annotated[
        float | None, typer.Option(help="The last rate of a ramp; default: none.")
    ] = None


LOAD, RATE = Load(), Rate()


def serve(
    load: Load = LOAD,
    rate: Rate = RATE,
    percentile_metrics: Annotated[
        str, typer.Option(help="Of ttft, tpot, itl, e2el, by commas.")
    ] = "ttft,tpot,itl,e2el",
    metric_percentiles: Annotated[str, typer.Option(help="By commas.")] = "50,90,99",
    goodput: Annotated[
        list[str] | None,
        typer.Option(
            metavar="NAME:MS", help="Count who is within this; repeatable; default: none."
        ),
    ] = None,
    save_detailed: Annotated[
        bool, typer.Option("--save-detailed", help="Each request too, in JSON and the file.")
    ] = False,
    result_filename: Annotated[
        Path | None, typer.Option(metavar="FILE", help="Keep the JSON there; default: nowhere.")
    ] = None,
    as_json: options.AsJson = False,
) -> None:
    """Load a server at a rate, and time each answer from when its request was due."""
    with reported(as_json):
        from firsthand.checks import check_integer
        from firsthand.loadtest import summary as figures
        from firsthand.loadtest.playing import play

        metrics = figures.read_metrics(percentile_metrics)
        percentiles = figures.read_percentiles(metric_percentiles)
        goals = figures.read_goodput(goodput or ())
        if rate.max_concurrency is not None:
            check_integer("max_concurrency", rate.max_concurrency, 1, 100_000)
        if result_filename is not None:
            check_writable("result_filename", result_filename)
        arrivals = _arrivals(load, rate)
        target = _target(load)
        outcomes = play(target, arrivals, rate.max_concurrency)
        found = {
            "date": time.strftime("%Y%m%d-%H%M%S"),
            "endpoint_type": "openai-chat" if "chat" in load.endpoint else "openai",
            "model_id": target.model,
            "num_prompts": len(arrivals),
            "request_rate": _plain(rate.request_rate),
            "burstiness": _plain(rate.burstiness),
            "max_concurrency": rate.max_concurrency,
            **figures.summary(outcomes, metrics, percentiles, goals),
            **(figures.details(outcomes) if save_detailed else {}),
        }
        if result_filename is not None:
            result_filename.write_text(json.dumps(found) + "\n", encoding="utf-8")
            say(f"wrote {result_filename}")
        for fault, count in figures.faults(outcomes)[:5]:
            say(f"{count} requests failed: {fault}")
        if not found["completed"]:
            raise EngineUnavailable(f"{target.address}: not one request was answered")
        if as_json:
            print_json(found)
        else:
            _print_result(found, metrics, percentiles)


def knee(
    load: Load = LOAD,
    max_seconds: Annotated[float, typer.Option(help="About how long all of it may take.")] = 120.0,
    max_rate: Annotated[
        float, typer.Option(help="Requests per second beyond which it does not go.")
    ] = 10_000.0,
    out: Annotated[
        Path | None,
        typer.Option(
            metavar="FILE",
            help="For `plan capacity` and the alerts; default: knee.json, if there is a knee.",
        ),
    ] = None,
    plot_out: PlotOut = None,
    as_json: options.AsJson = False,
) -> None:
    """Load a server more and more, and find the rate at which latency turns."""
    with reported(as_json):
        from firsthand.checks import check_number
        from firsthand.loadtest import curve_plot
        from firsthand.loadtest.arrivals import MAX_RATE
        from firsthand.loadtest.curve import Curve, Step, without_knee
        from firsthand.loadtest.ramp import Climb
        from firsthand.measure.ablation_plot import check_plot

        check_number("max_seconds", max_seconds, 10, 3600)
        check_number("max_rate", max_rate, 0, MAX_RATE, low_open=True)
        check_writable("out", out or Path("knee.json"))
        if plot_out is not None:
            check_plot(plot_out)
        target = _target(load)

        def told(step: Step) -> None:
            say(
                f"{step.rate:8.3g} requests/s for {step.seconds:.3g} s: {step.completed} answered, "
                f"{step.request_throughput:.3g}/s, median {step.median_e2el_ms:.0f} ms, "
                f"P99 {step.p99_e2el_ms:.0f} ms"
                + (f", {step.failed} failed" if step.failed else "")
            )

        hold = _holder(load, target, patience_s=max_seconds / 4)
        found = Climb(hold, time.monotonic, max_seconds, told, max_rate, say).run()
        tokens = (found.input_tokens, found.output_tokens)
        if found.knee is None:
            if out is not None:
                _write(out, without_knee(target.model, *tokens, found.steps, found.why))
            raise EngineUnavailable(f"no knee: {found.why}")
        curve = Curve(target.model, *tokens, found.knee, found.steps)
        content = curve.to_dict()
        _write(out or Path("knee.json"), content)
        if plot_out is not None:
            curve_plot.write_plot(curve, plot_out)
            say(f"wrote {plot_out}")
        if as_json:
            print_json(content)
        else:
            _print_knee(content)


def _write(path: Path, content: dict[str, Any]) -> None:
    path.write_text(json.dumps(content, indent=1) + "\n", encoding="utf-8")
    say(f"wrote {path}")


def _target(load: Load) -> Any:
    from firsthand.addresses import address_of
    from firsthand.checks import check_choice
    from firsthand.cli.client import client_of
    from firsthand.loadtest.playing import ENDPOINTS, Target, check_host

    check_choice("endpoint", load.endpoint, ENDPOINTS)
    key = first_key(load.api_key)
    address = address_of(load.url, key)
    check_host(address, load.allow_host)
    model = load.model or only_model(client_of(load.url, key))
    return Target(address, model, load.endpoint, load.ignore_eos)


def _arrivals(load: Load, rate: Rate) -> list[Any]:
    from firsthand.checks import check_choice, check_integer
    from firsthand.loadtest import arrivals as arriving

    check_integer("num_prompts", rate.num_prompts, 1, arriving.MAX_ARRIVALS)
    check_choice("dataset_name", rate.dataset_name, ("random", "custom", "trace"))
    if (rate.dataset_path is None) != (rate.dataset_name == "random"):
        raise InvalidRequest(
            "dataset_path", "goes with dataset_name custom or trace, and with both"
        )
    _check_one_rate(rate)
    draw = random.Random(load.seed)
    lengths = arriving.Lengths(load.random_input_len, load.random_output_len)
    if rate.dataset_name == "trace" and rate.dataset_path is not None:
        return arriving.read_trace(rate.dataset_path, lengths, draw, rate.num_prompts)
    times = _times(rate, draw)
    if rate.dataset_path is None:
        return arriving.random_requests(times, lengths, draw)
    prompts = arriving.read_prompts(rate.dataset_path, lengths.output_tokens)
    return arriving.custom_requests(times, prompts)


def _check_one_rate(rate: Rate) -> None:
    """Arrivals are those of a trace, of a ramp, or of a rate: no two of them."""
    is_trace, is_ramp = rate.dataset_name == "trace", rate.ramp_up_strategy is not None
    if is_trace and is_ramp:
        raise InvalidRequest("ramp_up_strategy", "a trace has its own arrivals")
    for name in ("request_rate", "burstiness") if is_trace or is_ramp else ():
        if getattr(rate, name) != getattr(RATE, name):
            whose = "a trace has its own arrivals" if is_trace else "a ramp has its own rates"
            raise InvalidRequest(name, whose)


def _times(rate: Rate, draw: random.Random) -> list[float]:
    from firsthand.checks import check_choice
    from firsthand.loadtest.arrivals import ramped_times, times_at

    first, last = rate.ramp_up_start_rps, rate.ramp_up_end_rps
    if rate.ramp_up_strategy is None:
        if first is not None or last is not None:
            raise InvalidRequest("ramp_up_strategy", "is needed for a ramp")
        return times_at(rate.request_rate, rate.num_prompts, rate.burstiness, draw)
    check_choice("ramp_up_strategy", rate.ramp_up_strategy, ("linear", "exponential"))
    if first is None or last is None:
        raise InvalidRequest("ramp_up_strategy", "needs --ramp-up-start-rps, --ramp-up-end-rps")
    return ramped_times(first, last, rate.num_prompts, is_linear=rate.ramp_up_strategy == "linear")


def _holder(load: Load, target: Any, patience_s: float) -> Any:
    """Keeps a rate; every step has prompts of its own."""
    from firsthand.loadtest.arrivals import Lengths, random_requests, times_at
    from firsthand.loadtest.playing import play

    draw = random.Random(load.seed)
    lengths = Lengths(load.random_input_len, load.random_output_len)

    def hold(rate: float, seconds: float, burstiness: float) -> Any:
        times = times_at(rate, max(1, round(rate * seconds)), burstiness, draw)
        return play(
            target, random_requests(times, lengths, draw), patience_s=2 * seconds + patience_s
        )

    return hold


def _plain(rate: float) -> float | str:
    return "inf" if rate == float("inf") else rate


def _print_result(found: dict[str, Any], metrics: list[str], percentiles: list[float]) -> None:
    print(
        f"{found['completed']} answered, {found['failed']} failed, in {found['duration']:.2f} s: "
        f"{found['request_throughput']:.4g} requests/s, {found['output_throughput']:.4g} tokens/s, "
        f"{found['max_concurrent_requests']} at once"
    )
    if found["request_goodput"] is not None:
        print(f"within the limits {found['request_goodput']:.4g} requests/s")
    headings = ("MS", "MEAN", *(f"P{one:g}" for one in percentiles))
    rows = [
        (
            name.upper(),
            f"{found[f'mean_{name}_ms']:.1f}",
            *(f"{found[f'p{one:g}_{name}_ms']:.1f}" for one in percentiles),
        )
        for name in metrics
    ]
    print_table(headings, rows)
    print(f"sent at most {found['p99_send_delay_ms']:.1f} ms late (P99), which is counted in")


def _print_knee(content: dict[str, Any]) -> None:
    knee, there = content["knee"], content["at_knee"]
    print(
        f"knee      {knee['rate']:.4g} requests/s ({knee['low']:.4g} to {knee['high']:.4g}, 95 %), "
        f"{there['output_tokens_per_second']:.4g} tokens/s"
    )
    print(
        f"there     {there['ongoing_requests']:.3g} under way; first token "
        f"{there['median_ttft_ms']:.0f} ms, P99 {there['p99_ttft_ms']:.0f} ms; answer "
        f"{there['median_e2el_ms']:.0f} ms, P99 {there['p99_e2el_ms']:.0f} ms"
    )
