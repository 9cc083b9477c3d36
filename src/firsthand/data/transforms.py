"""What is done to a record between contract and engine: the built-in ways, and the user's own.

Owns: clean, normalise, deduplicate, template, tokenise, redact; how one of them, or a function of
the user's, is made from its options.
May not know: sources, sinks, engines.
Read next: `stages.py`, which applies them.

    [[transform]]
    use = "redact"
    fields = ["text"]

A function of the user's own takes the values of a record, and the options as keywords, and returns
the values that follow. What it raises refuses that record.
"""

from __future__ import annotations

import hashlib
import inspect
import json
import re
import unicodedata
from collections.abc import Callable, Mapping
from pathlib import Path
from typing import Any

from firsthand.checks import check_choice
from firsthand.data.contract import Broken
from firsthand.data.record import Accepted, Reason
from firsthand.errors import InvalidRequest
from firsthand.named import find_named
from firsthand.values import dataclass

Values = dict[str, Any]
CONTROLS = re.compile(r"[^\S \n]|[\x00-\x08\x0e-\x1f\x7f-\x9f\u200b\ufeff]")
BLANKS = re.compile(r" {2,}")
EMPTY_LINES = re.compile(r"\n{3,}")
PLACE = re.compile(r"\{(\w+)\}|\{\{|\}\}")
SECRETS = {
    "EMAIL": re.compile(r"[\w.+-]+@[\w-]+(?:\.[\w-]+)+"),
    "KEY": re.compile(r"\b(?:sk|pk|ghp|xox[bp]|AKIA)[-_]?[A-Za-z0-9_-]{16,}"),
    "CARD": re.compile(r"\b(?:\d[ -]?){12,18}\d\b"),
    "ID": re.compile(r"\b\d{17}[\dXx]\b"),
    "PHONE": re.compile(
        r"(?<![\w.])(?:\+\d{1,3}[ -]?)?(?:\(\d{2,4}\)[ -]?)?\d{3,4}(?:[ -]?\d{3,4}){1,2}\b"
    ),
    "IP": re.compile(r"\b(?:\d{1,3}\.){3}\d{1,3}\b"),
}


@dataclass(frozen=True, slots=True)
class Transform:
    """`name` is the stage of what it refuses; `sha256` is that of its options and source."""

    name: str
    apply: Callable[[Accepted], Accepted]
    sha256: str


def make_transform(options: Mapping[str, Any], folder: Path) -> Transform:
    """By `use`; the other options are its own. Raises InvalidRequest."""
    given = dict(options)
    use = given.pop("use", None)
    if not isinstance(use, str):
        raise InvalidRequest("transform", "needs use, the name of one")
    try:
        if use in BUILT_IN:
            apply, source = BUILT_IN[use](**given), ""
        elif ":" in use:
            apply, source = _own(use, given, folder)
        else:
            raise InvalidRequest("transform", f"{use!r} is none of {', '.join(BUILT_IN)}")
    except TypeError as error:
        raise InvalidRequest(
            f"transform {use}", str(error).partition("() ")[2] or str(error)
        ) from error
    text = json.dumps([use, given, source], sort_keys=True, default=str)
    return Transform(use, apply, hashlib.sha256(text.encode()).hexdigest())


def _own(use: str, given: Values, folder: Path) -> tuple[Callable[[Accepted], Accepted], str]:
    place = folder / use if use.partition(":")[0].endswith(".py") else use
    function = find_named("transform", str(place))
    if not callable(function):
        raise InvalidRequest("transform", f"{use!r} cannot be called")
    inspect.signature(function).bind({}, **given)

    def apply(item: Accepted) -> Accepted:
        found = function(dict(item.values), **given)
        if not isinstance(found, dict) or not all(isinstance(name, str) for name in found):
            raise TypeError("gives no dictionary of values")
        return _with(item, found)

    return apply, inspect.getsource(function)


def _with(item: Accepted, values: Values) -> Accepted:
    return Accepted(item.record, item.key, values, item.claims)


def _each(fields: list[str], change: Callable[[str], str]) -> Callable[[Accepted], Accepted]:
    """Every text of these fields, changed."""
    if not isinstance(fields, list) or not fields:
        raise InvalidRequest("fields", "must be a list of the names of fields")

    def apply(item: Accepted) -> Accepted:
        changed = {name: change(item.values[name]) for name in fields if _is_text(item, name)}
        return _with(item, {**item.values, **changed})

    return apply


