"""Finding computed blocks again: a chain of content hashes, checked against the tokens.

Owns: what makes two blocks the same, and the proof of it on every hit.
May not know: who asks, how many owners a block has, what is in the memory.
Read next: `blocks.py`, which keeps the blocks that nobody has until their memory is needed.

Keys and values of a token depend on all the tokens before it, so a block is the same as another
only if its own tokens and everything before them are the same, and if both belong to one salt. The
key of a full block is SHA-256 of (key of the block before it, its token ids); that of the first
begins with the salt. Keys only find a candidate. A hit needs three equalities: the tokens, the
salt, and that the candidate was published as the child of the very block that was hit before it.
So a collision, by chance or forced, costs a hit and never gives a wrong prefix.
"""

from __future__ import annotations

from array import array
from collections.abc import Callable, Hashable, Iterable, Sequence
from dataclasses import field
from hashlib import sha256

from firsthand.kvcache.blocks import BlockPool
from firsthand.values import dataclass

Digest = Callable[[bytes, Sequence[int]], bytes]

_NO_PARENT = 0
_BROKEN = -1  # stands for a parent that could not be published: nothing hangs below it


def block_digest(parent: bytes, token_ids: Sequence[int]) -> bytes:
    """The key of a block from that of the block before it. Token ids are below 2³¹."""
    return sha256(parent + array("i", token_ids).tobytes()).digest()


@dataclass(frozen=True, slots=True)
class _Entry:
    """What a published block holds. `serial` is never used again, unlike a block's id."""

    serial: int
    parent: int
    salt: str
    token_ids: tuple[int, ...]


@dataclass(slots=True, eq=False)
class Chain:
    """The full blocks of one sequence, from its start. Made by `PrefixCache.chain`.

    `keys` are computed as far as anybody asked; `serials` are those of the entries that stand for
    the first blocks: matched, or published.
    """

    salt: str
    root: bytes
    keys: list[bytes] = field(default_factory=list)
    serials: list[int] = field(default_factory=list)

    @property
    def num_published(self) -> int:
        return len(self.serials)


class PrefixCache:
    """The published blocks of one pool, so of one model with one store. `digest` is for tests."""

    def __init__(self, pool: BlockPool, digest: Digest = block_digest) -> None:
        self._pool = pool
        self._digest = digest
        self._entries: dict[int, _Entry] = {}  # by block id; at most one per block of the pool
        self._next_serial = 1

    @property
    def pool(self) -> BlockPool:
        return self._pool

    def chain(self, salt: str) -> Chain:
        """For a new sequence. Sequences of different salts share nothing."""
        return Chain(salt, sha256(salt.encode("utf-8", "surrogatepass")).digest())

    def match(self, chain: Chain, known: Sequence[int], num_blocks: int) -> tuple[int, ...]:
        """Blocks that hold the first tokens of `known`, at most `num_blocks`.

        They are nobody's new property: `share` them, or forget them. The chain then stands at the
        end of what was matched.
        """
        found: list[int] = []
        serials: list[int] = []
        parent = _NO_PARENT
        for index in range(num_blocks):
            block_id = self._pool.lookup(self._key(chain, known, index))
            if block_id is None:
                break
            entry = self._entries[block_id]
            if not self._is(entry, chain, parent, self._tokens(known, index)):
                break
            found.append(block_id)
            serials.append(entry.serial)
            parent = entry.serial
        chain.serials = serials
        return tuple(found)

    def publish(self, chain: Chain, known: Sequence[int], block_id: int) -> None:
        """The next block of the chain is computed, full, and will not be written again.

        If an equal block is known already, this one stays private and the chain goes on from that.
        """
        index = len(chain.serials)
        parent = chain.serials[-1] if index else _NO_PARENT
        if parent == _BROKEN:
            chain.serials.append(_BROKEN)
            return
        key, tokens = self._key(chain, known, index), self._tokens(known, index)
        other = self._pool.lookup(key)
        if other is not None:
            entry = self._entries[other]
            same = self._is(entry, chain, parent, tokens)
            chain.serials.append(entry.serial if same else _BROKEN)
            return
        self._pool.publish(block_id, key)
        self._entries[block_id] = _Entry(self._next_serial, parent, chain.salt, tokens)
        chain.serials.append(self._next_serial)
        self._next_serial += 1

    def unpublish(self, block_ids: Iterable[int]) -> None:
        """Nobody shall find these blocks again: what wrote them has failed."""
        self._pool.unpublish(block_ids)

    def _is(self, entry: _Entry, chain: Chain, parent: int, tokens: tuple[int, ...]) -> bool:
        return entry.token_ids == tokens and entry.parent == parent and entry.salt == chain.salt

    def _key(self, chain: Chain, known: Sequence[int], index: int) -> Hashable:
        keys = chain.keys
        while len(keys) <= index:
            parent = keys[-1] if keys else chain.root
            keys.append(self._digest(parent, self._tokens(known, len(keys))))
        return keys[index]

    def _tokens(self, known: Sequence[int], index: int) -> tuple[int, ...]:
        size = self._pool.block_size
        return tuple(known[index * size : (index + 1) * size])
