"""The rivals' installation: each step once, a failure stops only what needs it.

Owns: steps that install nothing. May not know: any real engine.
Read next: `bench/rivals/install.py`.
"""

from __future__ import annotations

from pathlib import Path

import pytest

from bench.rivals.engines import ENGINES, OURS
from bench.rivals.install import TORCH, Step, do, do_all, make_folders, steps


@pytest.fixture
def rivals(tmp_path: Path) -> Path:
    make_folders(tmp_path)
    return tmp_path


def appending(name: str, path: Path, *needs: str, text: str = "x") -> Step:
    return Step(name, [["sh", "-c", f"printf {text} >> '{path}'"]], needs)


def test_a_step_is_done_once_and_again_when_its_commands_change(rivals: Path) -> None:
    trace = rivals / "trace"
    for _ in range(2):
        assert do(appending("a", trace), rivals)
    assert trace.read_text() == "x"
    assert do(appending("a", trace, text="y"), rivals)
    assert trace.read_text() == "xy"


def test_a_failure_stops_what_needs_it_and_nothing_else(
    rivals: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    trace = rivals / "trace"
    chosen = [
        Step("fails", [["false"]]),
        Step("absent", [["no-such-program"]]),
        appending("needs", trace, "absent"),
        appending("other", trace, text="z"),
    ]
    assert do_all(chosen, rivals) == {"fails", "absent", "needs"}
    assert trace.read_text() == "z"
    assert "needs: left out, for want of absent" in capsys.readouterr().err
    assert do_all(chosen[:1], rivals) == {"fails"}, "a failed step leaves no stamp"


def test_the_steps_make_what_the_engines_are_run_from(rivals: Path) -> None:
    found = steps(rivals, rivals / "a.gguf")
    named = {word for step in found for command in step.commands for word in command}
    interpreters = {step.interpreter for step in found}
    for engine in ENGINES:
        if engine.name != OURS:
            assert engine.folder in interpreters
        if engine.model:
            assert str(rivals / "models" / engine.model) in named
    done: set[str] = set()
    for step in found:
        assert set(step.needs) <= done, f"{step.name} comes before what it needs"
        done.add(step.name)


def test_no_other_pytorch_can_be_chosen(rivals: Path) -> None:
    """Whatever is installed beside PyTorch is held to its version."""
    for step in steps(rivals, rivals / "a.gguf"):
        for command in step.commands:
            if "install" in command and "convert" in Path(command[0]).parts[-3]:
                assert TORCH in command or str(rivals / "torch.txt") in command
