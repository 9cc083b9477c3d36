"""The commands of a cascade: calibrate, choose.

Owns: their options.
May not know: how anything is measured, decided or shown.
Read next: `../evaluate/cascade.py`, `../evaluate/cascade_report.py`; docs/cascade.md.
"""

from __future__ import annotations

from pathlib import Path
from typing import Annotated, Any

import typer

from firsthand.cli import options
from firsthand.cli.output import print_json, print_table, reported, say
from firsthand.files import check_writable

Confidence = Annotated[
    float, typer.Option(help="Keep answers that are worth so much of the large one's, 0 to 1.")
]


def calibrate(
    small: Annotated[
        str, typer.Argument(metavar="SMALL", help="MODEL, or MODEL@FORMAT (none, int8, int4).")
    ],
    large: Annotated[str, typer.Argument(metavar="LARGE", help="The same of the large one.")],
    prompts: Annotated[
        Path, typer.Option(metavar="FILE", help="JSON lines of prompt, perhaps with reference.")
    ],
    out: Annotated[Path, typer.Option(metavar="FILE", help="Where the calibration goes.")],
    confidence: Confidence = 0.8,
    window: Annotated[int, typer.Option(help="Tokens of an answer that are looked at.")] = 16,
    max_tokens: Annotated[int, typer.Option(help="New tokens at most.")] = 64,
    measure: Annotated[
        str | None, typer.Option(help="mean or least; default: the one that tells more.")
    ] = None,
    form: Annotated[
        str, typer.Option(help="chat: by the models' templates; text: plain prompts.")
    ] = "chat",
    loading: options.Loading = options.LOADING,
    as_json: options.AsJson = False,
) -> None:
    """Let both models answer a set, and learn what the small one's confidence is worth."""
    with reported(as_json):
        from firsthand.evaluate.cascade import Fit, calibrated
        from firsthand.evaluate.pairs import read_questions

        check_writable("out", out)
        fit = Fit(form, measure or "", window, confidence, max_tokens)
        questions = read_questions(prompts)
        chosen: Any = options.load_keywords(loading)
        made, samples = calibrated(small, large, questions, fit, chosen, progress)
        out.write_bytes(made.content())
        show_cascade(made, samples, as_json=as_json)


def choose(
    file: Annotated[Path, typer.Argument(metavar="FILE", help="Of `cascade calibrate`.")],
    confidence: Confidence,
    as_json: options.AsJson = False,
) -> None:
    """Set the threshold of a calibration."""
    with reported(as_json):
        from firsthand.cascade.calibration import read_calibration, with_confidence
        from firsthand.weights.places import write_atomically

        made = with_confidence(read_calibration(file), confidence)
        write_atomically(file.resolve(), made.content())
        if as_json:
            print_json(made.to_dict())
        else:
            print(f"{file}: answers worth {confidence:g} or more are kept")


def progress(model: str, done: int, total: int) -> None:
    if done == total or done % 10 == 0:
        say(f"{model}: {done} of {total} answers")


def show_cascade(made: Any, samples: Any, *, as_json: bool) -> None:
    """A `Calibration` and its samples, as `eval` shows them too."""
    from firsthand.evaluate import cascade_report as report

    facts = report.as_facts(made, samples)
    if facts["warning"] is not None:
        say(f"warning: {facts['warning']}")
    if as_json:
        print_json(facts)
    else:
        print(report.as_lines(made))
        print_table(report.HEADINGS, report.as_rows(made, samples))
