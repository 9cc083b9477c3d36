"""How much a model is to think, in the words of its own chat template.

Owns: which variable of a template a caller's effort becomes.
May not know: requests, how a template is rendered, how reasoning is read (`reasoning.py`).
Read next: `templates.py`.

Templates have no common name for it. Three are in use: `enable_thinking` and `thinking`, which are
yes or no, and `reasoning_effort`, which takes the word. A template that reads none of them thinks
as it always does.
"""

from __future__ import annotations

import re
from collections.abc import Iterator
from typing import Literal, get_args

Effort = Literal["none", "minimal", "low", "medium", "high", "xhigh", "max"]
EFFORTS: tuple[str, ...] = get_args(Effort)
SWITCHES = ("enable_thinking", "thinking")
WORD = "reasoning_effort"

_QUOTED = re.compile(r"'[^']*'|\"[^\"]*\"")
_NAME = re.compile(r"(?<![\w.])[A-Za-z_]\w*")


def effort_variables(template: str | None, effort: Effort) -> dict[str, str | bool]:
    """Empty where the template has no such switch."""
    names = {name for text in _expressions(template or "") for name in _names(text)}
    found: dict[str, str | bool] = {one: effort != "none" for one in SWITCHES if one in names}
    if WORD in names:
        found[WORD] = effort
    return found


def _expressions(template: str) -> Iterator[str]:
    for begin, end in (("{%", "%}"), ("{{", "}}")):
        for piece in template.split(begin)[1:]:
            yield piece.partition(end)[0]


def _names(expression: str) -> Iterator[str]:
    """Of variables: not what is quoted, nor the field of something, `message.thinking`."""
    return (found[0] for found in _NAME.finditer(_QUOTED.sub("", expression)))
