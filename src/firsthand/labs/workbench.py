"""What a lab may take in hand: the real model, a small one, a folder to spoil.

Owns: one of each for a run of labs, made when it is first asked for.
May not know: any lab.
Read next: `forward.py`.
"""

from __future__ import annotations

import shutil
from collections.abc import Callable
from pathlib import Path
from tempfile import mkdtemp
from typing import Unpack

from firsthand.config import read_environment
from firsthand.generation.llm import LLM
from firsthand.generation.load_options import LoadKeywords
from firsthand.labs.forward import Forward, open_forward
from firsthand.weights.catalogue import resolve

MakeModel = Callable[[Path], Path]  # writes a small checkpoint into a folder that is there


class Workbench:
    """`model` is a name, a path or a hub id: it must be on this machine. `folder` is the labs' own,
    and its owner removes it."""

    def __init__(self, model: str, make_small: MakeModel, folder: Path) -> None:
        self._model = model
        self._make_small = make_small
        self._folder = folder
        self._small: Path | None = None
        self._forward: Forward | None = None

    def new_folder(self) -> Path:
        """An empty one."""
        return Path(mkdtemp(dir=self._folder))

    def small_model(self) -> Path:
        """A checkpoint of random weights whose tokens are bytes."""
        if self._small is None:
            self._small = self._make_small(self.new_folder())
        return self._small

    def real_model(self) -> Path:
        """Raises ModelNotFound, with the command that fetches it."""
        return resolve(self._model, read_environment()).path

    def forward(self) -> Forward:
        """The real model in plain floats, for a fault in its formulas."""
        if self._forward is None:
            self._forward = open_forward(self.real_model())
        return self._forward

    def engine(self, **options: Unpack[LoadKeywords]) -> LLM:
        """The real model in the engine; the caller closes it."""
        return LLM(self.real_model(), **options)


def another_model(small: Path, folder: Path, number: int) -> Path:
    """The small model once more, in a new folder; with another number it is another model."""
    shutil.copytree(small, folder)
    weights = folder / "model.safetensors"
    content = bytearray(weights.read_bytes())
    cut = len(content) - 4000 * number
    content[cut:] = content[cut - 4000 * number : cut]
    weights.write_bytes(content)
    return folder
