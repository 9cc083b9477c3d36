"""The budget: weights + scratch + process + KV cache ≤ limit, or a refusal that shows the sum.

Owns: the arithmetic from a limit to blocks, context and sequences, and the text of a limit.
May not know: models, files, how a number was measured.
Read next: `machine.py` (what is free), `generation/planning.py` (where the numbers come from).

Weights, scratch and the process are what they are; the KV cache gets what is left. It is never
larger than every sequence at full length would fill. It is address space: a block costs memory
from its first token on, so a large pool is free until it is used.

What the budget decides is how much runs at once and how long it may get, never what an answer is:
rotary frequencies come from the configured context, not from the one that memory allows.
"""

from __future__ import annotations

import re
from dataclasses import asdict
from typing import Any

from firsthand.checks import is_integer, shown
from firsthand.errors import CapacityExceeded, InvalidRequest
from firsthand.values import dataclass

DEFAULT_LIMIT = "80%"
MIN_CONTEXT = 256  # a context that nobody asked for may shrink to this, and no further
TYPICAL_TOKENS = 1024  # of one sequence, when it is asked how many fit
BYTES_OF_TYPE = {"float16": 2, "float32": 4, "int16": 2, "int8": 1}
SCALE_BYTES_OF_TYPE = {"float16": 0, "float32": 0, "int16": 4, "int8": 4}  # per head and token
UNITS = {"": 1, "B": 1, "k": 10**3, "m": 10**6, "g": 10**9, "t": 10**12}
UNITS |= {"kB": 10**3, "KB": 10**3, "MB": 10**6, "GB": 10**9, "TB": 10**12}
UNITS |= {"K": 2**10, "M": 2**20, "G": 2**30, "T": 2**40}
UNITS |= {"KiB": 2**10, "MiB": 2**20, "GiB": 2**30, "TiB": 2**40}


@dataclass(frozen=True, slots=True)
class Limit:
    """What one process may take. `num_bytes` None: nobody set a limit, and none was found."""

    num_bytes: int | None
    origin: str  # for a person

    def __str__(self) -> str:
        return "no limit" if self.num_bytes is None else f"{mib(self.num_bytes)} ({self.origin})"


@dataclass(frozen=True, slots=True)
class Fixed:
    """Bytes that have to be there whatever the KV cache gets. `estimated`: before a load."""

    weights_bytes: int
    scratch_bytes: int  # memory of one step
    process_bytes: int  # the interpreter, the libraries, the vocabulary
    estimated: bool
    draft_bytes: int = 0  # a smaller model that guesses, with all that it needs

    @property
    def num_bytes(self) -> int:
        return self.weights_bytes + self.scratch_bytes + self.process_bytes + self.draft_bytes


