"""Cuts long texts into pieces that are tokenized one by one, so that a text of any length needs little memory."""

from __future__ import annotations

from collections.abc import Iterable, Iterator

PIECE = 2**18
"""Most characters of a piece."""


def pieces(blocks: Iterable[str]) -> Iterator[str]:
    """Yield a text, given in blocks, in pieces of at most `PIECE` characters. The cuts do not depend on the blocks.

    A cut is made at a line break or blank between two other characters, if there is one: the usual tokenizers split
    there anyway, so that the tokens are the same."""
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
    """Return the end of the piece that begins at `start`: at most `end`, which must be a valid index."""
    at = end
    while (at := text.rfind("\n", start + 1, at)) > start:
        if not text[at - 1].isspace() and not text[at + 1].isspace():
            return at + 1
    at = end
    while (at := text.rfind(" ", start + 1, at)) > start:
        if not text[at - 1].isspace() and not text[at + 1].isspace():
            return at
    return end
