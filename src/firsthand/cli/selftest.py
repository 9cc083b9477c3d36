"""The command that proves the whole path on this machine: selftest.

Owns: how the outcome of a check is shown, and what it means for the exit code.
May not know: what is checked.
Read next: `properties.py`, the checks; `micro_model.py`, the model that they run; `verify.py`,
which proves a part of it on a model of one's own.
"""

from __future__ import annotations

from dataclasses import asdict
from pathlib import Path

import typer

from firsthand.cli.options import AsJson
from firsthand.cli.output import CHECK_FAILED, RESULTS, print_json, print_table, reported


def selftest(as_json: AsJson = False) -> None:
    """Prove the whole path on a small generated model."""
    with reported(as_json):
        from tempfile import TemporaryDirectory

        from firsthand.cli.micro_model import write_micro_model
        from firsthand.cli.properties import run_checks

        with TemporaryDirectory() as folder:
            checks = list(run_checks(write_micro_model(Path(folder))))
        passed = [check for check in checks if check.passed]
        failed = [check for check in checks if check.passed is False]
        if as_json:
            print_json({"passed": not failed, "checks": [asdict(check) for check in checks]})
        else:
            rows = [(c.name, RESULTS[c.passed], f"{c.ms:.0f}", c.seen) for c in checks]
            print_table(("CHECK", "RESULT", "MS", "SEEN"), rows)
            left_out = len(checks) - len(passed) - len(failed)
            print(f"{len(passed)} passed, {len(failed)} failed, {left_out} left out")
        if failed:
            raise typer.Exit(CHECK_FAILED)
