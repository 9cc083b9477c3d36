"""The commands of the alerts: export and test.

Owns: what is said of the files and of the trial.
May not know: what a rule says, how it is tried.
Read next: `../observe/alerts.py`, `../observe/alert_settings.py`.
"""

from __future__ import annotations

from dataclasses import asdict
from pathlib import Path
from typing import Annotated

import typer

from firsthand.cli.options import AsJson
from firsthand.cli.output import CHECK_FAILED, print_json, print_table, reported

Limits = Annotated[
    Path | None,
    typer.Option("--config", metavar="FILE", help="A TOML file of limits, receivers, targets."),
]
RESULTS = {True: "ok", False: "FAILED", None: "left out"}


def export(
    folder: Annotated[Path, typer.Argument(metavar="FOLDER", help="Where the files go.")],
    config: Limits = None,
    as_json: AsJson = False,
) -> None:
    """Write alert rules, their tests, and configurations for Prometheus and Alertmanager."""
    with reported(as_json):
        from firsthand.observe.alert_settings import read_alert_settings
        from firsthand.observe.exports import alert_files, write

        files = alert_files(read_alert_settings(config))
        write(files, folder)
        names = [str(folder / name) for name in files]
        if as_json:
            print_json({"files": names})
        else:
            print("\n".join(names))


def test(config: Limits = None, as_json: AsJson = False) -> None:
    """Try the rules on series that must fire them, and on others, with promtool and amtool."""
    with reported(as_json):
        from firsthand.observe.alert_settings import read_alert_settings
        from firsthand.observe.proving import prove

        outcomes = list(prove(read_alert_settings(config)))
        failed = [one for one in outcomes if one.passed is False]
        if as_json:
            print_json({"passed": not failed, "checks": [asdict(one) for one in outcomes]})
        else:
            rows = [(one.check, RESULTS[one.passed], _last_line(one.said)) for one in outcomes]
            print_table(("CHECK", "RESULT", "SAID"), rows)
            for one in failed:
                print(f"\n{one.said}")
        if failed:
            raise typer.Exit(CHECK_FAILED)


def _last_line(said: str) -> str:
    return said.splitlines()[-1].strip() if said else ""
