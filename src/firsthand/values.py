"""`dataclass`, in a quarter of the standard library's time.

Owns: how the class of a value is made, and the methods that all values share.
May not know: any value.
Read next: `values.pyi`, by which type checkers take it for `dataclasses.dataclass` itself.

A start makes 130 such classes, and the standard library compiles up to seven methods for each:
70 ms, a sixth of the time to the first token. Here `__init__` alone is compiled; the others are
closures over the fields' names. The class means the same, and `field`, `fields`, `replace` and
`asdict` are the standard library's. Options that nobody needs here are not taken, and no base may
be a dataclass.
"""

from __future__ import annotations

import dataclasses
from collections.abc import Callable
from dataclasses import MISSING, Field, FrozenInstanceError
from operator import attrgetter
from reprlib import recursive_repr
from typing import Any

Fields = tuple[Field[Any], ...]
Content = Callable[[Any], tuple[Any, ...]]  # an object's fields

_set = object.__setattr__  # also where nothing may be assigned
_FACTORY = object()  # stands for an argument that was not given


def dataclass(
    *, frozen: bool = False, slots: bool = False, eq: bool = True
) -> Callable[[type], type]:
    """Methods that the class has itself are kept."""

    def make(cls: type) -> type:
        cls.__doc__ = cls.__doc__ or cls.__name__  # else its signature becomes one, slowly
        cls = dataclasses.dataclass(init=False, repr=False, eq=False)(cls)
        fields = dataclasses.fields(cls)
        methods = {"__init__": _init(cls, fields, frozen), "__repr__": _repr(fields)}
        if eq:
            content = _content([field.name for field in fields if field.compare])
            methods |= {"__eq__": _eq(content), "__hash__": _hash(content) if frozen else None}
        if frozen:
            methods |= {"__setattr__": _refuse_set, "__delattr__": _refuse_delete}
        if slots:
            return _with_slots(cls, fields, methods)
        for name in methods.keys() - vars(cls).keys():
            setattr(cls, name, methods[name])
        return cls

    return make


def _with_slots(cls: type, fields: Fields, methods: dict[str, Any]) -> type:
    """The class once more: slots can only be given to a new one."""
    names = tuple(field.name for field in fields)
    content = _content(names)

    def restore(self: Any, state: tuple[Any, ...]) -> None:
        for name, value in zip(names, state, strict=True):
            _set(self, name, value)

    members = {"__getstate__": lambda self: content(self), "__setstate__": restore}
    members |= methods | vars(cls) | {"__slots__": names}
    for gone in ("__dict__", "__weakref__", *names):  # defaults stand in `__init__`
        members.pop(gone, None)
    made = type(cls)(cls.__name__, cls.__bases__, members)
    made.__qualname__ = cls.__qualname__
    return made


def _init(cls: type, fields: Fields, frozen: bool) -> Any:
    names: dict[str, Any] = {"_set": _set, "_FACTORY": _FACTORY}
    parameters, lines = ["self"], []
    for field in fields:
        name = value = field.name
        if field.default_factory is not MISSING:
            names[f"_make_{name}"] = field.default_factory
            value = f"_make_{name}()"
            if field.init:
                parameters.append(f"{name}=_FACTORY")
                value += f" if {name} is _FACTORY else {name}"
        elif field.default is not MISSING:
            names[f"_default_{name}"] = field.default
            if field.init:
                parameters.append(f"{name}=_default_{name}")
            else:
                value = f"_default_{name}"
        elif field.init:
            parameters.append(name)
        else:
            continue
        lines.append(f"_set(self, {name!r}, {value})" if frozen else f"self.{name} = {value}")
    if hasattr(cls, "__post_init__"):
        lines.append("self.__post_init__()")
    exec(f"def __init__({', '.join(parameters)}): {'; '.join(lines) or 'pass'}", names)
    init = names["__init__"]
    init.__qualname__, init.__module__ = f"{cls.__qualname__}.__init__", cls.__module__
    init.__annotations__ = {field.name: field.type for field in fields if field.init}
    return init


def _content(names: tuple[str, ...] | list[str]) -> Content:
    if len(names) > 1:
        return attrgetter(*names)
    return lambda self: tuple([getattr(self, name) for name in names])


def _repr(fields: Fields) -> Any:
    names = [field.name for field in fields if field.repr]

    @recursive_repr()
    def show(self: Any) -> str:
        shown = ", ".join(f"{name}={getattr(self, name)!r}" for name in names)
        return f"{type(self).__qualname__}({shown})"

    return show


def _eq(content: Content) -> Any:
    def equal(self: Any, other: Any) -> Any:
        return content(self) == content(other) if type(other) is type(self) else NotImplemented

    return equal


def _hash(content: Content) -> Any:
    return lambda self: hash(content(self))


def _refuse_set(_: Any, name: str, value: Any) -> None:
    raise FrozenInstanceError(f"cannot assign to field {name!r}")


def _refuse_delete(_: Any, name: str) -> None:
    raise FrozenInstanceError(f"cannot delete field {name!r}")