def _is_text(item: Accepted, name: str) -> bool:
    if name not in item.values:
        raise Broken(Reason.MISSING_FIELD, name, "there is no such field")
    return isinstance(item.values[name], str)


def clean(fields: list[str]) -> Callable[[Accepted], Accepted]:
    """No control characters, no runs of blanks, at most one empty line, no blanks at the ends."""

    def change(text: str) -> str:
        text = text.replace("\r\n", "\n").replace("\t", " ").replace("\u3000", " ")
        text = BLANKS.sub(" ", CONTROLS.sub("", text))
        text = "\n".join(line.strip() for line in text.split("\n"))
        text = EMPTY_LINES.sub("\n\n", text).strip()
        if not text:
            raise Broken(Reason.BLANK, None, "nothing is left of it")
        return text

    return _each(fields, change)


def normalise(fields: list[str], form: str = "NFC") -> Callable[[Accepted], Accepted]:
    """Unicode's normal form: one spelling of what looks alike (NFC), or is a variant (NFKC)."""
    if form == "NFKC":
        return _each(fields, lambda text: unicodedata.normalize("NFKC", text))
    check_choice("form", form, ("NFC", "NFKC"))
    return _each(fields, lambda text: unicodedata.normalize("NFC", text))


def deduplicate(fields: list[str]) -> Callable[[Accepted], Accepted]:
    """A record whose values of these fields an earlier one has had is a duplicate."""
    space = "same " + ",".join(fields)

    def apply(item: Accepted) -> Accepted:
        found = [item.values.get(name) for name in fields]
        text = json.dumps(found, ensure_ascii=False, sort_keys=True, default=str)
        return Accepted(item.record, item.key, item.values, [*item.claims, (space, text)])

    return apply


def template(text: str, to: str = "prompt") -> Callable[[Accepted], Accepted]:
    """A text with {field} in it, into a field; {{ and }} are braces."""

    def apply(item: Accepted) -> Accepted:
        def filled(found: re.Match[str]) -> str:
            name = found[1]
            if name is None:
                return found[0][0]
            if name not in item.values:
                raise Broken(Reason.MISSING_FIELD, name, "the template asks for it")
            value = item.values[name]
            return value if isinstance(value, str) else json.dumps(value, default=str)

        return _with(item, {**item.values, to: PLACE.sub(filled, text)})

    return apply


def tokenise(
    model: str, field: str = "text", to: str = "token_ids", max_tokens: int | None = None
) -> Callable[[Accepted], Accepted]:
    """The ids of a text, by the tokenizer of a model; more than `max_tokens` refuse the record."""
    from firsthand.generation.load_options import LoadOptions
    from firsthand.generation.prompts import read_source

    tokenizer = read_source(model, LoadOptions()).tokenizer

    def apply(item: Accepted) -> Accepted:
        if not _is_text(item, field):
            raise Broken(Reason.WRONG_TYPE, field, "is no text")
        token_ids = tokenizer.encode(item.values[field])
        if max_tokens is not None and len(token_ids) > max_tokens:
            message = f"{len(token_ids)} tokens; the limit is {max_tokens}"
            raise Broken(Reason.OUT_OF_RANGE, field, message)
        return _with(item, {**item.values, to: token_ids})

    return apply


def redact(fields: list[str], kinds: list[str] | None = None) -> Callable[[Accepted], Accepted]:
    """What looks like an address, a number or a key of a person becomes [EMAIL], [PHONE], …"""
    for kind in kinds or ():
        check_choice("kinds", kind, tuple(SECRETS))
    wanted = [(f"[{kind}]", SECRETS[kind]) for kind in SECRETS if kinds is None or kind in kinds]

    def change(text: str) -> str:
        for word, pattern in wanted:
            text = pattern.sub(_card if word == "[CARD]" else word, text)
        return text

    return _each(fields, change)


def _card(found: re.Match[str]) -> str:
    """Only where the check digit is right: most long numbers are no card's."""
    digits = [int(char) for char in reversed(found[0]) if char.isdigit()]
    doubled = [sum(divmod(2 * digit, 10)) for digit in digits[1::2]]
    return found[0] if (sum(digits[::2]) + sum(doubled)) % 10 else "[CARD]"


BUILT_IN: dict[str, Callable[..., Callable[[Accepted], Accepted]]] = {
    "clean": clean,
    "normalise": normalise,
    "deduplicate": deduplicate,
    "template": template,
    "tokenise": tokenise,
    "redact": redact,
}
