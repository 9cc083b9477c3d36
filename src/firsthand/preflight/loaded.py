"""The items that load the model: its bits, as the promise has them.

Owns: which properties are asked.
May not know: how they are proven (`evaluate/parity.py`).
Read next: `served.py`.
"""

from __future__ import annotations

from collections.abc import Iterator

from firsthand.evaluate.parity import PROPERTIES, load_for_proof, prove
from firsthand.generation.load_options import LoadOptions
from firsthand.generation.loading import LoadedModel
from firsthand.preflight.items import Item, LeftOut, Wrong
from firsthand.values import dataclass

ASKED = {
    "prefix": "a reused cache answers as a cold one",
    "company": "an answer is the same in company",
}


@dataclass(slots=True)
class Loaded:
    """The model is loaded by the first item that needs it; `close` lets it go."""

    model: str
    options: LoadOptions
    _loaded: LoadedModel | None = None

    def items(self) -> Iterator[Item]:
        for name, title in ASKED.items():
            todo = f"do not deploy: firsthand verify MODEL --only {name} shows the first difference"
            yield Item(title, todo, lambda name=name: self._proven(name))  # type: ignore[misc]

    def _proven(self, name: str) -> str:
        if self.options.executor != "native":
            raise LeftOut("equal bits are the promise of the native executor")
        if self._loaded is None:
            self._loaded = load_for_proof(self.model, self.options)
        *_, outcome = prove(self._loaded, [name])
        if not outcome.passed:
            raise Wrong(f"{PROPERTIES[name][0]}: {outcome.seen}")
        return f"{outcome.num_logits} logits, {outcome.seen}"

    def close(self) -> None:
        self._loaded = None
