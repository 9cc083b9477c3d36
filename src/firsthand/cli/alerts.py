"""The commands of the alerts: export, test, receive, answer, review.

Owns: what is said of files, trial and record, and where the record is.
May not know: what a rule says, how it is tried or judged.
Read next: `../observe/alerts.py`, `../observe/alert_settings.py`.
"""

from __future__ import annotations

from dataclasses import asdict
from pathlib import Path
from typing import Annotated

import typer

from firsthand.checks import shown
from firsthand.cli.options import AsJson
from firsthand.cli.output import CHECK_FAILED, RESULTS, print_json, print_table, reported, say
from firsthand.config import read_environment
from firsthand.errors import InvalidRequest

Limits = Annotated[
    Path | None,
    typer.Option("--config", metavar="FILE", help="A TOML file of limits, receivers, targets."),
]
Record = Annotated[
    Path | None,
    typer.Option("--record", metavar="FILE", help="Default: alerts.jsonl in Firsthand's cache."),
]


def export(
    folder: Annotated[Path, typer.Argument(metavar="FOLDER", help="Where the files go.")],
    config: Limits = None,
    as_json: AsJson = False,
) -> None:
    """Write alert rules, their tests, and configurations for Prometheus and Alertmanager."""
    with reported(as_json):
        from firsthand.observe.alert_settings import read_alert_settings
        from firsthand.observe.exports import alert_files, write

        settings = read_alert_settings(config)
        files = alert_files(settings)
        write(files, folder)
        names = [str(folder / name) for name in files]
        if as_json:
            print_json({"files": names})
        else:
            print("\n".join(names))
            say(
                f"limits: first token {settings.ttft_p99:g} s, answer {settings.latency_p99:g} s, "
                f"queue {settings.queue_p95:g} s, slow request {settings.slow_request:g} s"
            )


def test(
    folder: Annotated[
        Path | None,
        typer.Argument(
            metavar="[FOLDER]", help="Files of `alerts export`, as they are now; default: new ones."
        ),
    ] = None,
    config: Limits = None,
    as_json: AsJson = False,
) -> None:
    """Try the rules on series that must fire them, and on others, with promtool and amtool."""
    with reported(as_json):
        from firsthand.observe.alert_settings import read_alert_settings
        from firsthand.observe.proving import prove, prove_folder

        if folder is not None and config is not None:
            raise InvalidRequest("config", "is that of new files; those of FOLDER are as they are")
        wanted = prove(read_alert_settings(config)) if folder is None else prove_folder(folder)
        outcomes = list(wanted)
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


def receive(
    record: Record = None,
    port: Annotated[int, typer.Option(min=0, max=65535, help="Of this machine alone.")] = 9095,
    bots: Annotated[
        Path | None,
        typer.Option(
            metavar="FILE", help="Tell these bots of a team's chat too, a TOML file; default: none."
        ),
    ] = None,
) -> None:
    """Take Alertmanager's webhooks, keep each alert in the record, and tell a team's chat."""
    with reported():
        import time

        from firsthand.config import read_environment
        from firsthand.observe.bots import read_bots, tell_all
        from firsthand.observe.received import AlertRecord, Notice, NotTold, Receiver

        told = read_bots(bots) if bots is not None else []
        language = read_environment().language

        def tell(notices: list[Notice]) -> None:
            try:
                tell_all(told, notices, language, time.time())
            except NotTold as error:
                say(f"not told: {error}")
                raise

        path = _path(record)
        receiver = Receiver(AlertRecord(path), port, time.time, tell)
        say(f"Alerts to http://127.0.0.1:{receiver.port} are kept in {path}")
        receiver.run()


def answer(
    alert: Annotated[str, typer.Argument(metavar="ALERT", help="Its name.")],
    note: Annotated[str, typer.Argument(metavar="NOTE", help="What was done.")],
    record: Record = None,
) -> None:
    """Note in the record that somebody acted on an alert."""
    with reported():
        import time

        from firsthand.observe.alert_settings import AlertSettings
        from firsthand.observe.alerts import rules
        from firsthand.observe.received import AlertRecord, Answer

        kept = AlertRecord(_path(record))
        known = {rule.name for rule in rules(AlertSettings(gpu_utilization=True))}
        known |= {notice.alert for notice in kept.read()[0]}
        if alert not in known:
            raise InvalidRequest("ALERT", f"{shown(alert)} is none of {', '.join(sorted(known))}")
        kept.add(Answer(time.time(), alert, note))


def review(
    days: Annotated[int, typer.Option(min=1, max=3650, help="How far to look back.")] = 30,
    record: Record = None,
    prometheus: Annotated[
        str | None,
        typer.Option(metavar="URL", help="Take what fired from there, not from the record."),
    ] = None,
    config: Limits = None,
    as_json: AsJson = False,
) -> None:
    """Show what fired and nobody acted on, what flaps, and what never fired."""
    with reported(as_json):
        import time

        from firsthand.observe.alert_settings import read_alert_settings
        from firsthand.observe.alerts import rules
        from firsthand.observe.asking import fired
        from firsthand.observe.received import AlertRecord
        from firsthand.observe.review import DAY_S, episodes_of_record
        from firsthand.observe.review import review as judge

        now_s = time.time()
        since_s = now_s - days * DAY_S
        notices, answers = AlertRecord(_path(record)).read()
        if prometheus is None:
            episodes = episodes_of_record(notices)
        else:
            episodes = fired(prometheus, since_s, now_s)
        tiers = {rule.name: rule.tier for rule in rules(read_alert_settings(config))}
        verdicts = judge(episodes, answers, tiers, since_s, now_s)
        if as_json:
            print_json({"days": days, "alerts": [asdict(one) for one in verdicts]})
            return
        loud = [one for one in verdicts if one.num_fired]
        print_table(
            ("ALERT", "TIER", "FIRED", "UNANSWERED", "FLAPPED", "HOURS", "WHAT TO DO"),
            [
                (
                    *(one.alert, one.severity, str(one.num_fired), str(one.num_unanswered)),
                    *(str(one.num_flapping), f"{one.total_s / 3600:.1f}"),
                    "it fires now" if one.fires_now and not one.advice else one.advice,
                )
                for one in loud
            ],
        )
        if prometheus is None and not notices:
            say(f"nothing is on record in {_path(record)}: `firsthand alerts receive` keeps it")
            return
        silent = [one.alert for one in verdicts if not one.num_fired]
        print(f"never fired in {days} days: {', '.join(silent) or 'none'}")


def _path(record: Path | None) -> Path:
    return record or read_environment().alert_record
