"""The cache of ModelScope's own tools: it is read, and never written.

Owns: the layouts of that cache.
May not know: networks, what is inside a file.
Read next: `catalogue.py`, which asks; `places.py` (the caches that we fill).

    BASE/models/ORG--NAME/snapshots/REVISION/FILE   BASE: MODELSCOPE_CACHE, else ~/.cache/modelscope
    BASE/models/ORG/NAME/FILE                       until 2026, also below BASE/hub
    BASE/ORG/NAME/FILE                              until 2025, also below BASE/hub

In the older ones a dot of NAME is written `___`, and there is one version of a model, whatever it
is called. Their own tools look there first, so we do.
"""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import replace
from pathlib import Path

from firsthand.config import Environment
from firsthand.weights.folder import safetensors_entry
from firsthand.weights.model_names import HubId, parse_hub_id

_ROOTS = ("models", "hub/models", ".", "hub")


def modelscope_folder(hub_id: HubId, env: Environment) -> Path | None:
    """The folder of the id's files; it may be incomplete. `main` stands for no revision said."""
    base = env.modelscope_cache
    if base is None:
        return None
    snapshots = base / "models" / f"{hub_id.org}--{hub_id.name}" / "snapshots"
    if hub_id.revision != "main":
        candidates = [snapshots / hub_id.revision]
    else:
        single = [*snapshots.glob("*")] if snapshots.is_dir() else []
        candidates = [
            *(base / root / hub_id.org / hub_id.name.replace(".", "___") for root in _ROOTS),
            *(snapshots / name for name in ("master", "main")),
            *(single if len(single) == 1 else ()),
        ]
    return next((folder for folder in candidates if _has_weights(folder)), None)


def modelscope_models(env: Environment) -> Iterator[tuple[HubId, Path]]:
    """Every model with its folder, each once, sorted by name."""
    seen = set()
    for hub_id in sorted(_ids(env), key=str):
        folder = modelscope_folder(hub_id, env)
        if folder is not None and folder not in seen:
            seen.add(folder)
            yield hub_id, folder


def _ids(env: Environment) -> set[HubId]:
    base = env.modelscope_cache
    if base is None:
        return set()
    plain = {
        f"{folder.parent.name}/{folder.name.replace('___', '.')}"
        for root in _ROOTS
        for folder in (base / root).glob("*/*")
    }
    kept = {
        f"{folder.parts[-3].replace('--', '/', 1)}@{folder.name}"
        for folder in base.glob("models/*--*/snapshots/*")
    }
    found = {hub_id for text in plain | kept if (hub_id := parse_hub_id(text)) is not None}
    return found | {replace(hub_id, revision="main") for hub_id in found}


def _has_weights(folder: Path) -> bool:
    if not folder.is_dir():
        return False
    names = [path.name for path in folder.iterdir()]
    return safetensors_entry(names) is not None or any(name.endswith(".gguf") for name in names)
