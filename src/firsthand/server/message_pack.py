"""How many objects a MessagePack body would become, and whether a key repeats: from its bytes.

Owns: the walk over the heads of its items. May not know: what they mean, whether they are sound.
Read next: `body.py`, which asks before it decodes; MessagePack's specification has the heads.
"""

from __future__ import annotations

from collections.abc import Sequence

from firsthand.values import dataclass

# fmt: off
# Bytes after the head: numbers, and extensions of a fixed length with their type.
_FIXED = {
    0xCA: 4, 0xCB: 8, 0xCC: 1, 0xCD: 2, 0xCE: 4, 0xCF: 8, 0xD0: 1, 0xD1: 2, 0xD2: 4, 0xD3: 8,
    0xD4: 2, 0xD5: 3, 0xD6: 5, 0xD7: 9, 0xD8: 17,
}
# Bytes of the length that follows the head: of bytes, or of items.
_LENGTH = {
    0xC4: 1, 0xC5: 2, 0xC6: 4, 0xC7: 1, 0xC8: 2, 0xC9: 4, 0xD9: 1, 0xDA: 2, 0xDB: 4,
    0xDC: 2, 0xDD: 4, 0xDE: 2, 0xDF: 4,
}
# fmt: on
_EXTENSIONS = (0xC7, 0xC8, 0xC9)  # their type is a byte more
_ITEMS = {0xDC: 1, 0xDD: 1, 0xDE: 2, 0xDF: 2}  # per unit of the length: arrays, maps


class RepeatedKey(ValueError):
    """`steps` lead to the key."""

    def __init__(self, steps: Sequence[int | str]) -> None:
        super().__init__(f"the key {str(steps[-1])[:80]!r} stands there twice")
        self.steps = steps


def check_items(content: bytes, limit: int) -> None:
    """Raises ValueError where there are, or are said to be, more than `limit` items, keys and
    values included; RepeatedKey where one map has a key twice, of which a decoder would keep the
    last.

    A decoder makes room for what is said, so that counts before it is there. At most `limit` items
    are looked at.
    """
    at, num_seen, num_due = 0, 0, 1
    opened: list[_Opened] = []
    while num_due and at < len(content):
        head = content[at]
        at += 1
        num_seen += 1
        num_inside = _num_inside(content, at, head)
        num_due += num_inside - 1
        if num_seen + num_due > limit:
            raise ValueError(f"MessagePack of over {limit} items")
        end = at + _num_bytes(content, at, head)
        while opened and not opened[-1].num_left:
            opened.pop()
        if opened and not opened[-1].take(_key(content, at, end, head)):
            raise RepeatedKey([one.step for one in opened])
        if num_inside:
            opened.append(_Opened(num_inside, set() if _is_map(head) else None))
        at = end


@dataclass(slots=True)
class _Opened:
    """An array, or a map with the keys that were there. `step` leads to the item last taken."""

    num_left: int
    keys: set[bytes] | None
    step: int | str = -1

    def take(self, content: bytes) -> bool:
        """Its next item, in a map keys and values in turns; False: a key that was there."""
        is_key = self.num_left % 2 == 0
        self.num_left -= 1
        if self.keys is None:
            self.step = int(self.step) + 1
        elif is_key:
            self.step = content[1:].decode("utf-8", "replace")
            if content in self.keys:
                return False
            self.keys.add(content)
        return True


def _key(content: bytes, at: int, end: int, head: int) -> bytes:
    """Equal for equal texts, whatever form their length has."""
    if 0xA0 <= head <= 0xBF or 0xD9 <= head <= 0xDB:
        return b"\xa0" + content[at + _LENGTH.get(head, 0) : end]
    return content[at - 1 : end]


def _is_map(head: int) -> bool:
    return 0x80 <= head <= 0x8F or head in (0xDE, 0xDF)


def _num_inside(content: bytes, at: int, head: int) -> int:
    """Items in the one whose head ends before `at`."""
    if 0x80 <= head <= 0x8F:
        return 2 * (head & 0x0F)
    if 0x90 <= head <= 0x9F:
        return head & 0x0F
    if head in _ITEMS:
        return _ITEMS[head] * int.from_bytes(content[at : at + _LENGTH[head]])
    return 0


def _num_bytes(content: bytes, at: int, head: int) -> int:
    """Bytes between `at` and the next head."""
    if 0xA0 <= head <= 0xBF:
        return head & 0x1F
    size = _LENGTH.get(head)
    if size is None:
        return _FIXED.get(head, 0)
    if head in _ITEMS:
        return size
    return size + int.from_bytes(content[at : at + size]) + (head in _EXTENSIONS)
