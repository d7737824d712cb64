"""Shapes of values: names, types and order, without the values, as JSON for a file."""

from __future__ import annotations

import enum
import json
import types
from collections.abc import Iterable, Mapping, Sequence
from dataclasses import MISSING, fields, is_dataclass
from typing import Annotated, Any, Literal, NewType, Union, get_args, get_origin, get_type_hints

from peer.codes import AnyCode

Shape = Any
"""A word such as `int`, or several with `|` between; a list of one shape; a dict of shapes by name."""

NOTHING = "null"
ANY_KEY = "*"
"""Stands for every key of a dict whose keys are values, not names."""


def shape(value: Any, maps: Iterable[str] = (), path: str = "") -> Shape:
    """Return the shape of a JSON value. `maps`: dotted paths of dicts whose keys are values."""
    if isinstance(value, Mapping):
        inner = {key: shape(item, maps, f"{path}.{key}" if path else str(key)) for key, item in value.items()}
        return {ANY_KEY: merged(inner.values())} if path in maps else inner
    if isinstance(value, list | tuple):
        parts = [shape(item, maps, path) for item in value]
        if len({type(part) for part in parts}) > 1:  # each position has its own meaning
            return {str(at): part for at, part in enumerate(parts)}
        return [merged(parts)] if parts else []
    return NOTHING if value is None else type(value).__name__


def merged(shapes: Iterable[Shape]) -> Shape:
    """Return one shape that fits all of these. Nullability is ignored, because it depends on the time of
    observation."""
    found: Shape = NOTHING
    for one in shapes:
        found = both(found, one)
    return found


def both(one: Shape, other: Shape) -> Shape:
    """Return the keys in the order of the side with more keys, followed by the keys that only the other side has."""
    if NOTHING in (one, other):
        return other if one == NOTHING else one
    if isinstance(one, dict) and isinstance(other, dict):
        first, second = (one, other) if len(one) >= len(other) else (other, one)
        return {key: both(first.get(key, NOTHING), second.get(key, NOTHING)) for key in {**first, **second}}
    if isinstance(one, list) and isinstance(other, list):
        return [both(*one, *other)] if one and other else one or other
    if isinstance(one, str) and isinstance(other, str):
        return "|".join(sorted({*one.split("|"), *other.split("|")}))
    raise AssertionError(f"once {one}, once {other}")


def described(kind: Any) -> Shape:
    """Return a type annotation as text, in which our own classes are replaced by their fields and values."""
    origin, arguments = get_origin(kind), get_args(kind)
    if origin is Annotated:
        return described(arguments[0])
    if kind == AnyCode:  # a journal holds codes of other programs, too
        return "str"
    if origin is Literal:
        return {"one of": list(arguments)}
    if origin in (Union, types.UnionType):
        return {"either": [described(one) for one in arguments]}
    if isinstance(origin, type) and issubclass(origin, Mapping):
        return {"map": [described(one) for one in arguments]}
    if isinstance(origin, type) and issubclass(origin, Sequence):
        return [described(one) for one in arguments if one is not Ellipsis]
    if isinstance(kind, NewType):
        return described(kind.__supertype__)
    if isinstance(kind, type) and issubclass(kind, enum.Enum):
        return {"one of": [member.value for member in kind]}
    if kind is type(None):
        return NOTHING
    if kind is Any:
        return "any"
    if isinstance(kind, type) and is_dataclass(kind):
        return described_fields(kind)
    if hasattr(kind, "model_fields"):
        return described_model(kind)
    assert kind in (int, float, str, bool, bytes), kind
    return kind.__name__


def described_fields(kind: Any) -> list[dict[str, Any]]:
    """Return the fields of a dataclass, in order."""
    hints = get_type_hints(kind)
    return [_entry(f.name, hints[f.name], f.default is not MISSING, f.default) for f in fields(kind)]


def described_model(kind: Any) -> list[dict[str, Any]]:
    """Return the fields of a pydantic model, in order."""
    return [
        _entry(name, field.annotation, not field.is_required(), field.default)
        for name, field in kind.model_fields.items()
    ]


def _entry(name: str, kind: Any, has_default: bool, default: Any) -> dict[str, Any]:
    entry = {"name": name, "type": described(kind)}
    simple = isinstance(default, int | float | str | bool | None)
    return entry | ({"default": repr(default)} if has_default and simple else {})


def differences(frozen: Any, now: Any, path: str = "") -> list[str]:
    """Return one line for each difference. The order of keys counts."""
    if isinstance(frozen, dict) and isinstance(now, dict):
        lost = [f"{path}: {key!r} is gone" for key in frozen if key not in now]
        new = [f"{path}: {key!r} is new" for key in now if key not in frozen]
        order = [f"{path}: the order was {list(frozen)}, is {list(now)}"] if list(frozen) != list(now) else []
        within = [line for key in frozen if key in now for line in differences(frozen[key], now[key], f"{path}.{key}")]
        return (lost + new or order) + within
    if isinstance(frozen, list) and isinstance(now, list) and len(frozen) == len(now):
        pairs = enumerate(zip(frozen, now, strict=True))
        return [line for at, (one, other) in pairs for line in differences(one, other, f"{path}[{at}]")]
    return [] if json.dumps(frozen) == json.dumps(now) else [f"{path}: was {frozen!r}, is {now!r}"]


WIDTH = 110


def as_text(value: Any, indent: str = "") -> str:
    """Return JSON in which every value that fits into a line is on one line."""
    line = json.dumps(value, ensure_ascii=False)
    if len(indent) + len(line) <= WIDTH or not isinstance(value, dict | list):
        return line
    inner = indent + " "
    if isinstance(value, dict):
        parts = [f"{json.dumps(key)}: {as_text(item, inner)}" for key, item in value.items()]
    else:
        parts = [as_text(item, inner) for item in value]
    first, last = "{}" if isinstance(value, dict) else "[]"
    return f"{first}\n{inner}" + f",\n{inner}".join(parts) + f"\n{indent}{last}"


def plain(value: Any) -> Any:
    """Return a value as it is after writing and reading JSON."""
    return json.loads(json.dumps(value))
