"""Converts frozen dataclasses to JSON objects and back.

A field's name is its key. A field marked `OPTIONAL` is left out while it is None. A field marked `FLAT` holds a section
(another dataclass, or None) whose keys are written into the surrounding object."""

from __future__ import annotations

import enum
import functools
from collections.abc import Mapping
from dataclasses import Field, fields, is_dataclass
from itertools import zip_longest
from types import NoneType, UnionType
from typing import Any, Literal, TypeVar, Union, get_args, get_origin, get_type_hints

T = TypeVar("T")
_PLAIN = frozenset({str, int, float, bool, NoneType})
OPTIONAL = {"json": "optional"}
"""Field metadata: JSON leaves the field out while it is None, which has to be its default."""
FLAT = {"json": "flat"}
"""Field metadata: the keys of this section are written beside the other fields' keys."""


def to_json(value: Any) -> Any:
    """Convert a dataclass, or one of its parts (mapping, tuple, enum, number, text), to a JSON-able value."""
    if type(value) in _PLAIN:  # most values; a status may have a thousand peers
        return value
    if isinstance(value, enum.Enum):
        return value.value
    if isinstance(value, Mapping):
        return {key: to_json(item) for key, item in value.items()}
    if isinstance(value, tuple | list):
        return [to_json(item) for item in value]
    return _object(value) if is_dataclass(value) else value


def _object(value: Any) -> dict[str, Any]:
    body: dict[str, Any] = {}
    kind: Any = type(value)
    for name, how in _keys(kind):
        item = getattr(value, name)
        if item is None and how is not None:
            continue
        if how == "flat":
            body |= _object(item)
        else:
            body[name] = item if type(item) in _PLAIN else to_json(item)
    return body


@functools.cache
def _keys(kind: Any) -> tuple[tuple[str, str | None], ...]:
    """Return name and JSON metadata of each field of a dataclass."""
    return tuple((one.name, one.metadata.get("json")) for one in fields(kind))


def from_json(kind: type[T], body: object) -> T:
    """Read a dataclass from JSON that another version may have written. Never raises: unknown keys are ignored, and a
    missing value or one of a wrong type becomes None or the empty value of its type."""
    read: T = _read(kind, body)
    return read


def _read(hint: Any, value: Any) -> Any:
    origin, arguments = get_origin(hint), get_args(hint)
    if origin in (Union, UnionType):
        inner = next(one for one in arguments if one is not NoneType)
        return None if value is None else _read(inner, value)
    if isinstance(hint, type) and is_dataclass(hint):
        body, hints = _mapping(value), _hints(hint)
        return hint(**{one.name: _field(one, hints[one.name], body) for one in fields(hint)})
    if origin is tuple:
        items = value if isinstance(value, list | tuple) else ()
        if arguments[-1] is Ellipsis:
            return tuple(_read(arguments[0], item) for item in items)
        return tuple(_read(one, item) for one, item in zip_longest(arguments, items[: len(arguments)]))
    if isinstance(origin, type) and issubclass(origin, Mapping):
        return {str(key): _read(arguments[1], item) for key, item in _mapping(value).items()}
    return value if hint is Any else _scalar(hint, value)


def _field(one: Field[Any], hint: Any, body: Mapping[str, Any]) -> Any:
    if one.metadata.get("json") == "flat":
        inner = next((kind for kind in get_args(hint) if kind is not NoneType), None)
        if inner is None:
            return _read(hint, body)
        return _read(inner, body) if any(part.name in body for part in fields(inner)) else None
    return _read(hint, body.get(one.name))


def _scalar(hint: Any, value: Any) -> Any:
    if get_origin(hint) is Literal:
        hint = str
    if isinstance(hint, type) and issubclass(hint, enum.Enum):
        known = {member.value: member for member in hint}
        return known.get(value, next(iter(hint)))
    if hint is float and isinstance(value, int) and not isinstance(value, bool):
        return float(value)
    return value if type(value) is hint else hint()


def _mapping(value: Any) -> Mapping[Any, Any]:
    return value if isinstance(value, Mapping) else {}


@functools.cache
def _hints(kind: Any) -> dict[str, Any]:
    return get_type_hints(kind)
