"""What a family is: the one value that its file ends with, and the table has a row for.

Owns: `Family`.
May not know: any one family.
Read next: `llama.py`, the first of them; `families.py`, the table.
"""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

from firsthand.models.spec import PLAIN, ModelSpec, Reading
from firsthand.values import dataclass
from firsthand.weights.checkpoint import GgufLayout, Slot


@dataclass(frozen=True, slots=True)
class Family:
    """One architecture: what files call it, what they hold, and what is computed.

    `slots(spec)` are the tensors that `forward(ops, spec)` names. `gguf_name` None: GGUF files of
    it call themselves by another family's name. `has_experts` tells two of one GGUF name apart.
    """

    config_name: str  # the entry of `architectures` in config.json
    gguf_name: str | None  # the value of `general.architecture` in GGUF
    gguf_layout: GgufLayout
    slots: Callable[[ModelSpec], tuple[Slot, ...]]
    forward: Callable[..., Any]
    config: Reading = PLAIN
    gguf: Reading = PLAIN
    has_experts: bool = False
