"""Text form of places in a peer's data, for journals: `epoch.place.window`, and lists of skipped shards."""

from __future__ import annotations

import re
from collections.abc import Iterable, Sequence
from itertools import pairwise

from peer.protocol.sampling import Cursor

MOST_TEXT = 1900
"""Maximum characters of a list of skipped shards. A longer list is cut and ends with `…`."""

_CURSOR = re.compile(r"(\d{1,18})\.(\d{1,18})\.(\d{1,18})")
_SKIPS = re.compile(r"(\d{1,18})\.(\d{1,9})(?:-(\d{1,9})|@(\d{1,18}))?")


def cursor_text(cursor: Cursor) -> str:
    return f"{cursor.epoch}.{cursor.place}.{cursor.window}"


def parse_cursor(text: str) -> Cursor:
    """Parse `epoch.place.window`. Raises ValueError."""
    found = _CURSOR.fullmatch(text)
    if found is None:
        raise ValueError(f"{text[:40]!r} is no place in the data")
    return Cursor(*map(int, found.groups()))


def skips_text(skips: Sequence[Cursor]) -> str:
    """Format skipped shards: `0.3-7` are places 3 to 7 of epoch 0, `0.9@512` is place 9 from window 512 on."""
    words: list[str] = []
    for first, last in _runs(sorted(set(skips))):
        word = f"{first.epoch}.{first.place}"
        words.append(word + (f"@{first.window}" if first.window else f"-{last.place}" if last != first else ""))
    text = " ".join(words)
    return text if len(text) <= MOST_TEXT else text[:MOST_TEXT].rpartition(" ")[0] + " …"


def parse_skips(text: str) -> list[Cursor]:
    """Parse the text of `skips_text`. Raises ValueError, also for a list that was cut because it was too long."""
    found: list[Cursor] = []
    for word in text.split():
        match = _SKIPS.fullmatch(word)
        if match is None:
            raise ValueError(f"{word[:40]!r} is no list of skipped shards")
        epoch, first, last = int(match[1]), int(match[2]), int(match[3] or match[2])
        if last - first >= 2**20:
            raise ValueError(f"{word!r} names too many shards")
        found += [Cursor(epoch, place, int(match[4] or 0)) for place in range(first, last + 1)]
    return found


def _runs(skips: Sequence[Cursor]) -> Iterable[tuple[Cursor, Cursor]]:
    """Group consecutive places that were skipped from their first window on."""
    if not skips:
        return
    first = skips[0]
    for one, other in pairwise(skips):
        if one.window or other.window or (other.epoch, other.place) != (one.epoch, one.place + 1):
            yield first, one
            first = other
    yield first, skips[-1]
