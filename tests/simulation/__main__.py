"""`make simulate SEED=… STEPS=…`: the seeds from SEED on, until STEPS steps are done.

Owns: the command line. May not know: anything else. Read next: `runs.py`.
"""

from __future__ import annotations

import argparse
import sys
import time

from tests.simulation.runs import run_parallel, told


def main() -> int:
    parser = argparse.ArgumentParser(prog="simulate")
    parser.add_argument("--seed", type=int, default=0)
    parser.add_argument("--steps", type=int, default=10_000_000)
    parser.add_argument("--processes", type=int, default=2)
    given = parser.parse_args()
    began_s = time.monotonic()
    num_processes = given.processes if given.steps > 10_000 else 1
    report = run_parallel(given.seed, given.steps, num_processes)
    if report.failure is not None:
        print(told(report.failure), file=sys.stderr)
        return 1
    took_s = time.monotonic() - began_s
    print(f"{report.num_steps} steps of {report.num_seeds} seeds in {took_s:.1f} s: all hold")
    for what, count in sorted(report.seen.items()):
        print(f"  {count:>9}  {what}")
    return 0


if __name__ == "__main__":
    sys.exit(main())
