"""Option texts become typed values, or are refused by name."""

from __future__ import annotations

import pytest

from firsthand.cli.options import logit_bias
from firsthand.errors import InvalidRequest


def test_logit_bias() -> None:
    assert logit_bias(["15=-2.5", "7=1"]) == {15: -2.5, 7: 1.0}
    assert logit_bias(None) == {}


@pytest.mark.parametrize("pairs", [["15"], ["a=1"], ["1="], ["=1"], ["1=1", "1=2"], ["1=2=3"]])
def test_a_bad_logit_bias_is_named(pairs: list[str]) -> None:
    with pytest.raises(InvalidRequest, match="logit_bias"):
        logit_bias(pairs)
