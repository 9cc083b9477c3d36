"""Fields that this server does not have, left out of a body where that is wanted.

Owns: which faults of a body are no more than a field too many, and that none of them goes unnamed.
May not know: what a field means, which routes there are.
Read next: `body.py`, which asks; `asides.py`, where what was left out is told.

Null is nobody's wish, so a field that is null is left out on any server, and nothing is said of it.
Some lists are read up to their first fault, hence several rounds.
"""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any, TypeVar

from pydantic import BaseModel, ValidationError

from firsthand.server.errors import UNKNOWN_FIELD, invalid
from firsthand.server.locating import Step, steps_in, written

Body = TypeVar("Body", bound=BaseModel)

MAX_ROUNDS = 128


def validated(
    model: type[Body], value: dict[str, Any], *, lenient: bool = False
) -> tuple[Body, list[str]]:
    """The body, and what was left out of it: `value` has it no more. Raises Refused."""
    left_out: list[str] = []
    for _ in range(MAX_ROUNDS):
        try:
            return model.model_validate(value), left_out
        except ValidationError as error:
            faults = error.errors(include_url=False, include_input=False)
            refused = invalid(faults, value)
            unknown = [one["loc"] for one in faults if one["type"] in UNKNOWN_FIELD]
            places = [steps_in(value, location, missing=False) for location in unknown]
            found = [steps for steps in places if lenient or _at(value, steps) is None]
            if not found:
                raise refused from error
        left_out += [written(steps) for steps in found if _at(value, steps) is not None]
        for steps in found:
            del _at(value, steps[:-1])[steps[-1]]
    raise refused


def _at(value: Any, steps: Sequence[Step]) -> Any:
    for step in steps:
        value = value[step]
    return value
