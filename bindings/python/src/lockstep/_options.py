# SPDX-License-Identifier: Apache-2.0
"""Fills a struct of lockstep.h from options by name."""

from __future__ import annotations

import os
from enum import IntEnum
from typing import Any, List, Mapping, Set, Type, TypeVar, Union

from . import _native
from .errors import Invalid

Enum = TypeVar("Enum", bound=IntEnum)


def enum_of(kind: Type[Enum], value: Union[Enum, str, int], what: str) -> Enum:
    """A constant from the constant, its name in any case ("mean"), or its number."""
    try:
        return kind[value.upper()] if isinstance(value, str) else kind(value)
    except (KeyError, ValueError):
        names = ", ".join(constant.name.lower() for constant in kind)
        raise Invalid(f"{what} is {value!r}, and not one of {names}") from None


def text_of(value: Any) -> bytes:
    """Text or a path, as the library takes it."""
    text = os.fsencode(value)
    if b"\0" in text:
        raise Invalid(f"{value!r} has a zero byte")
    return text


def whole(value: Any, what: str) -> int:
    """A whole number of any type that has them: 3, numpy.int64(3), torch.tensor(3), 3.0."""
    try:
        number = int(value)
        if number == value:
            return number
    except (TypeError, ValueError, OverflowError, RuntimeError):
        pass
    raise Invalid(f"{what} is {value!r}, and not a whole number")


def whole32(value: Any, what: str) -> int:
    """A whole number that the library takes in 32 bits: ctypes would cut off what is above."""
    number = whole(value, what)
    if not 0 <= number < 2**32:
        raise Invalid(f"{what} is {number}, and not from 0 to 2^32 - 1")
    return number


def set_number(struct: _native.Struct, name: str, value: Any, what: str) -> None:
    """Sets a field, and raises if the field cannot hold the value."""
    try:
        setattr(struct, name, value)
        fits = getattr(struct, name) == value
    except TypeError:
        fits = False
    if not fits:
        raise Invalid(f"{what} is {value!r}, and not a number that it may be")


def fill(struct: _native.Struct, options: Mapping[str, Any], known: Set[str], what: str,
         keep: List[Any]) -> None:
    """Sets the fields that options name. None leaves the default. keep gets what has to live until
    the library has read the struct."""
    struct_name = type(struct).__name__
    fields = {entry[0]: entry[1] for entry in struct._fields_}
    for name, value in options.items():
        if name not in known:
            raise TypeError(f"{what} has no option '{name}'; it has {', '.join(sorted(known))}")
        if value is None:
            continue
        kind = _native.OPTION_ENUMS.get(f"{struct_name}.{name}")
        if kind is not None:
            setattr(struct, name, int(enum_of(kind, value, name)))
        elif isinstance(value, (str, bytes, os.PathLike)):
            setattr(struct, name, text_of(value))
        elif hasattr(value, "handle"):
            if not value.handle:  # The library would take it for the default.
                raise Invalid(f"{what}: {name} is closed")
            keep.append(value)
            setattr(struct, name, value.handle)
        elif fields[name].__name__ == "c_char_p":
            raise Invalid(f"{name} is {value!r}, and not a text")
        else:
            set_number(struct, name, int(value) if isinstance(value, bool) else value, name)
