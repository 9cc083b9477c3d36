"""The command plan capacity.

Owns: its options, the layout of a plan.
May not know: the arithmetic, how a knee was measured.
Read next: `../loadtest/capacity.py`; `loadtest.py`, which measures.
"""

from __future__ import annotations

from pathlib import Path
from typing import Annotated, Any

import typer

from firsthand.checks import check_number
from firsthand.cli import options
from firsthand.cli.output import print_json, reported
from firsthand.errors import InvalidRequest

MAX_SLO_MS = 1e9


def capacity(
    qps: Annotated[float, typer.Option(help="Requests per second.")],
    from_file: Annotated[
        Path | None, typer.Option("--from", metavar="FILE", help="Of `bench knee`; default: none.")
    ] = None,
    tokens_per_second: Annotated[
        float | None, typer.Option(help="Of one replica, without --from; default: none.")
    ] = None,
    tokens: Annotated[
        float | None, typer.Option(help="Of an answer; default: those of the measurement.")
    ] = None,
    peak: Annotated[
        float | None, typer.Option(help="The peak's rate by the mean one; default: 1.")
    ] = None,
    qps_is_peak: Annotated[
        bool, typer.Option("--qps-is-peak", help="The given rate is the peak already.")
    ] = False,
    redundancy: Annotated[float, typer.Option(help="Replicas by those that are needed.")] = 1.0,
    slo_ttft: Annotated[
        str | None,
        typer.Option(metavar="TIME", help="That 99 % of first tokens take, 500ms; default: none."),
    ] = None,
    cost_per_hour: Annotated[
        float | None, typer.Option(help="Of one replica, in any currency; default: not known.")
    ] = None,
    as_json: options.AsJson = False,
) -> None:
    """Say how many replicas a load needs, and on what assumptions."""
    with reported(as_json):
        from firsthand.loadtest import capacity as planning
        from firsthand.loadtest.curve import read_curve

        limit_ms = None if slo_ttft is None else _milliseconds(slo_ttft)
        wanted = planning.Wanted(
            qps, tokens, peak, qps_is_peak, redundancy, limit_ms, cost_per_hour
        )
        if (from_file is None) == (tokens_per_second is None):
            raise InvalidRequest("from", "one of --from KNEE.json and --tokens-per-second")
        if from_file is not None:
            replica = planning.replica_of_curve(read_curve(from_file), wanted)
        else:
            assert tokens_per_second is not None
            replica = planning.replica_of_rate(tokens_per_second, wanted)
        found = planning.plan(replica, wanted)
        if as_json:
            print_json(found.to_dict())
        else:
            _print_plan(found.to_dict())


def _milliseconds(text: str) -> float:
    """`500ms` or `0.5s`. Raises InvalidRequest."""
    for unit, factor in (("ms", 1.0), ("s", 1e3)):
        if text.endswith(unit):
            try:
                found = float(text.removesuffix(unit)) * factor
            except ValueError:
                break
            check_number("slo_ttft", found, 0, MAX_SLO_MS, low_open=True)
            return found
    raise InvalidRequest("slo_ttft", f"must be a time such as 500ms or 0.5s, not {text[:40]!r}")


def _print_plan(found: dict[str, Any]) -> None:
    cost = found["cost_per_1k_tokens"]
    price = "" if cost is None else f", which cost {cost:.4g}"
    print(f"replicas  {found['replicas']}")
    print(
        f"peak      {found['qps_at_peak']:.4g} requests/s × redundancy {found['redundancy']:g} / "
        f"{found['qps_per_replica']:.4g} a replica"
    )
    print(
        f"headroom  {found['headroom']:.0%} beyond the peak, which uses "
        f"{found['utilization_at_peak']:.0%}"
    )
    print(f"1k tokens {found['machine_seconds_per_1k_tokens']:.4g} machine seconds{price}")
    print(found["advice"])
    print("Assumed:")
    for line in found["assumptions"]:
        print(f"  - {line}")
    if found["question"] is not None:
        print(found["question"])
