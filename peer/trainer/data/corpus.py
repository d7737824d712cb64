"""Training data as a trainer reads it: shards of tokens, and a hold-out."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from typing import Any, Protocol

import numpy as np
from numpy.typing import NDArray

Tokens = NDArray[np.unsignedinteger[Any]]
"""One-dimensional, of the smallest type that the vocabulary fits into."""

PIECE_TOKENS = 2**22
"""Tokens of a shard of a corpus that lies in memory, as of a shard in a file."""


class TrainingData(Protocol):
    """Shards of training tokens, which may have to be waited for, and the hold-out."""

    @property
    def digest(self) -> str:
        """Name of exactly this data. A place in other data means nothing here."""
        ...

    @property
    def tokens_per_shard(self) -> Sequence[int]: ...

    @property
    def holdout(self) -> Tokens | None:
        """None: it is not here, or not yet."""
        ...

    @property
    def bytes_per_token(self) -> float:
        """Bytes of text that a token of the hold-out stands for."""
        ...

    @property
    def description(self) -> str:
        """Description for a person."""
        ...

    def usable(self, shard: int) -> bool | None:
        """Return whether this shard can be read; None: that is not known yet."""
        ...

    def await_shard(self, shard: int) -> None:
        """Note that training waits for this shard. It becomes usable or not within a bounded time."""
        ...

    def shard(self, number: int) -> Tokens:
        """Return the tokens of a shard that is usable."""
        ...

    def request(self, shards: Sequence[int]) -> None:
        """Get these shards, the first one first, and no others."""
        ...

    def retry_missing(self) -> None:
        """Forget which shards could not be had: none of a complete epoch could."""
        ...

    def report_skip(self, epoch: int, place: int, shard: int) -> None:
        """Tell that this shard, which is not usable, was passed over there."""
        ...


@dataclass(frozen=True, slots=True)
class Corpus:
    """Data in memory, or in files of our own. The two parts share no document."""

    train: Tokens
    holdout: Tokens
    digest: str
    """BLAKE3 of the training text followed by the hold-out's, in hex. With a tokenizer: also of that."""
    bytes_per_token: float = 1.0
    description: str = ""
    """Description of what was taken and what was left out, for a person."""

    @property
    def tokens_per_shard(self) -> Sequence[int]:
        last = len(self.train) - 1
        return [min(PIECE_TOKENS, last - at) + 1 for at in range(0, max(1, last), PIECE_TOKENS)]

    def usable(self, shard: int) -> bool:
        return True

    def await_shard(self, shard: int) -> None:
        raise AssertionError("all of it is here")

    def shard(self, number: int) -> Tokens:
        """Return a piece. It shares its last token with the next one, so that no window is lost between them."""
        return self.train[number * PIECE_TOKENS : (number + 1) * PIECE_TOKENS + 1]

    def request(self, shards: Sequence[int]) -> None:
        """Do nothing: all of it is here."""

    def retry_missing(self) -> None:
        raise AssertionError("all of it is here")

    def report_skip(self, epoch: int, place: int, shard: int) -> None:
        raise AssertionError("all of it is here")
