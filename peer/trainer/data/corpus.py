"""`TrainingData`: the interface of training data. `Corpus`: data that is completely available when it is opened."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from typing import Any, Protocol

import numpy as np
from numpy.typing import NDArray

Tokens = NDArray[np.unsignedinteger[Any]]
"""One-dimensional array of tokens, in the smallest unsigned type that the vocabulary fits into."""

PIECE_TOKENS = 2**22
"""Tokens of a shard of a `Corpus`. Shards in files have about the same number."""


class TrainingData(Protocol):
    """Shards of training tokens, which may have to be fetched first, and the hold-out."""

    @property
    def digest(self) -> str:
        """Digest of the data. A place in the data is valid only together with it."""
        ...

    @property
    def tokens_per_shard(self) -> Sequence[int]: ...

    @property
    def holdout(self) -> Tokens | None:
        """The tokens of the hold-out. None: it is unavailable, or has not arrived yet."""
        ...

    @property
    def bytes_per_token(self) -> float:
        """Mean number of bytes of text per token of the hold-out."""
        ...

    @property
    def description(self) -> str:
        """Description of the data, for a person."""
        ...

    def usable(self, shard: int) -> bool | None:
        """Return True if this shard can be read now, and False if it is unavailable. None: not known yet."""
        ...

    def await_shard(self, shard: int) -> None:
        """Wait for this shard, without blocking: `usable` returns True or False within a bounded time."""
        ...

    def shard(self, number: int) -> Tokens:
        """Return the tokens of a shard that is usable."""
        ...

    def request(self, shards: Sequence[int]) -> None:
        """Request these shards, the most urgent first. Other shards may be released."""
        ...

    def retry_missing(self) -> None:
        """Clear the set of unavailable shards. Called when a full epoch found no usable shard."""
        ...

    def report_skip(self, epoch: int, place: int, shard: int) -> None:
        """Report that training skipped this unavailable shard, at this place in the order of the epoch."""
        ...


@dataclass(frozen=True, slots=True)
class Corpus:
    """Training data that is completely available, in memory or in mapped files.

    No document is in both `train` and `holdout`."""

    train: Tokens
    holdout: Tokens
    digest: str
    """BLAKE3, in hex, of the training text followed by the text of the hold-out, and of the tokenizer if there is
    one."""
    bytes_per_token: float = 1.0
    description: str = ""
    """Which files were read and which were left out, for a person."""

    @property
    def tokens_per_shard(self) -> Sequence[int]:
        last = len(self.train) - 1
        return [min(PIECE_TOKENS, last - at) + 1 for at in range(0, max(1, last), PIECE_TOKENS)]

    def usable(self, shard: int) -> bool:
        return True

    def await_shard(self, shard: int) -> None:
        raise AssertionError("all of it is here")

    def shard(self, number: int) -> Tokens:
        """Return a shard. It shares its last token with the next shard, so that no window is lost between them."""
        return self.train[number * PIECE_TOKENS : (number + 1) * PIECE_TOKENS + 1]

    def request(self, shards: Sequence[int]) -> None:
        """Do nothing: all shards are available."""

    def retry_missing(self) -> None:
        raise AssertionError("all of it is here")

    def report_skip(self, epoch: int, place: int, shard: int) -> None:
        raise AssertionError("all of it is here")