@dataclass(frozen=True, slots=True)
class Wish:
    """What the KV cache is to hold: so many sequences of up to so many tokens.

    A context that was asked for is kept or refused; the model's own may be lowered to what fits.
    Likewise a number of sequences that nobody asked for: to as many as have `TYPICAL_TOKENS` each.
    One that was asked for is kept, because not all sequences get long; who finds no room waits.
    `headroom` ≥ 1 is the contiguous store's: see `kvcache/regions.py`.
    """

    bytes_per_token: int
    block_size: int
    context_length: int
    context_is_asked: bool
    max_sequences: int
    sequences_are_asked: bool
    headroom: float = 1.0

    def blocks(self, num_tokens: float) -> int:
        return int(-(-num_tokens // self.block_size))


@dataclass(frozen=True, slots=True)
class Budget:
    """Who gets what. `context_length` and `max_sequences` are what can be promised; a context that
    is below `wished_context_length` is so because memory allows no more."""

    limit: Limit
    fixed: Fixed
    bytes_per_token: int
    block_size: int
    num_blocks: int
    context_length: int
    wished_context_length: int
    max_sequences: int

    @property
    def kv_bytes(self) -> int:
        """The most that the cache can fill; it is resident as far as tokens were written."""
        return self.num_blocks * self.block_size * self.bytes_per_token

    @property
    def num_bytes(self) -> int:
        return self.fixed.num_bytes + self.kv_bytes

    @property
    def shared_bytes(self) -> int:
        """What is enough beside other models: keys and values of all sequences with
        `TYPICAL_TOKENS` each, or of one at full length, whichever is more."""
        each = -(-min(self.context_length, TYPICAL_TOKENS) // self.block_size)
        whole = -(-self.context_length // self.block_size)
        num_blocks = min(self.num_blocks, max(whole, self.max_sequences * each))
        return self.fixed.num_bytes + num_blocks * self.block_size * self.bytes_per_token

    def rows(self) -> list[tuple[str, int, float]]:
        """(what, bytes, share of the limit), the limit's last; without one, shares of the sum."""
        parts = [
            ("weights", self.fixed.weights_bytes),
            ("scratch", self.fixed.scratch_bytes),
            ("process", self.fixed.process_bytes),
            ("KV cache", self.kv_bytes),
        ]
        if self.fixed.draft_bytes:
            parts.append(("draft", self.fixed.draft_bytes))
        whole = self.limit.num_bytes
        if whole is not None:
            parts += [("left", whole - self.num_bytes), ("limit", whole)]
        else:
            parts.append(("sum", self.num_bytes))
        return [(what, count, count / parts[-1][1]) for what, count in parts]

    def to_dict(self) -> dict[str, Any]:
        """Plain values for JSON."""
        return {
            "limit_bytes": self.limit.num_bytes,
            "limit_origin": self.limit.origin,
            **asdict(self.fixed),
            "kv_bytes": self.kv_bytes,
            "kv_bytes_per_token": self.bytes_per_token,
            "kv_block_size": self.block_size,
            "kv_num_blocks": self.num_blocks,
            "context_length": self.context_length,
            "wished_context_length": self.wished_context_length,
            "max_sequences": self.max_sequences,
        }


def kv_bytes_per_token(num_layers: int, num_kv_heads: int, head_size: int, kv_dtype: str) -> int:
    """layers × heads × 2 (key and value) × head size × bytes of the type, and scales of codes."""
    head_bytes = head_size * BYTES_OF_TYPE[kv_dtype] + SCALE_BYTES_OF_TYPE[kv_dtype]
    return num_layers * num_kv_heads * 2 * head_bytes


def room_for_weights(limit: Limit, fixed: Fixed, wish: Wish) -> int | None:
    """What is left for weights beside scratch, process, and the least that the cache is to hold: a
    context that was asked for, else `TYPICAL_TOKENS`, of each sequence that was asked for."""
    if limit.num_bytes is None:
        return None
    tokens = min(wish.context_length, TYPICAL_TOKENS)
    blocks = wish.blocks(tokens) * (wish.max_sequences if wish.sequences_are_asked else 1)
    if wish.context_is_asked:
        blocks = max(blocks, wish.blocks(wish.context_length))
    kv_bytes = blocks * wish.block_size * wish.bytes_per_token
    return limit.num_bytes - (fixed.num_bytes - fixed.weights_bytes) - kv_bytes


def make_budget(limit: Limit, fixed: Fixed, wish: Wish) -> Budget:
    """Share out the limit. Raises CapacityExceeded when not even one sequence fits."""
    fit = None
    if limit.num_bytes is not None:
        left_bytes = limit.num_bytes - fixed.num_bytes
        fit = max(0, left_bytes) // (wish.block_size * wish.bytes_per_token)
    _check_fit(limit, fixed, wish, fit)
    context_length = wish.context_length
    if fit is not None:
        context_length = min(context_length, fit * wish.block_size)
    max_sequences = wish.max_sequences
    if fit is not None and not wish.sequences_are_asked:
        each = wish.blocks(min(context_length, TYPICAL_TOKENS) * wish.headroom)
        max_sequences = min(max_sequences, max(1, fit // each))
    num_blocks = max_sequences * wish.blocks(context_length * wish.headroom)
    return Budget(
        limit=limit,
        fixed=fixed,
        bytes_per_token=wish.bytes_per_token,
        block_size=wish.block_size,
        num_blocks=num_blocks if fit is None else min(num_blocks, fit),
        context_length=context_length,
        wished_context_length=wish.context_length,
        max_sequences=max_sequences,
    )


def _check_fit(limit: Limit, fixed: Fixed, wish: Wish, fit: int | None) -> None:
    tokens = wish.context_length
    if not wish.context_is_asked:
        tokens = min(tokens, MIN_CONTEXT)
    if fit is None or fit >= wish.blocks(tokens):
        return
    kv_bytes = wish.blocks(tokens) * wish.block_size * wish.bytes_per_token
    needed = fixed.num_bytes + kv_bytes
    ways = f"memory_limit={-(-needed // 2**20)}MiB would hold it"
    if fit * wish.block_size >= MIN_CONTEXT:
        ways += f", max_context={fit * wish.block_size} would fit"
    draft = f", the draft {mib(fixed.draft_bytes)}" if fixed.draft_bytes else ""
    raise CapacityExceeded(
        f"{mib(needed)} are needed and the limit is {limit}: weights "
        f"{mib(fixed.weights_bytes)}, scratch {mib(fixed.scratch_bytes)}, the process "
        f"{mib(fixed.process_bytes)}{draft}, keys and values of {tokens} tokens {mib(kv_bytes)}"
        f"{'; estimated before the load' if fixed.estimated else ''}. {ways}"
    )


def share_of(value: str | int) -> float | None:
    """0.8 for "80%"; None when the limit is in bytes. Raises InvalidRequest on anything else."""
    found = re.fullmatch(r"([0-9]{1,3})%", value, re.ASCII) if isinstance(value, str) else None
    if found is None:
        read_bytes(value)
        return None
    if not 1 <= int(found[1]) <= 100:
        raise InvalidRequest("memory_limit", f"a share is 1% to 100%, not {value}")
    return int(found[1]) / 100


def part_of_limit(value: str | int, num_parts: int) -> str | int:
    """What each of so many on one machine may take: a share is divided, bytes are each one's own.
    Raises InvalidRequest."""
    share = share_of(value)
    return value if share is None else f"{max(1, int(100 * share / num_parts))}%"


def read_bytes(value: str | int) -> int:
    """2147483648, or a text such as "2GiB", "1.5G" (the same kind) or "2GB" (powers of ten)."""
    count = value if is_integer(value) else None
    if isinstance(value, str):
        number = r"([0-9]{1,15})(\.[0-9]{1,6})?\s*([A-Za-z]*)"
        found = re.fullmatch(number, value.strip(), re.ASCII)
        if found is not None and found[3] in UNITS and not (found[2] and UNITS[found[3]] == 1):
            count = int(float(found[1] + (found[2] or "")) * UNITS[found[3]])
    if count is None or count < 1:
        raise InvalidRequest(
            "memory_limit",
            "must be a number of bytes such as 2GiB, or a share of what is free such as 80%, not "
            f"{shown(value)}",
        )
    return count


def resolve_limit(value: str | int, free_bytes: int | None) -> Limit:
    """The limit in bytes. A share of what cannot be measured is no limit."""
    share = share_of(value)
    if share is None:
        return Limit(read_bytes(value), "as given")
    if free_bytes is None:
        return Limit(None, "what is free cannot be measured here")
    return Limit(int(free_bytes * share), f"{value} of the {mib(free_bytes)} that are free")


def mib(num_bytes: int) -> str:
    return f"{num_bytes / 2**20:,.1f} MiB"
