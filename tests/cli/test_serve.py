"""What `firsthand serve` says in its own words."""

from __future__ import annotations

import pytest

from firsthand.cli.serve import typed
from firsthand.errors import CapacityExceeded


def test_advice_names_what_can_be_typed() -> None:
    text = "memory_limit=230MiB would hold it, max_context=1024 would fit; lower max_sequences"
    with pytest.raises(CapacityExceeded) as told, typed():
        raise CapacityExceeded(text)
    assert str(told.value) == (
        "--memory-limit 230MiB would hold it, --max-model-len 1024 would fit; lower --max-num-seqs"
    )
