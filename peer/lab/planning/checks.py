"""Refusing numbers that no plan can be made of."""

from __future__ import annotations

from peer.errors import UsageError


def between(name: str, value: float, least: float, most: float) -> None:
    """Raises UsageError unless `least` <= `value` <= `most`; not a number is neither."""
    if not least <= value <= most:
        raise UsageError(f"{name} is {value:g}", f"Give {name} a number from {least:g} to {most:g}.")
