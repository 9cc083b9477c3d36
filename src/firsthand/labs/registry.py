"""All labs, in the order of the lessons.

Owns: the list. May not know: what any of them does.
Read next: `lab.py`; any file of labs.
"""

from __future__ import annotations

from firsthand.checks import check_choice
from firsthand.labs import (
    alert_labs,
    attention_labs,
    calibration_labs,
    cluster_labs,
    data_labs,
    growth_labs,
    layout_labs,
    load_labs,
    memory_labs,
    position_labs,
    release_labs,
    repeat_labs,
    rounding_labs,
    scheduling_labs,
    service_labs,
    softmax_labs,
    speed_labs,
    text_labs,
    window_labs,
)
from firsthand.labs.lab import Lab

_FAMILIES = (
    attention_labs,
    position_labs,
    text_labs,
    rounding_labs,
    calibration_labs,
    load_labs,
    growth_labs,
    softmax_labs,
    scheduling_labs,
    window_labs,
    memory_labs,
    repeat_labs,
    speed_labs,
    layout_labs,
    cluster_labs,
    service_labs,
    data_labs,
    release_labs,
    alert_labs,
)


def labs() -> dict[str, Lab]:
    """By name."""
    return {lab.name: lab for family in _FAMILIES for lab in family.LABS}


def find_lab(name: str) -> Lab:
    """Raises InvalidRequest, with the names that there are."""
    known = labs()
    check_choice("lab", name, tuple(known))
    return known[name]
