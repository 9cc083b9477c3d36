"""The models that a server is to have, as flags, a variable or `[[model]]` tables name them.

Owns: the form of a table, and what a model is called.
May not know: what the settings of a model are (`settings.py` reads them), how it is loaded.
Read next: `settings.py`.

    [[model]]
    path = "smollm2-135m"     # a known name, a folder, a .gguf file, or a hub id
    name = "small"            # what requests call it
    load = "lazy"             # when a request asks; or "whole", "shards", "lazy-shards"
    pinned = true             # once it is loaded it stays
    max-model-len = 4096      # settings of its own, as the server has them
"""

from __future__ import annotations

import os
from collections.abc import Collection, Mapping
from pathlib import Path
from typing import Any

from firsthand.checks import meant, shown
from firsthand.errors import InvalidRequest
from firsthand.server.setting_kinds import Choice, Kind, Switch, Text
from firsthand.values import dataclass
from firsthand.weights.gguf_parts import title

LOADS = ("whole", "shards", "lazy", "lazy-shards")
MAX_MODELS = 64


@dataclass(frozen=True, slots=True)
class ModelEntry:
    """`name` and `load` may be left to what the server says of all. `options` are settings of this
    model, not read yet."""

    path: str
    name: str = ""
    load: str = ""
    pinned: bool = False
    options: tuple[tuple[str, Any], ...] = ()

    @property
    def called(self) -> str:
        """Its name; without one its path, of a path in the file system the last part."""
        if self.name:
            return self.name
        if os.sep not in self.path or not Path(self.path).exists():
            return self.path
        return title(Path(self.path).resolve().name)


class Models:
    """In a text, models by commas; as flags, one by one; in a file, `[[model]]` tables, or a list.
    `own` are the names of the settings that a table may hold."""

    def __init__(self, own: Collection[str]) -> None:
        self._own = own

    def read(self, where: str, given: Any) -> tuple[ModelEntry, ...]:
        items = given.split(",") if isinstance(given, str) else given
        if not isinstance(items, list | tuple) or not 0 < len(items) <= MAX_MODELS:
            raise InvalidRequest(where, f"must be 1 to {MAX_MODELS} models, not {shown(given)}")
        return tuple(self._entry(where, item) for item in items)

    def show(self, value: Any) -> str:
        return ",".join(entry.path for entry in value)

    def _entry(self, where: str, item: Any) -> ModelEntry:
        if not isinstance(item, Mapping):
            path = Text().read(where, item.strip() if isinstance(item, str) else item)
            if path.endswith(".toml"):
                raise InvalidRequest(where, f"{path!r} is no model; settings: --config {path}")
            return ModelEntry(path)
        values: dict[str, Any] = {}
        for key, value in item.items():
            name = key.replace("-", "_")
            known = (*_FORMS, *self._own)
            if name not in known or name in values:
                hint = meant(name, known)
                raise InvalidRequest(f"{where}: {shown(key)}", f"a model has no such setting{hint}")
            values[name] = value
        if "path" not in values:
            raise InvalidRequest(where, "a [[model]] table needs a path")
        fields = {
            name: kind.read(f"{where}: {name}", values.pop(name))
            for name, kind in _FORMS.items()
            if name in values
        }
        return ModelEntry(**fields, options=tuple(sorted(values.items())))


_FORMS: dict[str, Kind] = {
    "path": Text(),
    "name": Text(),
    "load": Choice(*LOADS),
    "pinned": Switch(),
}
