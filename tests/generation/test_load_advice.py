"""What is recommended: the table, and the machine's memory over it."""

from __future__ import annotations

from pathlib import Path

import pytest

from firsthand.errors import CapacityExceeded, InvalidRequest
from firsthand.generation import load_advice
from firsthand.generation.load_advice import advise_load
from firsthand.generation.load_options import LoadOptions
from tests.generation.test_swapping import write_model


@pytest.mark.parametrize(
    ("billions", "per_hour", "load", "table"),
    [
        (0.9, None, "whole", "whole"),
        (0.9, 60.0, "whole", "whole"),
        (0.9, 0.5, "lazy", "whole"),
        (3.0, None, "shards", "shards"),
        (3.0, 0.0, "lazy-shards", "shards"),
        (30.0, None, "shards", "shards"),
    ],
)
def test_s85_the_table(
    micro_folder: Path,
    monkeypatch: pytest.MonkeyPatch,
    billions: float,
    per_hour: float | None,
    load: str,
    table: str,
) -> None:
    size = advise_load(micro_folder, LoadOptions()).num_parameters
    monkeypatch.setattr(load_advice, "WHOLE_BELOW", size / billions)
    monkeypatch.setattr(load_advice, "DEVICES_ABOVE", size / billions * 10)
    found = advise_load(micro_folder, LoadOptions(), per_hour)
    assert (found.load, found.table, found.swapped_bytes) == (load, table, 0)
    assert any("several devices" in why for why in found.why) == (billions > 10)


def test_s85_what_does_not_fit_goes_in_shards_and_the_sum_is_shown(tmp_path: Path) -> None:
    model = write_model(tmp_path / "model", 256, 768, 48)
    options = LoadOptions(quantization="none", memory_limit=104 << 20, threads=1)
    found = advise_load(model, options)
    assert (found.load, found.table) == ("shards", "whole")
    assert found.held_bytes + found.swapped_bytes == found.weights_bytes
    assert 0 < found.swapped_bytes < found.weights_bytes
    assert found.step_s == found.swapped_bytes / 1e9
    assert "does not fit into 104.0 MiB (as given)" in " ".join(found.why)
    assert found.to_dict()["load"] == "shards"
    with pytest.raises(CapacityExceeded):
        advise_load(model, LoadOptions(quantization="none", memory_limit=1 << 20))
    with pytest.raises(InvalidRequest, match="requests_per_hour"):
        advise_load(model, options, -1.0)
