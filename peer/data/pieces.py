"""Pieces of long texts. They are tokenized one by one, so that a text of any length takes little memory."""

from __future__ import annotations

from collections.abc import Iterable, Iterator

PIECE = 2**18
"""Most characters of a piece."""


def pieces(blocks: Iterable[str]) -> Iterator[str]:
    """Cut a text that comes in blocks into pieces. The cuts do not depend on the blocks.

    A cut is at a line's end between two letters or signs if there is one. Known tokenizers split there anyway."""
    rest = ""
    for block in blocks:
        text, start = rest + block, 0
        while len(text) - start > PIECE:
            end = _cut(text, start, start + PIECE)
            yield text[start:end]
            start = end
        rest = text[start:]
    if rest:
        yield rest


def _cut(text: str, start: int, end: int) -> int:
    """Find where a piece ends. There is a character at `end`."""
    at = end
    while (at := text.rfind("\n", start + 1, at)) > start:
        if not text[at - 1].isspace() and not text[at + 1].isspace():
            return at + 1
    at = end
    while (at := text.rfind(" ", start + 1, at)) > start:
        if not text[at - 1].isspace() and not text[at + 1].isspace():
            return at
    return end
