"""A change of a matrix that costs little: two thin ones in place of a whole.

Owns: `LowRank`, the only form of it.
May not know: files, models, who adds it.
Read next: `weights/adapters.py`, which reads such changes; `compute/ops.py`, `linear`, which adds
them to a product, and `weights/merging.py`, which adds them to the matrix for good.
"""

from __future__ import annotations

import numpy as np
from numpy.typing import NDArray

from firsthand.values import dataclass


@dataclass(frozen=True, slots=True, eq=False)
class LowRank:
    """weight (N, K) becomes weight + b (N, r) · a (r, K), where r is the rank; the scale of the
    change is in b. arXiv 2106.09685, section 4.1."""

    weight: str
    a: NDArray[np.float32]
    b: NDArray[np.float32]

    @property
    def num_bytes(self) -> int:
        return self.a.nbytes + self.b.nbytes
