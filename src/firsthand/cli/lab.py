"""The command that runs the lessons: lab.

Owns: its options, how a lab and its evidence look on a terminal, what they mean for the exit code.
May not know: any one lab.
Read next: `../labs/`.
"""

from __future__ import annotations

import re
from pathlib import Path
from typing import Annotated, Any

import typer

from firsthand.cli.options import AsJson
from firsthand.cli.output import CHECK_FAILED, print_json, print_table, reported, say
from firsthand.errors import InvalidRequest

DEFAULT_MODEL = "smollm2-135m"
LINE = 96
WIDE, CLOSING = r"\u2e80-\u9fff\uff01-\uff60", "，。；：、？！）》”"
UNITS = re.compile(rf"[（《“]*(?:[{WIDE}]|[^\s{WIDE}]{{1,{LINE - 16}}})[{CLOSING}]* *")

HEADINGS = {
    "en": ("LAB", "SECONDS", "SOURCE", "LESSON"),
    "zh": ("实验", "秒", "出处", "课题"),
}
WORDS = {
    "en": {
        "colon": ": ",
        "question": "Question",
        "cause": "Cause",
        "cure": "Cure",
        "places": "In the code",
        "shows": "{measure}: faulty {faulty}, ours {ours}, limit {limit}: {verdict}",
        "holds": "the fault shows, ours does not",
        "fails": "NOT as it should be",
        "ran": "{name}: {seconds:.1f} s",
    },
    "zh": {
        "colon": "：",
        "question": "问题",
        "cause": "原因",
        "cure": "解法",
        "places": "代码位置",
        "shows": "{measure}：错误做法 {faulty}，本系统 {ours}，界限 {limit}：{verdict}",
        "holds": "错误可见，本系统没有",
        "fails": "与预期不符",
        "ran": "{name}：{seconds:.1f} 秒",
    },
}


def lab(
    name: Annotated[
        str | None, typer.Argument(help="The lab to run; without one, all are listed.")
    ] = None,
    every: Annotated[
        bool, typer.Option("--all", help="Run all of them, one after another.")
    ] = False,
    lang: Annotated[str | None, typer.Option(help="en or zh; default: as the locale says.")] = None,
    figure: Annotated[
        Path | None,
        typer.Option(metavar="FILE", help="Draw what was seen, .png or .svg; default: no file."),
    ] = None,
    model: Annotated[
        str, typer.Option(help="For labs that need a real one: a name, a path or a hub id.")
    ] = DEFAULT_MODEL,
    as_json: AsJson = False,
) -> None:
    """See a lesson with your own eyes: the faulty way beside ours."""
    with reported(as_json):
        from firsthand.checks import check_choice
        from firsthand.config import read_environment
        from firsthand.labs.registry import find_lab, labs
        from firsthand.labs.words import LANGUAGES

        language = lang or read_environment().language
        check_choice("lang", language, LANGUAGES)
        if every and (name is not None or figure is not None):
            raise InvalidRequest("all", "goes without a name and without --figure")
        chosen = list(labs().values()) if every else [] if name is None else [find_lab(name)]
        if not chosen:
            _list(list(labs().values()), language, as_json)
            return
        if figure is not None:
            from firsthand.measure.ablation_plot import check_plot

            check_plot(figure)
        outcomes = _run(chosen, language, model, figure, as_json)
        if as_json:
            print_json({"labs": outcomes} if every else outcomes[0])
        if not all(one["evidence"]["holds"] for one in outcomes):
            raise typer.Exit(CHECK_FAILED)


def _list(known: list[Any], language: str, as_json: bool) -> None:
    if as_json:
        print_json({"labs": [one.to_dict(language) for one in known]})
        return
    rows = [
        (one.name, str(one.seconds), ", ".join(one.sources), one.title.of(language))
        for one in known
    ]
    print_table(HEADINGS[language], rows)


def _run(
    chosen: list[Any], language: str, model: str, figure: Path | None, as_json: bool
) -> list[dict[str, Any]]:
    import time
    from tempfile import TemporaryDirectory

    from firsthand.cli.micro_model import write_micro_model
    from firsthand.labs.workbench import Workbench

    outcomes = []
    with TemporaryDirectory() as folder:
        bench = Workbench(model, write_micro_model, Path(folder))
        for one in chosen:
            began_s = time.perf_counter()
            evidence = one.run(bench)
            seconds = time.perf_counter() - began_s
            found = {**one.to_dict(language), "ran_s": seconds}
            outcomes.append({**found, "evidence": evidence.to_dict(language)})
            if not as_json:
                _print(one, evidence, language)
            say(WORDS[language]["ran"].format(name=one.name, seconds=seconds))
            if figure is not None:
                from firsthand.labs.figure import write_figure

                write_figure(evidence.charts, language, figure)
                say(f"wrote {figure}")
    return outcomes


def _print(one: Any, evidence: Any, language: str) -> None:
    from firsthand.labs.drawing import draw
    from firsthand.labs.words import rounded, said

    words = WORDS[language]
    print(f"{one.name}: {one.title.of(language)} ({', '.join(one.sources)})\n")
    colon = words["colon"]
    _paragraph(words["question"], one.question.of(language), colon)
    cells = [[said(cell, language) for cell in row] for row in evidence.rows]
    rows = [tuple(one if isinstance(one, str) else rounded(one) for one in row) for row in cells]
    print_table([heading.of(language) for heading in evidence.headings], rows, whole=True)
    for chart in evidence.charts:
        print()
        print("\n".join(draw(chart, language)))
    for passage in evidence.passages:
        print()
        _paragraph(passage.what.of(language), passage.text, colon)
    print()
    print(
        words["shows"].format(
            measure=evidence.measure.of(language),
            faulty=rounded(evidence.fault_shows),
            ours=rounded(evidence.ours_does_not),
            limit=rounded(evidence.limit),
            verdict=words["holds" if evidence.holds else "fails"],
        )
    )
    print()
    _paragraph(words["cause"], one.cause.of(language), colon)
    _paragraph(words["cure"], one.cure.of(language), colon)
    print(f"{words['places']}{words['colon']}{', '.join(one.places)}")


def _paragraph(heading: str, text: str, colon: str) -> None:
    print("\n".join(wrapped(f"{heading}{colon}{text}", LINE)))


def wrapped(text: str, columns: int) -> list[str]:
    """Lines of at most so many columns, where a Chinese character takes two; they break at spaces
    and between Chinese characters, and none begins with a mark that closes."""
    from rich.cells import cell_len

    lines, line = [], ""
    for unit in UNITS.findall(re.sub(r"\s", " ", text)):
        if line.strip() and cell_len(line) + cell_len(unit.rstrip()) > columns:
            lines.append(line.rstrip())
            line = "  "
        line += unit
    return [*lines, line.rstrip()]
