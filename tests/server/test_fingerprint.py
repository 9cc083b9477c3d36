"""The word that says what answered: another one whenever bits may be others."""

from __future__ import annotations

from dataclasses import replace

import pytest

from firsthand.generation.load_options import LoadOptions
from firsthand.generation.report import AdapterFacts
from firsthand.generation.service import ModelFacts
from firsthand.server import fingerprint as fingerprints
from firsthand.server.fingerprint import fingerprint
from tests.server.fakes import FakeService


class Other(FakeService):
    def __init__(self, **facts: object) -> None:
        super().__init__()
        self.facts = facts

    @property
    def model(self) -> ModelFacts:
        return replace(super().model, **self.facts)  # type: ignore[arg-type]


def test_it_changes_with_what_the_bits_depend_on(monkeypatch: pytest.MonkeyPatch) -> None:
    options = [
        LoadOptions(),
        LoadOptions(kv_dtype="float32"),
        LoadOptions(quantization="int4"),
        LoadOptions(executor="torch"),
        LoadOptions(executor="torch", device="cuda"),
    ]
    words = [fingerprint(Other(numerics=one.numerics), "micro") for one in options]
    words += [fingerprint(Other(manifest_sha256=one * 64), "micro") for one in "ab"]
    adapted = Other(adapters={"sql": AdapterFacts("c" * 64, 8, 0)})
    words += [fingerprint(adapted, "sql")]
    assert fingerprint(adapted, "micro") == fingerprint(Other(), "micro")
    monkeypatch.setattr(fingerprints, "VERSION", "another")
    words += [fingerprint(Other(numerics=options[0].numerics), "micro")]
    assert len(set(words)) == len(words)
    assert all(len(one) == 15 and one.startswith("fp_") for one in words)


def test_it_does_not_change_with_how_fast_it_is() -> None:
    fast = LoadOptions(threads=3, block_size=32, max_step_tokens=64)
    assert fast.numerics == LoadOptions().numerics
