"""`TrackedData`: the training data of a trainer process, with a record of which data was drawn for which fragment."""

from __future__ import annotations

import contextlib
import json
import time
from collections.abc import Callable
from pathlib import Path
from typing import Any

from peer.errors import DataError, HomeUnusable
from peer.protocol.sampling import START, Cursor, windows_in
from peer.run.home import write_whole
from peer.trainer.batches import Batch
from peer.trainer.config import TrainerConfig
from peer.trainer.data.account import DataAccount, DataPosition
from peer.trainer.data.corpus import TrainingData
from peer.trainer.data.load import MIN_WINDOWS, load_corpus
from peer.trainer.data.tokenized import TokenizerFile
from peer.trainer.data.tokens import TokenShards, read_index

PLACE = "data_place.json"
"""File in the run's folder with the place in the data of the last snapshot, for a start without a checkpoint."""


class TrackedData:
    """Opens the data of the run, chooses where training begins in it, and records which data was drawn.

    It is the `DrawnData` of the built-in loop's boundary."""

    def __init__(self, config: TrainerConfig, folder: Path, fragments: int, send: Callable[[dict[str, Any]], None]):
        """Open the data. `send` sends messages to the daemon. Raises DataError, HomeUnusable and ManifestError."""
        self._folder = folder
        self._shards: TokenShards | None = None
        self.data: TrainingData
        if config.data.kind == "tokens":
            self.data = self._shards = _open_shards(config, send)
        else:
            self.data = load_corpus(config.data, config.data_dir, config.train.context, _tokenizer(config), folder)
        self.account = DataAccount(START, [START] * fragments)

    @property
    def shards(self) -> TokenShards | None:
        """The run's shards. None: the data is of another kind than `tokens`."""
        return self._shards

    @property
    def waiting(self) -> str:
        """The shard that training waits for, for a person. Empty: none."""
        return self._shards.waiting if self._shards is not None else ""

    @property
    def holdout_awaited(self) -> bool:
        """Whether the hold-out is not here but may still arrive."""
        return self._shards is not None and self._shards.holdout_awaited

    def receive_shard(self, message: dict[str, Any]) -> None:
        """Pass the daemon's answer about a shard to `TokenShards`."""
        assert self._shards is not None, "nobody asked"
        self._shards.receive_shard(message["digest"], message["path"], message["reason"])

    def begin(self, saved: DataPosition | None, *, resumed: bool, exact: bool) -> tuple[Cursor, str]:
        """Choose the place in the data where training begins. Return it with the reason, for a person.

        `resumed`: training resumes a checkpoint, whose place is `saved`. `exact`: no work was done after the save."""
        fragments = self.account.fragments
        if saved is not None and exact and self._fits(saved) and len(saved.begins) == fragments:
            self.account = DataAccount.resumed(saved)
            return Cursor(*saved.cursor), "where the checkpoint ends"
        cursor, why = self._choose(saved, resumed)
        self.account = DataAccount(cursor, [cursor] * fragments)
        return cursor, why

    def _choose(self, saved: DataPosition | None, resumed: bool) -> tuple[Cursor, str]:
        if saved is not None:
            if self._fits(saved):
                return saved.base, "where the work begins that came after the checkpoint's state"
            return START, "at the beginning of an epoch: the checkpoint tells a place in other data"
        if resumed:
            return START, "at the beginning of an epoch: the checkpoint of an older program tells no place"
        kept = self._saved_place()
        if kept is None:
            return START, "at the beginning of an epoch: no place in this data is known here"
        return kept, "where the last snapshot was taken"

    def _fits(self, position: DataPosition) -> bool:
        shards = len(self.data.tokens_per_shard)
        return position.digest == self.data.digest and all(place < shards for _, place, _ in position.cursors)

    def _saved_place(self) -> Cursor | None:
        """Return the stored place of the last snapshot. None: none is stored for exactly this data."""
        kept = saved_place(self._folder, self.data.digest)
        return kept if kept is not None and kept.place < len(self.data.tokens_per_shard) else None

    def position(self) -> DataPosition:
        """Return the present place in the data, for a checkpoint."""
        return self.account.position(self.data.digest)

    def record_batch(self, batch: Batch) -> None:
        self.account.record_batch(batch)

    def snapshot(self, fragment: int, tokens: int) -> dict[str, str]:
        """Record a snapshot and store its place. Return the span of its data: see `DrawnData`."""
        place = {"digest": self.data.digest, "cursor": self.position().cursor}
        # harmless: if the file is missing, a start without a checkpoint repeats some data
        with contextlib.suppress(HomeUnusable):
            write_whole(self._folder / PLACE, json.dumps(place).encode())
        return self.account.snapshot(fragment, tokens)

    def rebase(self, fragment: int, tokens: int) -> None:
        """Make the snapshot taken at this token count the fragment's base."""
        self.account.rebase(fragment, tokens)


def saved_place(folder: Path, digest: str | None = None) -> Cursor | None:
    """Return the stored place of the last snapshot in a run's folder. None: there is none that can be read.

    `digest`: the data that the place has to belong to; None: any."""
    try:
        kept = json.loads((folder / PLACE).read_bytes())
        numbers = [int(number) for number in kept["cursor"]]
        fits = digest in (None, kept["digest"]) and min(numbers) >= 0
        return Cursor(*numbers) if fits else None
    except (OSError, ValueError, TypeError, KeyError):
        return None


def _open_shards(config: TrainerConfig, send: Callable[[dict[str, Any]], None]) -> TokenShards:
    assert config.data.index is not None
    digest, context = config.data.index.digest, config.train.context
    index = read_index(config.data_index, digest)
    if index.vocab_size != config.tokenizer.vocab_size:
        found = f"the data index is of {index.vocab_size} tokens, the run's tokenizer of {config.tokenizer.vocab_size}"
        raise DataError(found, "The operator has to build the data with the tokenizer of the run.")
    windows = sum(windows_in(tokens, context) for tokens in index.train.tokens)
    if windows < MIN_WINDOWS or windows_in(index.holdout[0].tokens, context) < 1:
        found = f"too little data in the index: a window has {context + 1} tokens, and {windows} are found in it"
        raise DataError(found, "The operator has to build larger data, or lower train.context.")
    return TokenShards(index, digest, send, time.monotonic)


def _tokenizer(config: TrainerConfig) -> TokenizerFile | None:
    """Return the tokenizer for the volunteer's own texts. None: a token is a byte, or the data needs no tokenizer."""
    section = config.tokenizer
    if section.kind == "bytes" or config.data.kind != "text":
        return None
    assert config.tokenizer_file is not None
    assert section.end_token is not None
    return TokenizerFile(Path(config.tokenizer_file), section.vocab_size, section.end_token)
