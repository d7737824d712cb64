"""Data of kind `tokens`: shards in files, which the daemon fetches and the trainer maps into memory.

A mapped file stays readable after it is unlinked, so that the cache may delete a shard that is being trained on."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from pathlib import Path
from typing import Any

import numpy as np
from blake3 import blake3

from peer.errors import DataError
from peer.run.files import token_index
from peer.run.files.token_index import ShardEntry, TokenIndex, shard_bytes
from peer.trainer.data.corpus import Tokens

_BLOCK = 2**20
WAIT_S = 300.0
"""Most seconds to wait for a shard that the next batch needs."""

Send = Callable[[dict[str, Any]], None]


def read_index(path: str | None, digest: str) -> TokenIndex:
    """Read the run's index of shards. `digest`: BLAKE3 of the index by the manifest.

    Raises DataError when the file cannot be read or has another digest."""
    try:
        if _digest_of(Path(path or "")) != digest:
            raise DataError(f"the data index {path} is not the one that the manifest names", "Start again to fetch it.")
        return token_index.read_index(Path(path or ""))
    except OSError as error:
        raise DataError(
            f"the data index {path} cannot be read: {error.strerror}", "Start again to fetch it."
        ) from error


def _digest_of(file: Path) -> str:
    hasher = blake3()
    with file.open("rb") as opened:
        while block := opened.read(_BLOCK):
            hasher.update(block)
    return hasher.hexdigest()


class TokenShards:
    """The shards of an index, as `TrainingData`, and as `LentShards` for probes.

    `send` sends requests to the daemon. The daemon's answers are passed to `receive_shard`. `now`: a clock in seconds,
    for `WAIT_S`. `digest`: of the index, which names the data."""

    def __init__(self, index: TokenIndex, digest: str, send: Send, now: Callable[[], float]) -> None:
        self.digest = digest
        self._index = index
        self._send = send
        self._now = now
        self._dtype = np.dtype(index.dtype).newbyteorder("<")
        self._open: dict[str, Tokens] = {}
        self._missing: dict[str, str] = {}
        """Digest of an unavailable shard -> reason."""
        self._expected: list[str] = []
        """Digests of the shards that training and evaluation need, the most urgent first."""
        self._borrowed = ""
        """Digest of the shard that probes borrow. Empty: none."""
        self._not_lent = ""
        """Why the borrowed shard is unavailable. Empty: it is here, or may still arrive."""
        self._wanted: list[str] = []
        """Digests of the last request to the daemon."""
        self._awaited: tuple[str, float] | None = None
        """(digest of the shard that the next batch waits for, start of the wait by `now`)."""

    @property
    def tokens_per_shard(self) -> Sequence[int]:
        return self._index.train.tokens

    @property
    def bytes_per_token(self) -> float:
        entry = self._index.holdout[0]
        return entry.text_bytes / entry.tokens

    @property
    def description(self) -> str:
        """Size of the data, for a person."""
        train = self._index.train
        return f"{sum(train.tokens):,} tokens in {len(train):,} shards"

    @property
    def waiting(self) -> str:
        """The shard that training waits for, for a person. Empty: it does not wait."""
        return f"waiting for shard {self._number(self._awaited[0])} of the data" if self._awaited else ""

    # -- the hold-out ------------------------------------------------------------------------------------------------

    @property
    def holdout(self) -> Tokens | None:
        return self._open.get(self._index.holdout[0].digest)

    @property
    def holdout_awaited(self) -> bool:
        """Whether the hold-out is not here but may still arrive."""
        digest = self._index.holdout[0].digest
        return digest not in self._open and digest not in self._missing

    # -- training ----------------------------------------------------------------------------------------------------

    def usable(self, shard: int) -> bool | None:
        digest = self._index.train[shard].digest
        if digest in self._open:
            return True
        return False if digest in self._missing else None

    def await_shard(self, shard: int) -> None:
        """Begin to wait for a shard. After `WAIT_S` of waiting, mark it as missing."""
        digest = self._index.train[shard].digest
        if self._awaited is None or self._awaited[0] != digest:
            self._awaited = digest, self._now()
        elif self._now() - self._awaited[1] >= WAIT_S:
            self._missing[digest] = f"it did not come within {WAIT_S:.0f} s"

    def shard(self, number: int) -> Tokens:
        digest = self._index.train[number].digest
        self._await_no_more(digest)
        return self._open[digest]

    def request(self, shards: Sequence[int]) -> None:
        """Request the hold-out and then these shards, in this order. Others are closed, except a borrowed one."""
        self._expected = [self._index.holdout[0].digest, *(self._index.train[shard].digest for shard in shards)]
        self._want()

    def _want(self, ask: str = "") -> None:
        """Send the daemon the list of wanted shards if it changed. `ask`: a digest to request a second time."""
        wanted = list(dict.fromkeys([*self._expected, self._borrowed] if self._borrowed else self._expected))
        fresh = [one for one in wanted if one not in self._open and (one == ask or one not in self._wanted)]
        if wanted == self._wanted and not fresh:
            return
        self._wanted = wanted
        self._open = {digest: tokens for digest, tokens in self._open.items() if digest in wanted}
        self._send({"shards": wanted, "ask": fresh, "wrong": []})

    def retry_missing(self) -> None:
        self._missing, self._awaited = {}, None

    def report_skip(self, epoch: int, place: int, shard: int) -> None:
        """Report a skipped shard to the daemon, and forget that it is missing: another epoch requests it again."""
        digest = self._index.train[shard].digest
        self._await_no_more(digest)
        reason = self._missing.pop(digest, "it was passed over earlier in this batch")
        told = {"epoch": epoch, "place": place, "shard": shard, "digest": digest, "reason": reason}
        self._send({"skipped": told})

    # -- probes ------------------------------------------------------------------------------------------------------

    def borrow(self, shard: int | None) -> None:
        """Request this shard after all shards that training needs, in place of the borrowed one. None: give that
        back."""
        self._borrowed, self._not_lent = "" if shard is None else self._index.train[shard].digest, ""
        self._want(self._borrowed)

    def borrowed(self) -> Tokens | str | None:
        """Return the borrowed shard, or the reason why it is unavailable. None: it has not arrived yet."""
        return self._open.get(self._borrowed, self._not_lent or None)

    # -- the daemon's answers ----------------------------------------------------------------------------------------

    def receive_shard(self, digest: str, path: str | None, reason: str) -> None:
        """Map a shard's file, or note the reason why there is none (`path` is None).

        A file with other content than the index says is reported as wrong and requested again."""
        if digest not in self._wanted or digest in self._open:
            return
        if path is None:
            if digest == self._borrowed:
                self._not_lent = reason
            if digest in self._expected:
                self._missing[digest] = reason
            return
        entry = self._index.shard(digest)
        assert entry is not None, "it was wanted"
        tokens = self._verified(entry, path)
        if tokens is None:
            self._send({"shards": self._wanted, "ask": [digest], "wrong": [digest]})
        else:
            self._open[digest] = tokens
            self._missing.pop(digest, None)

    def _await_no_more(self, digest: str) -> None:
        if self._awaited is not None and self._awaited[0] == digest:
            self._awaited = None

    def _verified(self, entry: ShardEntry, path: str) -> Tokens | None:
        """Map a file. None: it is not this shard, by length, digest or its largest token."""
        try:
            if Path(path).stat().st_size != shard_bytes(self._index, entry):
                return None
            tokens: Tokens = np.memmap(path, self._dtype, mode="r")
        except (OSError, ValueError):
            return None
        if (
            blake3(tokens.view(np.uint8).data).hexdigest() != entry.digest
            or int(tokens.max()) >= self._index.vocab_size
        ):
            return None
        return tokens

    def _number(self, digest: str) -> int:
        number = self._index.train.number_of(digest)
        assert number is not None, "training waits for it"
        return number
