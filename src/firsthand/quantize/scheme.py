"""What a model is to become: the options of a quantisation, checked.

Owns: their names, defaults and ranges, and which of them go together.
May not know: files, how an option is carried out.
Read next: `quantize.py`.
"""

from __future__ import annotations

from typing import Final, Literal, get_args

from firsthand.checks import check_choice, check_integer
from firsthand.errors import InvalidRequest
from firsthand.quant.grid import Grid
from firsthand.values import dataclass

Method = Literal["nearest", "searched", "compensated", "scaled"]
Kind = Literal["int8", "int4", "int3", "w8a8"]
GROUP_STEP: Final = 16
MAX_GROUP: Final = 256
DEFAULT_GROUP: Final = {"int8": 0, "int4": 32, "int3": 32, "w8a8": 0}
HEAD_GRID: Final = Grid(8, None, symmetric=True)
DEFAULT_MAX_LOSS: Final = 5.0


@dataclass(frozen=True, slots=True)
class Scheme:
    """`kind`: weights of 8, 4 or 3 bits, or weights and activations of 8. `group`: columns that
    share a scale, 0 for a whole row; None: 32 below 8 bits, else a whole row. `zeros`: a zero point
    for each group. `method`: nearest; searched, the nearest with a searched scale; compensated
    (GPTQ); scaled (AWQ). `mixed`: layers are widened to 8 bits, the most sensitive first, up to
    `budget` bits per weight. `head`: embedding and head too, in 8 bits with one scale per row.
    `max_loss`: what the perplexity may grow by, in percent.
    """

    kind: Kind = "int4"
    group: int | None = None
    zeros: bool = False
    method: Method = "compensated"
    mixed: bool = False
    budget: float | None = None
    smoothing: float = 0.5
    head: bool = False
    max_loss: float = DEFAULT_MAX_LOSS
    force: bool = False

    def __post_init__(self) -> None:
        check_choice("scheme", self.kind, get_args(Kind))
        check_choice("method", self.method, get_args(Method))
        if self.group is not None:
            check_integer("group", self.group, 0, 1 << 16)
            if self.group % GROUP_STEP or self.group > MAX_GROUP:
                raise InvalidRequest(
                    "group", f"must be 0, or a multiple of {GROUP_STEP} up to {MAX_GROUP}"
                )
        if self.kind == "w8a8" and (self.zeros or self.group or self.mixed):
            raise InvalidRequest("scheme", "w8a8 has one scale per row, no zeros, and is not mixed")
        if self.mixed != (self.budget is not None):
            raise InvalidRequest("budget", "goes with auto-mixed, and auto-mixed with a budget")
        if self.mixed and self.kind not in ("int4", "int3"):
            raise InvalidRequest("auto_mixed", "widens layers of int4 or int3")
        if self.budget is not None and not self.bits < self.budget <= 16:
            raise InvalidRequest("budget", f"must be above {self.bits} and at most 16 bits")
        if not 0 <= self.smoothing <= 1:
            raise InvalidRequest("smoothing", "must be 0 … 1")
        if not 0 <= self.max_loss <= 1000:
            raise InvalidRequest("max_loss", "must be 0 … 1000 percent")

    @property
    def bits(self) -> int:
        return {"int8": 8, "int4": 4, "int3": 3, "w8a8": 8}[self.kind]

    @property
    def grid(self) -> Grid:
        group = DEFAULT_GROUP[self.kind] if self.group is None else self.group
        return Grid(self.bits, group or None, not self.zeros)

    @property
    def wide_grid(self) -> Grid:
        """That of the layers that `mixed` widens."""
        return Grid(8, self.grid.group, not self.zeros)

    @property
    def rounds_activations(self) -> bool:
        return self.kind == "w8a8"

    @property
    def needs_calibration(self) -> bool:
        return self.method in ("compensated", "scaled") or self.mixed or self.rounds_activations
