"""Data of kind `text`: the volunteer's own texts, split into training data and hold-out."""

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
    """A part of a text file, cut between two characters.

    `ends`: whether the passage is the end of a document, because no passage with the file's next part follows it."""

    text: bytes
    ends: bool


@dataclass(frozen=True, slots=True)
class _Block:
    """About `BLOCK_BYTES` of a file: the unit that goes to training data or hold-out."""

    text: bytes
    apart: bool
    """Whether the block's file is in the folder `holdout`."""
    last: bool
    """Whether it is the last block of its file."""

    @property
    def rank(self) -> int:
        return int.from_bytes(blake3(self.text).digest(), "big")


def existing_folder(data_dir: str | None) -> Path:
    """Return the volunteer's folder as an absolute path. Raises DataError when none was given or it does not exist."""
    if data_dir is None:
        raise DataError("this run trains on your own texts, and no folder was given", "Add --data DIR with text files.")
    folder = Path(data_dir).absolute()
    if not folder.is_dir():
        raise DataError(f"the data folder {folder} does not exist or is no folder", "Give --data an existing folder.")
    return folder


def split_texts(files: Iterable[tuple[str, bytes]]) -> tuple[list[Passage], list[Passage]]:
    """Split files, given as (path in the folder, content), into the passages of (training data, hold-out).

    If there is a folder `holdout`, its files are the hold-out, so that peers with different texts can evaluate on the
    same ones. Otherwise about one block in `HOLDOUT_ONE_IN`, at least one, is chosen by a hash of its content. Blocks
    with the same content as one of the hold-out are not trained on."""
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
    """Return the last position up to `end` that is not inside a UTF-8 character."""
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
