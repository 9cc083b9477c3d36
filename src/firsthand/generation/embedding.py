"""One vector for a text: its hidden states, pooled.

Owns: what is done with the sum that the engine gives: mean, length, number of dimensions.
May not know: models, how a sum came to be.
Read next: `engine/readings.py`, which adds the hidden states; `llm.py` and `service.py` ask.

A hidden state is what the head reads: the last layer's result after the final norm, that is the
last of transformers' hidden states. `last` takes that of the last token, which alone has seen the
whole text; `mean` the average over all tokens. Of a vector that is cut to its first dimensions the
length is made 1 after the cut. All sums are float64 in a fixed order and are rounded to float32
once, so a text has the same bits in any company.
"""

from __future__ import annotations

import math
from typing import TypedDict

import numpy as np
from numpy.typing import NDArray

from firsthand.checks import check_choice, check_integer, shown
from firsthand.errors import EngineError, InvalidRequest
from firsthand.generation.completion import Completion
from firsthand.request import Pooling
from firsthand.values import dataclass

SUM = np.dtype("<f8")


class Company(TypedDict, total=False):
    """The options of a generation that also say with whom a text is computed; see `Options`."""

    priority: str | None
    tenant: str | None
    cache_salt: str | None
    adapter: str | None
    timeout_s: float | None


@dataclass(frozen=True, slots=True)
class Shape:
    """How vectors are made, of hidden states of `width`. `dimensions` None: all of them.

    Raises InvalidRequest, naming the field.
    """

    width: int
    pooling: str = Pooling.LAST.value
    normalize: bool = True
    dimensions: int | None = None

    def __post_init__(self) -> None:
        check_choice("pooling", self.pooling, tuple(Pooling))
        if not isinstance(self.normalize, bool):
            raise InvalidRequest("normalize", f"must be True or False, not {shown(self.normalize)}")
        if self.dimensions is not None:
            check_integer("dimensions", self.dimensions, 1, self.width)

    def vector(self, completion: Completion) -> NDArray[np.float32]:
        """The vector of a prompt that was pooled. Raises EngineError where that failed."""
        if not completion.pooled:
            raise EngineError(f"a text was not pooled: {completion.finish.cause}")
        values = np.frombuffer(completion.pooled, SUM)
        if self.pooling == Pooling.MEAN:
            values = values / completion.usage.prompt_tokens
        values = values[: self.dimensions]
        if self.normalize:
            length = math.sqrt(math.fsum(values * values))
            values = values / (length or 1.0)
        return values.astype(np.float32)
