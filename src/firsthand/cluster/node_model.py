"""A model on the node where a replica starts: fetched once, packed once, for all replicas there.

Owns: in which order a start needs what, and that all replicas of a deployment have one version.
May not know: how anything is fetched (`weights/`) or packed (`generation/packing.py`), Ray.
Read next: `weights/objects.py`, `generation/packing.py`.

Both steps lock their folder: of replicas that start at once on a node one works, the others wait
and find it done. A replica that starts later needs neither.
"""

from __future__ import annotations

import time

from firsthand.config import read_environment
from firsthand.errors import BadHash, ModelNotFound
from firsthand.generation.loading import pack_model
from firsthand.values import dataclass
from firsthand.weights.catalogue import ResolvedModel, pull, resolve
from firsthand.weights.places import PullProgress
from firsthand.weights.sources import Quantization


@dataclass(frozen=True, slots=True)
class NodeModel:
    """Where it lies, its version (None: a path has none), and how long each step took."""

    model: ResolvedModel
    fetched_s: float
    packed_s: float

    @property
    def version(self) -> str | None:
        return self.model.revision


def bring(name: str, quantization: Quantization | None, version: str | None = None) -> NodeModel:
    """Have the model here. `version`: that of the deployment's first replica; where the name means
    another one by now it is refused, as answers would depend on who gives them. `quantization`
    None: it is not packed, as by an executor that has no packed form. Raises as `pull` and
    `load_model` do, and BadHash."""
    begun_s = time.monotonic()
    found = _here(name, version)
    fetched_s = time.monotonic() - begun_s
    if version is not None and found.revision != version:
        raise BadHash(name, f"is version {found.revision} here, and the others serve {version}")
    begun_s = time.monotonic()
    if quantization is not None:
        pack_model(name, quantization)
    return NodeModel(found, fetched_s, time.monotonic() - begun_s)


def _here(name: str, version: str | None) -> ResolvedModel:
    """Without a question to anybody, where it is the right one."""
    env = read_environment()
    try:
        found = resolve(name, env)
        if version is None or found.revision == version:
            return found
    except ModelNotFound:
        pass

    def unheard(_: PullProgress) -> None:
        """Nobody watches a replica's start."""

    return pull(name, env, unheard)
