"""Data of kind `text`: the volunteer's own texts, cut into passages and split into training and hold-out."""

from __future__ import annotations

from collections.abc import Iterable
from dataclasses import dataclass
from pathlib import Path

from blake3 import blake3

from peer.errors import DataError

BLOCK_BYTES = 64 * 2**10
HOLDOUT_ONE_IN = 20
HOLDOUT_FOLDER = "holdout"


@dataclass(frozen=True, slots=True)
class Passage:
    """A part of a file, cut between two characters. `ends`: the part after it is not in the same list."""

    text: bytes
    ends: bool


@dataclass(frozen=True, slots=True)
class _Block:
    text: bytes
    apart: bool
    """Whether the volunteer put it into the hold-out."""
    last: bool
    """Whether it ends its file."""

    @property
    def rank(self) -> int:
        return int.from_bytes(blake3(self.text).digest(), "big")


def existing_folder(data_dir: str | None) -> Path:
    """Return the volunteer's folder. Raises DataError."""
    if data_dir is None:
        raise DataError("this run trains on your own texts, and no folder was given", "Add --data DIR with text files.")
    folder = Path(data_dir).absolute()
    if not folder.is_dir():
        raise DataError(f"the data folder {folder} does not exist or is no folder", "Give --data an existing folder.")
    return folder


def split_texts(files: Iterable[tuple[str, bytes]]) -> tuple[list[Passage], list[Passage]]:
    """Split (path in the folder, content) of all files into training and hold-out.

    The folder `holdout` is the hold-out, so that peers with different texts can evaluate on the same. Without it, about
    one block in 20 is, by a hash of its content, and at least one. Content that is in the hold-out is not trained on,
    whatever its file is called."""
    blocks = [block for path, content in files for block in _blocks(path, content)]
    ranks = [block.rank for block in blocks]
    if any(block.apart for block in blocks):
        held = {rank for block, rank in zip(blocks, ranks, strict=True) if block.apart}
        holdout = [block.apart for block in blocks]
    else:
        held = {rank for rank in ranks if rank % HOLDOUT_ONE_IN == 0} or {min(ranks)}
        holdout = [rank in held for rank in ranks]
    train = [rank not in held for rank in ranks]
    return _passages(blocks, train), _passages(blocks, holdout)


def _blocks(path: str, content: bytes) -> Iterable[_Block]:
    apart = path.startswith(f"{HOLDOUT_FOLDER}/")
    at = 0
    while at < len(content):
        end = _cut(content, at + BLOCK_BYTES)
        yield _Block(content[at:end], apart, end == len(content))
        at = end


def _cut(content: bytes, end: int) -> int:
    """Return the last place up to `end` that is not within a character of UTF-8."""
    if end >= len(content):
        return len(content)
    for back in range(4):
        if content[end - back] & 0xC0 != 0x80:
            return end - back
    return end


def _passages(blocks: list[_Block], taken: list[bool]) -> list[Passage]:
    following = [*taken[1:], False]
    return [
        Passage(block.text, block.last or not goes_on)
        for block, mine, goes_on in zip(blocks, taken, following, strict=True)
        if mine
    ]
