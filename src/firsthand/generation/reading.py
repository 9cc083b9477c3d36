"""What an opened checkpoint says: its spec, the tensors that its model asks for, its tokenizer.

Owns: which of a checkpoint's words are read by whom, for a folder and for GGUF.
May not know: executors, how anything is held.
Read next: `models/families.py`, `text/tokenizer.py`.
"""

from __future__ import annotations

from firsthand.config import read_environment
from firsthand.errors import InvalidRequest
from firsthand.generation.remembered import Remembered
from firsthand.models import families
from firsthand.models.scaling import ROPE_TENSORS
from firsthand.models.spec import ModelSpec
from firsthand.text.scored_merges import no_memory
from firsthand.text.tokenizer import Tokenizer
from firsthand.weights.checkpoint import Checkpoint, Slot
from firsthand.weights.sources import read_vector


def read_spec(
    checkpoint: Checkpoint, max_context: int | None = None, family: str | None = None
) -> ModelSpec:
    """The spec of an opened checkpoint, from its own words and those beside it. `family` is that of
    the load's options."""
    if checkpoint.form == "gguf":
        if family is not None:
            raise InvalidRequest("family", "is for a folder with a config.json, not for GGUF")
        shapes = {name: info.shape for name, info in checkpoint.tensors.items()}
        factors = {
            name: read_vector(checkpoint, checkpoint.tensors[name]).tolist()
            for name in ROPE_TENSORS
            if name in checkpoint.tensors
        }
        return families.read_gguf(checkpoint.metadata, shapes, max_context, factors)
    return families.read_config(checkpoint.config, max_context, family)


def slots_of(checkpoint: Checkpoint) -> tuple[Slot, ...]:
    """What its model asks it for."""
    return families.slots(read_spec(checkpoint))


def read_tokenizer(checkpoint: Checkpoint) -> Tokenizer:
    if checkpoint.form == "gguf":
        environment = read_environment()
        memory = Remembered(environment.home / "merges") if environment.pack_cache else no_memory
        return Tokenizer.from_gguf(checkpoint.metadata, checkpoint.path, memory)
    return Tokenizer.from_folder(checkpoint.path)
