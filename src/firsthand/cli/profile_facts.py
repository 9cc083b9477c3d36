"""How a profile and a machine's limits look, on a page and in JSON.

Owns: their layout.
May not know: how anything is measured; the values come from `measure`.
Read next: `measure/profile.py`.

Loaded by a command when it has something to show, so it may import what it shows.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import asdict
from typing import Any

from firsthand.cli.output import in_bytes, print_table
from firsthand.cli.report import op_as_dict
from firsthand.compute.executor import CallTime
from firsthand.measure.limits import MachineLimits
from firsthand.measure.profile import Profile

MIN_CALL_SHARE = 0.001  # of the time; the rest is in the JSON


def profile_as_dict(found: Profile) -> dict[str, Any]:
    return {
        "step": found.step,
        "num_tokens": found.num_tokens,
        "threads": found.threads,
        "total_ms": found.total_ms,
        "machine": found.machine.to_dict(),
        "groups": [asdict(group) for group in found.groups],
        "operators": [
            {**op_as_dict(one.op), "limit_share": one.limit_share} for one in found.operators
        ],
        "calls": [asdict(call) for call in found.calls],
    }


def print_profile(found: Profile) -> None:
    """Like operators together, the most time first."""
    rows = [
        (
            f"{group.ms:.2f}",
            f"{group.ms / found.total_ms:.1%}",
            str(group.count),
            in_bytes(group.num_bytes),
            f"{group.num_macs / 1e6:.1f} M",
            "-" if group.limit_share is None else f"{group.limit_share:.0%}",
            group.label,
        )
        for group in found.groups
    ]
    print_table(("MS", "TIME", "TIMES", "READS", "MACS", "OF LIMIT", "OPERATOR"), rows)
    print(f"{found.total_ms:.2f} ms in {len(found.operators)} operators, {found.num_tokens} rows")
    print(machine_line(found.machine))
    if found.calls:
        print_calls(found.calls)


def print_calls(calls: Sequence[CallTime]) -> None:
    """The calls of the library below, under its own profiler."""
    total_ms = sum(call.self_ms for call in calls)
    rows = [
        (
            f"{call.self_ms:.2f}",
            f"{call.self_ms / total_ms:.1%}",
            f"{call.total_ms:.2f}",
            f"{call.device_ms:.2f}",
            str(call.count),
            f"{'-' if call.allocated_bytes < 0 else ''}{in_bytes(abs(call.allocated_bytes))}",
            f"{call.num_flops / 1e6:.1f} M",
            call.name,
        )
        for call in calls
        if call.self_ms >= MIN_CALL_SHARE * total_ms or call.device_ms > 0
    ]
    print("\nthe calls below, under the library's profiler:")
    print_table(("SELF MS", "TIME", "ALL MS", "GPU MS", "TIMES", "TAKES", "FLOPS", "CALL"), rows)


def machine_line(machine: MachineLimits) -> str:
    return (
        f"this machine reads {machine.read_gb_per_second:.1f} GB/s, multiplies "
        f"{machine.int8_gmac_per_second:.0f} GMAC/s in 8 bits and "
        f"{machine.fp32_gflops:.0f} GFLOP/s in float32, with {machine.threads} threads"
    )
