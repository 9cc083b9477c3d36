"""The calibration set: real text, named by its hash, and what is refused as one.

Owns: when a text is fit to calibrate on, its cutting into sequences, and the part that is kept back
to judge the result.
May not know: models, what is measured.
Read next: `quantize.py`.
Seen in: `firsthand lab calibration`.

A quantisation learns from its calibration set how large inputs are. Random characters teach it the
wrong sizes, and the loss shows only in use; so does a text that is too short. Refused are fewer
tokens than one can estimate from, a text that says the same again and again, and one without order:
that compresses hardly better than its own characters, shuffled. Its last tenth is kept back.
"""

from __future__ import annotations

import bz2
import hashlib
import json
import random
from collections.abc import Callable
from dataclasses import asdict
from typing import Final

import numpy as np
from numpy.typing import NDArray

from firsthand.checks import check_integer
from firsthand.errors import InvalidRequest
from firsthand.values import dataclass

LEAST_TOKENS: Final = 2_048
DEFAULT_TOKENS: Final = 16_384
SEQUENCE: Final = 512
KEPT_BACK: Final = 10  # one in so many parts
PROBED_CHARS: Final = 200_000
MOST_OF_SHUFFLED: Final = 0.97  # random characters: 0.99 and more; text: 0.8 and less
LEAST_OF_TEXT: Final = 0.04  # compressed bytes for a byte: less is repetition


@dataclass(frozen=True, slots=True, eq=False)
class Calibration:
    """sequences (S, L) of token ids, and the text that is kept back. `artefact` names it all."""

    sequences: NDArray[np.int64]
    kept_back: str
    artefact: Artefact


@dataclass(frozen=True, slots=True)
class Artefact:
    """What a calibration set was: written beside the model that it made."""

    text_sha256: str
    text_bytes: int
    tokens_sha256: str
    num_tokens: int
    sequence: int
    kept_back_chars: int
    schema_version: int = 1

    def canonical(self) -> str:
        return json.dumps(asdict(self), sort_keys=True, separators=(",", ":"))

    @property
    def sha256(self) -> str:
        return hashlib.sha256(self.canonical().encode()).hexdigest()


def calibration_of(
    text: str,
    encode: Callable[[str], list[int]],
    num_tokens: int,
    context: int,
) -> Calibration:
    """The first `num_tokens` tokens of the text but its last tenth, in sequences of up to 512.

    Raises InvalidRequest with the reason for a text that is no calibration set.
    """
    check_integer("calibration_tokens", num_tokens, LEAST_TOKENS)
    if not text.strip():
        raise InvalidRequest("calibration", "is empty")
    cut = len(text) - len(text) // KEPT_BACK
    sequence = min(SEQUENCE, context)
    ids = encode(text[:cut])[:num_tokens]
    if len(ids) < LEAST_TOKENS:
        raise InvalidRequest(
            "calibration", f"has {len(ids)} tokens; it takes {LEAST_TOKENS} to tell sizes from"
        )
    check_is_text(text)
    whole = np.array(ids, np.int64)[: len(ids) // sequence * sequence].reshape(-1, sequence)
    content = text.encode()
    return Calibration(
        whole,
        text[cut:],
        Artefact(
            text_sha256=hashlib.sha256(content).hexdigest(),
            text_bytes=len(content),
            tokens_sha256=hashlib.sha256(whole.astype("<i8").tobytes()).hexdigest(),
            num_tokens=whole.size,
            sequence=sequence,
            kept_back_chars=len(text) - cut,
        ),
    )


def check_is_text(text: str) -> None:
    """Raises InvalidRequest for what has no order, or too little in it."""
    probe = text[:PROBED_CHARS]
    content = probe.encode()
    size = len(bz2.compress(content))
    characters = list(probe)
    random.Random(0).shuffle(characters)
    shuffled = len(bz2.compress("".join(characters).encode()))
    if size < LEAST_OF_TEXT * len(content):
        raise InvalidRequest(
            "calibration",
            f"repeats itself: {len(content)} bytes say what {size} could",
        )
    if size > MOST_OF_SHUFFLED * shuffled:
        raise InvalidRequest(
            "calibration",
            f"looks random: it compresses to {size} bytes, and its characters in any order to "
            f"{shuffled}; use text such as the model will meet",
        )
