"""Range checks of the numbers that a plan is made of."""

from __future__ import annotations

from peer.errors import UsageError


def between(name: str, value: float, least: float, most: float) -> None:
    """Raise UsageError unless `least` <= `value` <= `most`. NaN is refused too."""
    if not least <= value <= most:
        raise UsageError(f"{name} is {value:g}", f"Give {name} a number from {least:g} to {most:g}.")
