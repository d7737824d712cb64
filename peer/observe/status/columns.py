"""Labelled lines in groups, no wider than a terminal, and the words for times and peers in them."""

from __future__ import annotations

import textwrap
from collections.abc import Iterable

from peer.observe.formatting import duration, harmless

WIDTH = 80
LABEL = 12
Row = tuple[str, str]
"""A label and its value. A row without a value is left out."""


def group(title: str, rows: Iterable[Row]) -> list[str]:
    """Return the lines of a group below its title. A group without a value has none."""
    lines = [line for label, value in rows if value for line in _wrapped(label, value)]
    return ["", title, *lines] if lines else []


def _wrapped(label: str, value: str) -> list[str]:
    begin = f"  {label:<{LABEL}}"
    text = harmless(value)
    return textwrap.wrap(
        text,
        WIDTH,
        initial_indent=begin,
        subsequent_indent=" " * len(begin),
        break_long_words=False,
        break_on_hyphens=False,
    )


def short(peer: str) -> str:
    """Shorten a peer id; other words stay."""
    return f"…{peer[-6:]}" if len(peer) > 40 and peer.isalnum() else peer


def shortened(text: str) -> str:
    """Shorten every peer id in a sentence."""
    return " ".join(short(word) for word in text.split())


def ago(seconds: float) -> str:
    """Return `3 min ago`, or `just now`."""
    return f"{duration(seconds)} ago" if seconds >= 1 else "just now"


def ahead(seconds: float) -> str:
    """Return `in 2 h 5 min`, or `now`."""
    return f"in {duration(seconds)}" if seconds >= 0.5 else "now"


def counted(number: int, one: str, many: str = "") -> str:
    """Return `1 peer`, `2 peers`."""
    return f"{number:,} {one if number == 1 else many or one + 's'}"
