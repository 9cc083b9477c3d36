"""One form of JSON: RFC 8785's own numbers, the order of keys, what is refused."""

from __future__ import annotations

import json

import pytest
from hypothesis import given
from hypothesis import strategies as st

from firsthand.canonical import canonical


def test_numbers_are_written_as_ecmascript_does() -> None:
    numbers = [1.0, 0.1, 1e-7, 1e-6, 1e21, 1e20, 123456789012345680000.0, -0.0, 5e-324, 1.5e300]
    expected = b"[1,0.1,1e-7,0.000001,1e+21,100000000000000000000,123456789012345680000,0,"
    assert canonical(numbers) == expected + b"5e-324,1.5e+300]"


def test_keys_go_by_their_utf_16_units() -> None:
    assert (
        canonical({"\ufb33": 1, "\U0001f600": 2, "a": 3})
        == '{"a":3,"\U0001f600":2,"\ufb33":1}'.encode()
    )


@given(st.floats(allow_nan=False, allow_infinity=False))
def test_a_number_comes_back(value: float) -> None:
    assert float(json.loads(canonical(value))) == value


@pytest.mark.parametrize("value", [float("nan"), float("inf"), b"x", {1, 2}])
def test_what_has_no_form_is_refused(value: object) -> None:
    with pytest.raises(ValueError, match="no form"):
        canonical(value)
