"""Encodes an event as one line of JSON, and decodes it.

Readers skip and count a line that they cannot decode: one cut off by a kill, of an unknown kind, or damaged. A journal
may have been written by another version of the program."""

from __future__ import annotations

import json
import math
from collections.abc import Callable, Iterator
from dataclasses import MISSING, Field, fields
from pathlib import Path
from typing import Any, BinaryIO

from peer.codes import AnyCode, code_of
from peer.observe.events import KINDS, OUTCOMES, Event

MAX_LINE = 4 * 2**20
"""Largest line in bytes. The largest event is `Carried`, whose lists are bounded."""
MAX_TEXT = 2000
"""Characters of one text field; the rest is cut. Other peers supply some of these texts."""


MAX_INT = 2**127
"""Largest absolute value of an integer. Sums of such integers stay short enough for Python to convert to text."""


class DamagedLine(ValueError):
    """A journal line cannot be decoded as an event of a known kind."""


def encode(event: Event, t: float) -> bytes:
    """Return an event as one line of JSON with its newline. `t`: seconds since the epoch. NaN and infinity become null,
    because JSON has neither."""
    body: dict[str, Any] = {"t": t, "kind": event.kind}
    body |= {f.name: _plain(getattr(event, f.name)) for f in fields(event)}
    return json.dumps(body, separators=(",", ":")).encode() + b"\n"


def decode(line: bytes) -> tuple[Event, float]:
    """Return the event of a line, and its time in seconds since the epoch. Unknown fields are ignored. Raises
    DamagedLine."""
    try:
        body = json.loads(line)
    except (ValueError, RecursionError) as error:
        raise DamagedLine("not JSON") from error
    if not isinstance(body, dict) or not isinstance(body.get("kind"), str):
        raise DamagedLine("not an event")
    kind, t = KINDS.get(body["kind"]), _float(body.get("t"))
    if kind is None or not math.isfinite(t):
        raise DamagedLine("of an unknown kind or without a time")
    values = {f.name: _read(f, body) for f in fields(kind) if f.name in body or _needed(f)}
    return kind(**values), t


def read_lines(path: Path) -> Iterator[tuple[Event, float] | None]:
    """Yield the events of a file in order, and None for each line that cannot be decoded. A missing file yields
    nothing.

    Raises OSError when the file cannot be read."""
    try:
        file = path.open("rb")
    except FileNotFoundError:
        return
    with file:
        yield from parse_lines(file)


def parse_lines(file: BinaryIO) -> Iterator[tuple[Event, float] | None]:
    """Yield the events of an open file, as `read_lines` does. Memory stays within `MAX_LINE` bytes: the rest of a
    longer line is skipped."""
    whole = True
    while piece := file.readline(MAX_LINE):
        ends = piece.endswith(b"\n")
        if whole and piece != b"\n":
            yield _event_or_none(piece) if ends or len(piece) < MAX_LINE else None
        whole = ends


def _event_or_none(line: bytes) -> tuple[Event, float] | None:
    try:
        return decode(line)
    except DamagedLine:
        return None


def _plain(value: Any) -> Any:
    if isinstance(value, str):
        return value[:MAX_TEXT]
    if isinstance(value, float) and not math.isfinite(value):
        return None
    return value


def _needed(field: Field[Any]) -> bool:
    return field.default is MISSING and field.default_factory is MISSING


def _read(field: Field[Any], body: dict[str, Any]) -> Any:
    assert isinstance(field.type, str), "annotations are postponed in peer.observe.events"
    if field.name not in body:
        raise DamagedLine(f"without {field.name}")
    return _READERS[field.type](body[field.name])


def _int(value: Any) -> int:
    if not isinstance(value, int) or isinstance(value, bool) or abs(value) > MAX_INT:
        raise DamagedLine("not an integer that can be")
    return value


def _bool(value: Any) -> bool:
    if not isinstance(value, bool):
        raise DamagedLine("neither true nor false")
    return value


def _float(value: Any) -> float:
    if value is None:
        return math.nan
    if not isinstance(value, int | float) or isinstance(value, bool):
        raise DamagedLine("not a number")
    try:
        return float(value)
    except OverflowError as error:
        raise DamagedLine("not a number") from error


def _str(value: Any) -> str:
    if not isinstance(value, str):
        raise DamagedLine("not a text")
    return value


def _outcome(value: Any) -> str:
    if value not in OUTCOMES:
        raise DamagedLine("not an outcome")
    return _str(value)


def _code(value: Any) -> AnyCode:
    return code_of(_str(value))


def _dict(value: Any) -> dict[str, Any]:
    if not isinstance(value, dict):
        raise DamagedLine("not an object")
    return value


_READERS: dict[str, Callable[[Any], Any]] = {
    "int": _int,
    "float": _float,
    "str": _str,
    "bool": _bool,
    "Outcome": _outcome,
    "AnyCode": _code,
    "dict[str, Any]": _dict,
}
