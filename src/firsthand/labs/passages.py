"""The texts that models are asked to read or to go on with in a lab.

Owns: the texts. May not know: what is done with them.
Read next: `attention_labs.py`.
"""

from __future__ import annotations

from typing import Final

PROSE: Final = (
    "The river rises in the hills above the town, where snow lies until the end of April. In "
    "spring "
    "the water is high, and the old mill at the bridge is closed. In summer children swim below "
    "the bridge, and people from the town sit on the bank until it is dark. In autumn the leaves "
    "of "
    "the poplars lie on the water, and in winter the river is so low that one can cross it on the "
    "stones."
)
QUESTION: Final = "The capital of France is"
