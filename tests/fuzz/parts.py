"""Packs several byte strings into one, for decoders with several inputs. Each is preceded by its length (two bytes).
Unpacking accepts any bytes."""

from __future__ import annotations

from collections.abc import Coroutine
from typing import Any, TypeVar

T = TypeVar("T")


def join(*parts: bytes) -> bytes:
    return b"".join(len(part).to_bytes(2, "little") + part for part in parts)


def split(data: bytes, most: int = 64) -> list[bytes]:
    parts: list[bytes] = []
    at = 0
    while at + 2 <= len(data) and len(parts) < most:
        length = int.from_bytes(data[at : at + 2], "little")
        parts.append(data[at + 2 : at + 2 + length])
        at += 2 + length
    return parts


def drive(coroutine: Coroutine[Any, Any, T]) -> T:
    """Run a coroutine that never waits, without an event loop."""
    while True:
        try:
            coroutine.send(None)
        except StopIteration as end:
            value: T = end.value
            return value
