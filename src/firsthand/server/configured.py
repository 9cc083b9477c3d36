"""Settings in effect, with where each came from; and what a reload of them changes.

Owns: the rows that `config show` prints, with secrets hidden; which differences need a new start.
May not know: what a setting does.
Read next: `settings.py`, the list; `setting_sources.py`, which makes one of these.
"""

from __future__ import annotations

from collections.abc import Iterator, Mapping

from firsthand.server.setting_rows import Setting
from firsthand.server.settings import SETTINGS, Settings
from firsthand.values import dataclass

SECRET = "(hidden)"


@dataclass(frozen=True, slots=True)
class Configured:
    """Settings, and where each came from: a flag, a variable, a file, or `default`."""

    settings: Settings
    origins: Mapping[str, str]

    def rows(self) -> Iterator[tuple[str, str, str]]:
        """Name, value, origin; secrets are hidden."""
        for setting in SETTINGS:
            value = getattr(self.settings, setting.name)
            hidden = setting.about.secret and value
            yield (
                setting.name,
                SECRET if hidden else setting.about.kind.show(value),
                self._origin(setting),
            )
            if setting.name == "model":
                for name, shown in self._of_models():
                    yield name, shown, self._origin(setting)

    def _of_models(self) -> Iterator[tuple[str, str]]:
        """What a [[model]] table says beside the path."""
        kinds = {setting.name: setting.about.kind for setting in SETTINGS}
        for at, entry in enumerate(self.settings.model):
            where = f"model[{at}]"
            said = [("path", entry.path), ("name", entry.name), ("load", entry.load)]
            said += [("pinned", "true")] if entry.pinned else []
            own = self.settings.of_model(entry)
            said += [(name, kinds[name].show(getattr(own, name))) for name, _ in entry.options]
            if any(value for _, value in said[1:]):
                yield from ((f"{where}.{name}", value) for name, value in said if value)

    def _origin(self, setting: Setting) -> str:
        return self.origins.get(setting.name, "default")


def changed(before: Settings, after: Settings) -> tuple[list[str], list[str]]:
    """Names of settings that differ: those that a reload brings into effect, and the others."""
    differ = [
        setting
        for setting in SETTINGS
        if getattr(before, setting.name) != getattr(after, setting.name)
    ]
    live = [setting.name for setting in differ if setting.about.reloads]
    return live, [setting.name for setting in differ if not setting.about.reloads]
