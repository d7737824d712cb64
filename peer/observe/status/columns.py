"""Formats labelled lines in groups for a terminal, and times, counts and peer ids in them."""

from __future__ import annotations

import textwrap
from collections.abc import Iterable

from peer.observe.formatting import duration, harmless

WIDTH = 80
LABEL = 12
Row = tuple[str, str]
"""A label and its value. Rows with an empty value are not shown."""


def group(title: str, rows: Iterable[Row]) -> list[str]:
    """Return a title and its rows as lines. Empty when no row has a value."""
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
    """Return a peer id shortened to its last six characters; other texts unchanged."""
    return f"…{peer[-6:]}" if len(peer) > 40 and peer.isalnum() else peer


def shortened(text: str) -> str:
    """Return a text with all peer ids shortened."""
    return " ".join(short(word) for word in text.split())


def ago(seconds: float) -> str:
    """Return `3 min ago`, or `just now` below a second."""
    return f"{duration(seconds)} ago" if seconds >= 1 else "just now"


def ahead(seconds: float) -> str:
    """Return `in 2 h 5 min`, or `now` below half a second."""
    return f"in {duration(seconds)}" if seconds >= 0.5 else "now"


def counted(number: int, one: str, many: str = "") -> str:
    """Return a number with its noun: `1 peer`, `2 peers`. `many`: an irregular plural."""
    return f"{number:,} {one if number == 1 else many or one + 's'}"
