"""The random bits of a draw: published vectors, evenness, and what they depend on.

Owns: the check of the random stream. May not know: logits.
Read next: `test_sampler.py`, the rest of the way to a token.
"""

from __future__ import annotations

import itertools
from collections import Counter

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from firsthand.compute.native import _native
from firsthand.engine import sampler_reference

pytestmark = pytest.mark.native

WORD = 2**32 - 1
WIDE = st.integers(0, 2**64 - 1)

# The known answers published beside the paper: counter, key, result.
VECTORS = [
    ((0, 0, 0, 0), (0, 0), (0x6627E8D5, 0xE169C58D, 0xBC57AC4C, 0x9B00DBD8)),
    ((WORD,) * 4, (WORD,) * 2, (0x408F276D, 0x41C83B0E, 0xA20BC7C6, 0x6D5451FD)),
    (
        (0x243F6A88, 0x85A308D3, 0x13198A2E, 0x03707344),
        (0xA4093822, 0x299F31D0),
        (0xD16CFE09, 0x94FDCCEB, 0x5001E420, 0x24126EA1),
    ),
]


@pytest.mark.parametrize(("counter", "key", "result"), VECTORS)
def test_philox_gives_the_published_answers(
    counter: tuple[int, int, int, int], key: tuple[int, int], result: tuple[int, ...]
) -> None:
    assert tuple(_native.philox4x32(counter, key)) == result
    assert sampler_reference.philox4x32(counter, key) == result


@settings(deadline=None, max_examples=200)
@given(seed=WIDE, position=WIDE)
def test_bits_equal_the_reference(seed: int, position: int) -> None:
    assert _native.random_bits(seed, position) == sampler_reference.random_bits(seed, position)


def test_every_bit_of_seed_and_position_matters() -> None:
    """SAMPLE-8: 0 is a seed like any other, and no two seeds share a stream."""
    edges = [0, 1, 2**31, 2**32 - 1, 2**32, 2**63, 2**64 - 1, *(1 << bit for bit in range(64))]
    edges = sorted(set(edges))
    drawn = {_native.random_bits(seed, p) for seed, p in itertools.product(edges, edges)}
    assert len(drawn) == len(edges) ** 2
    assert _native.random_bits(1, 0) != _native.random_bits(0, 1)


@pytest.mark.parametrize("shift", [0, 31, 58])
def test_bits_are_even_over_positions_and_over_seeds(shift: int) -> None:
    """N-8: χ² of six bits, 63 degrees of freedom; 103.4 is passed with p = 0.001."""
    for by_seed in (False, True):
        pairs = ((i, 7) if by_seed else (7, i) for i in range(50_000))
        counts = Counter(_native.random_bits(*pair) >> shift & 63 for pair in pairs)
        expected = 50_000 / 64
        assert sum((counts[b] - expected) ** 2 / expected for b in range(64)) < 103.4


@pytest.mark.parametrize(("seed", "position"), [(-1, 0), (2**64, 0), (0, -1), (0, 2**64)])
def test_what_is_no_64_bit_number_is_refused(seed: int, position: int) -> None:
    with pytest.raises(TypeError):
        _native.random_bits(seed, position)
