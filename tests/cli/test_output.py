"""One line of JSON, the right exit code, and nothing else on standard output."""

from __future__ import annotations

import json

import pytest
import typer

from firsthand.cli.output import exit_code, in_bytes, print_json, print_table, reported, table
from firsthand.errors import (
    CapacityExceeded,
    CheckpointError,
    ContextLengthExceeded,
    DownloadFailed,
    EngineError,
    FirsthandError,
    InvalidRequest,
    ModelNotFound,
    TemplateError,
    UnsupportedModel,
)

CODES: list[tuple[BaseException, int]] = [
    (InvalidRequest("top_p", "too large"), 2),
    (ContextLengthExceeded("prompt", "too long"), 2),
    (TemplateError("messages", "refused"), 2),
    (ModelNotFound("x"), 4),
    (DownloadFailed("x"), 4),
    (CapacityExceeded("x"), 5),
    (MemoryError(), 5),
    (CheckpointError("file", "damaged"), 1),
    (UnsupportedModel("x"), 1),
    (EngineError("x"), 1),
    (FirsthandError("x"), 1),
    (ValueError("ours"), 1),
    (OSError(28, "No space left on device"), 1),
    (KeyboardInterrupt(), 130),
]


@pytest.mark.parametrize(("error", "code"), CODES, ids=lambda value: type(value).__name__)
def test_each_error_has_its_exit_code(
    error: BaseException, code: int, capsys: pytest.CaptureFixture[str]
) -> None:
    assert exit_code(error) == code
    with pytest.raises(typer.Exit) as done, reported(as_json=True):
        raise error
    assert done.value.exit_code == code
    captured = capsys.readouterr()
    (line,) = captured.out.splitlines()
    said = json.loads(line)["error"]
    assert said["type"] == type(error).__name__
    assert said["message"]
    if not isinstance(error, KeyboardInterrupt):  # which `run_command` tells
        assert said["message"] in captured.err


def test_without_json_standard_output_stays_empty(capsys: pytest.CaptureFixture[str]) -> None:
    with pytest.raises(typer.Exit), reported():
        raise ModelNotFound("no such model")
    captured = capsys.readouterr()
    assert captured.out == ""
    assert captured.err == "error: no such model\n"


def test_a_fault_of_ours_keeps_its_traceback(capsys: pytest.CaptureFixture[str]) -> None:
    with pytest.raises(typer.Exit), reported():
        raise ZeroDivisionError("ours")
    assert "Traceback" in capsys.readouterr().err


def test_an_error_of_the_system_has_none(capsys: pytest.CaptureFixture[str]) -> None:
    with pytest.raises(typer.Exit), reported():
        raise PermissionError(13, "Permission denied", "model.gguf")
    said = capsys.readouterr().err
    assert said == "error: [Errno 13] Permission denied: 'model.gguf'\n"


def test_a_message_of_many_lines_is_one_line_of_json(capsys: pytest.CaptureFixture[str]) -> None:
    with pytest.raises(typer.Exit), reported(as_json=True):
        raise ModelNotFound("a\nb 世界")
    assert json.loads(capsys.readouterr().out)["error"]["message"] == "a\nb 世界"


def test_json_has_no_nan() -> None:
    with pytest.raises(ValueError, match="JSON"):
        print_json({"x": float("nan")})


@pytest.mark.parametrize(
    ("count", "text"),
    [
        (0, "0 B"),
        (1023, "1023 B"),
        (1536, "1.5 KiB"),
        (98_362_432, "93.8 MiB"),
        (2**40, "1024.0 GiB"),
    ],
)
def test_in_bytes(count: int, text: str) -> None:
    assert in_bytes(count) == text


def test_a_table_of_no_rows_is_its_headings(capsys: pytest.CaptureFixture[str]) -> None:
    print_table(("name", "size"), [])
    assert capsys.readouterr().out == "name  size\n"


def test_the_widest_column_gives_way() -> None:
    rows = [("a" * 30, "1 B"), ("b", "22 B")]
    assert table(("NAME", "SIZE"), rows, 24) == [
        "NAME                SIZE",
        "aaaaaaaaaaaaaaaaa…   1 B",
        "b                   22 B",
    ]
    assert table(("NAME", "SIZE"), rows, 99) == table(("NAME", "SIZE"), rows)
    assert max(map(len, table(("NAME", "SIZE"), rows, 1))) == 12 + 2 + 4
