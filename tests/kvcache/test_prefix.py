"""Prefixes: found when they are the same, and only then."""

from __future__ import annotations

import hashlib
import struct
from collections.abc import Sequence

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from firsthand.kvcache.blocks import BlockPool
from firsthand.kvcache.prefix import Digest, PrefixCache, block_digest

SIZE = 2


def cache(num_blocks: int = 16, digest: Digest = block_digest) -> PrefixCache:
    return PrefixCache(BlockPool(num_blocks, SIZE), digest)


def stored(prefix: PrefixCache, tokens: Sequence[int], salt: str = "") -> tuple[int, ...]:
    """Blocks of a sequence that computed `tokens`, published as far as they are full."""
    chain = prefix.chain(salt)
    blocks = prefix.pool.allocate(-(-len(tokens) // SIZE))
    assert blocks is not None
    for index in range(len(tokens) // SIZE):
        prefix.publish(chain, tokens, blocks[index])
    return blocks


def found(prefix: PrefixCache, tokens: Sequence[int], salt: str = "") -> tuple[int, ...]:
    return prefix.match(prefix.chain(salt), tokens, len(tokens) // SIZE)


def collides(parent: bytes, token_ids: Sequence[int]) -> bytes:
    return b"the same for all"


def collides_in_depth(parent: bytes, token_ids: Sequence[int]) -> bytes:
    """All first blocks collide; those below them differ by their own tokens only."""
    return b"first" if token_ids[0] >= 50 else bytes(token_ids)


def test_the_key_is_a_hash_of_parent_and_tokens() -> None:
    packed = b"parent" + struct.pack("=3i", 1, 2, 2**31 - 1)
    assert block_digest(b"parent", (1, 2, 2**31 - 1)) == hashlib.sha256(packed).digest()


def test_full_blocks_are_found_from_the_start() -> None:
    prefix = cache()
    blocks = stored(prefix, (1, 2, 3, 4, 5))
    assert found(prefix, (1, 2, 3, 4, 5, 6)) == blocks[:2]
    assert found(prefix, (1, 2, 3, 9)) == blocks[:1]
    assert found(prefix, (9, 2, 3, 4)) == ()
    assert found(prefix, (3, 4)) == ()  # the same tokens, at another place
    assert found(prefix, (1,)) == ()


def test_no_more_blocks_than_asked_for() -> None:
    prefix = cache()
    blocks = stored(prefix, (1, 2, 3, 4))
    assert prefix.match(prefix.chain(""), (1, 2, 3, 4), 1) == blocks[:1]


@pytest.mark.parametrize("other", ["", "b", "a ", "A", "\ud800", "ä"])
def test_kv_4_salts_share_nothing(other: str) -> None:
    prefix = cache()
    blocks = stored(prefix, (1, 2, 3, 4), salt="a")
    assert found(prefix, (1, 2, 3, 4), salt="a") == blocks
    assert found(prefix, (1, 2, 3, 4), salt=other) == ()


def test_s_52_a_hash_that_always_collides_gives_no_wrong_block() -> None:
    prefix = cache(digest=collides)
    blocks = stored(prefix, (1, 2, 3, 4))
    assert found(prefix, (1, 2)) == blocks[:1]
    for tokens in ((3, 4), (1, 3), (2, 1), (1, 2, 3, 4)):
        assert found(prefix, tokens) == (blocks[:1] if tokens[:2] == (1, 2) else ())
    assert found(prefix, (1, 2), salt="other") == ()
    assert stored(prefix, (7, 8, 9, 10)) is not None
    assert found(prefix, (7, 8, 9, 10)) == ()


def test_s_52_a_collision_of_parents_gives_no_child_of_the_other() -> None:
    prefix = cache(digest=collides_in_depth)
    blocks = stored(prefix, (50, 51, 3, 4))
    assert found(prefix, (50, 51, 3, 4)) == blocks
    assert stored(prefix, (60, 61, 5, 6)) is not None  # its first block could not be published
    assert found(prefix, (60, 61, 3, 4)) == ()
    assert found(prefix, (50, 51, 5, 6)) == blocks[:1]
    assert found(prefix, (60, 61, 5, 6)) == ()


def test_an_equal_block_is_published_once_and_its_children_hang_on_the_first() -> None:
    prefix = cache()
    first = stored(prefix, (1, 2, 3, 4))
    second = stored(prefix, (1, 2, 3, 4, 5, 6))
    assert found(prefix, (1, 2, 3, 4, 5, 6)) == (*first, second[2])


def test_a_child_is_not_found_below_another_content_of_its_parents_block() -> None:
    prefix = cache(num_blocks=2)
    blocks = stored(prefix, (1, 2, 3, 4))
    prefix.unpublish(blocks[:1])
    assert found(prefix, (1, 2, 3, 4)) == ()
    prefix.pool.free(blocks[:1])
    again = stored(prefix, (1, 2))
    assert again == blocks[:1]
    assert found(prefix, (1, 2, 3, 4)) == again  # published anew: nothing hangs on it yet


def test_an_evicted_block_is_not_found() -> None:
    prefix = cache(num_blocks=2)
    prefix.pool.free(stored(prefix, (1, 2, 3, 4)))
    assert prefix.pool.allocate(1) == (1,)  # the tail goes first
    assert found(prefix, (1, 2, 3, 4)) == (0,)
    assert prefix.pool.allocate(1) == (0,)
    assert found(prefix, (1, 2, 3, 4)) == ()


TOKENS = st.lists(st.integers(0, 2), min_size=1, max_size=9)


@settings(deadline=None, max_examples=150)
@given(st.lists(st.tuples(TOKENS, st.sampled_from(["", "s"])), max_size=12), st.booleans())
def test_what_is_found_holds_those_tokens(
    sequences: list[tuple[list[int], str]], forced: bool
) -> None:
    """Whatever was stored and evicted before, and however keys collide."""
    weak: Digest = lambda parent, token_ids: bytes([sum(token_ids) % 2])  # noqa: E731
    prefix = cache(num_blocks=6, digest=weak if forced else block_digest)
    content: dict[int, tuple[str, list[int]]] = {}
    for tokens, salt in sequences:
        chain = prefix.chain(salt)
        shared = prefix.match(chain, tokens, (len(tokens) - 1) // SIZE)
        for index, block_id in enumerate(shared):
            assert content[block_id] == (salt, tokens[: (index + 1) * SIZE])
        prefix.pool.share(shared)
        fresh = prefix.pool.allocate(-(-len(tokens) // SIZE) - len(shared)) or ()
        blocks = shared + fresh
        for index in range(len(shared), len(tokens) // SIZE):
            content[blocks[index]] = (salt, tokens[: (index + 1) * SIZE])
            prefix.publish(chain, tokens, blocks[index])
        prefix.pool.free(blocks)
        prefix.pool.check()
