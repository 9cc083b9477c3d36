"""A cascade as a virtual model: two of the models that are served, and what is known of them.

Owns: which two, by what they are and not by how they are called; whether they still are; what a
request to it must not have.
May not know: routes, how a body becomes a prompt, how a confidence is worked out (`../cascade/`).
Read next: `routes/answering.py`, which asks first the one and then the other; docs/cascade.md.

A calibration is of two models, by the hashes of their files, and the formats they are held in. At
the start both must be among those that are served. If one of them is another later, for a release
was promoted, nothing is known of it: then the large one answers everything. A reload reads the file
again, for another threshold or fit of the same two.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import replace
from pathlib import Path
from typing import Any

from firsthand.cascade.calibration import Calibration, Side, read_calibration
from firsthand.errors import InvalidRequest
from firsthand.generation.calibrated import side_of
from firsthand.generation.member import RegistryEntry, name_of
from firsthand.generation.service import Prompt, Service
from firsthand.values import dataclass


@dataclass(frozen=True, slots=True)
class Found:
    """A calibration, and what its two models are called here."""

    name: str
    calibration: Calibration
    small: str
    large: str


@dataclass(frozen=True, slots=True, eq=False)
class Cascade:
    """`measured` are the services that the calibration is of, small and large."""

    found: Found
    measured: tuple[Service, Service]

    @property
    def name(self) -> str:
        return self.found.name

    def with_calibration(self, calibration: Calibration) -> Cascade | None:
        """None: it is of other models."""
        if calibration.identities != self.calibration.identities:
            return None
        return replace(self, found=replace(self.found, calibration=calibration))

    @property
    def calibration(self) -> Calibration:
        return self.found.calibration

    def pair(self, services: Mapping[str, Service]) -> tuple[Service, Service]:
        """Small and large, as they are served now."""
        return services[self.found.small], services[self.found.large]

    def is_calibrated(self, services: Mapping[str, Service]) -> bool:
        now = self.pair(services)
        return now[0] is self.measured[0] and now[1] is self.measured[1]

    def card(self) -> dict[str, Any]:
        """What the list of models says of it."""
        return {
            "small": self.found.small,
            "large": self.found.large,
            "confidence": self.calibration.confidence,
            "calibration": self.calibration.sha256,
        }


def check_prompts(prompts: Sequence[Prompt]) -> None:
    """Raises InvalidRequest for token ids, which are of one model."""
    if any(prompt.text is None for prompt in prompts):
        raise InvalidRequest("prompt", "must be text: token ids are of one model, a cascade is two")


def find_cascades(
    files: Sequence[tuple[str, str]], entries: Sequence[RegistryEntry]
) -> list[Found]:
    """Each with its two models. Hashes the models' files, where their hash is not on record. Raises
    InvalidRequest for a file that is none, or a model that is not served."""
    found = []
    sides: dict[str, Side] = {}
    for name, file in files:
        calibration = read_calibration(Path(file).expanduser())
        if not sides:
            sides = {name_of(one): side_of(one.service.model, one.service.load) for one in entries}
        small, large = (
            _called(side, sides, f"{name}={file}")
            for side in (calibration.small, calibration.large)
        )
        found.append(Found(name, calibration, small, large))
    return found


def _called(side: Side, sides: Mapping[str, Side], where: str) -> str:
    for name, one in sides.items():
        if one.identity == side.identity:
            return name
    served = "; ".join(f"{name} is {one}" for name, one in sides.items())
    raise InvalidRequest("cascade", f"{where}: {side} is not served: {served}")


def read_again(
    cascades: Mapping[str, Cascade], files: Sequence[tuple[str, str]]
) -> tuple[dict[str, Cascade], bool]:
    """Those whose files have another content now; and whether one is of other models, which only a
    start looks for. Raises InvalidRequest for a file that is none."""
    read = {name: read_calibration(Path(file).expanduser()) for name, file in files}
    found = {
        name: cascades[name].with_calibration(one)
        for name, one in read.items()
        if one != cascades[name].calibration
    }
    return {name: one for name, one in found.items() if one is not None}, None in found.values()


def cascades_of(found: Sequence[Found], services: Mapping[str, Service]) -> dict[str, Cascade]:
    """As the routes have them."""
    return {one.name: Cascade(one, (services[one.small], services[one.large])) for one in found}
