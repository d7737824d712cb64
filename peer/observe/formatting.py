"""Formatting of numbers and of text from other peers."""

from __future__ import annotations


def harmless(text: str) -> str:
    """Replace control characters in text from other peers, so that a terminal shows them instead of obeying them."""
    return "".join(c if c.isprintable() or c == "\n" else c.encode("unicode_escape").decode() for c in text)


def amount(number: float, unit: str) -> str:
    """`12.3 MB`, `47 s`, `12 min`, `3 pieces`. Bytes in powers of 1000, as lines are sold."""
    if unit == "s":
        return duration(number)
    if unit != "bytes":
        return f"{number:g} {unit}".strip()
    for size, name in ((1e9, "GB"), (1e6, "MB"), (1e3, "kB")):
        if number >= size:
            return f"{number / size:.1f} {name}"
    return f"{number:.0f} B"


def duration(seconds: float) -> str:
    """`47 s`, `12 min`, `3 h 20 min`."""
    whole = max(0, round(seconds))
    if whole < 120:
        return f"{whole} s"
    minutes = whole // 60
    return f"{minutes} min" if minutes < 120 else f"{minutes // 60} h {minutes % 60} min"
