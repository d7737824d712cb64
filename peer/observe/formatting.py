"""Formatting of numbers and of text from other peers."""

from __future__ import annotations

import time


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
    """`47 s`, `12 min`, `3 h 20 min`, `5 days 3 h`."""
    whole = max(0, round(seconds))
    if whole < 120:
        return f"{whole} s"
    minutes = whole // 60
    if minutes < 120:
        return f"{minutes} min"
    hours = minutes // 60
    if hours < 48:
        return f"{hours} h {minutes % 60} min"
    return f"{hours // 24} days" + (f" {hours % 24} h" if hours % 24 and hours < 240 else "")


def local_time(at: float) -> str:
    """`2026-11-25 18:00` in local time. `at`: seconds since the epoch."""
    return time.strftime("%Y-%m-%d %H:%M", time.localtime(at))
