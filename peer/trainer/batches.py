"""Batches of training windows, drawn without replacement, and the windows of an evaluation.

A batch is a function of the run's seed, the peer id, the cursor and the skipped shards. A peer that crashed therefore
draws the same batches again, and anyone can recompute them (`peer.trainer.data.recompute`)."""

from __future__ import annotations

from collections.abc import Callable, Collection, Sequence
from dataclasses import dataclass

import numpy as np

from peer.protocol.sampling import START, Cursor, Drawn, NothingToDraw, Sampler
from peer.trainer.data.corpus import Tokens, TrainingData

AHEAD = 2
"""Number of shards that are requested ahead of the one that is trained on."""

Windows = Tokens
"""Tokens of some windows, [windows, context + 1], in the data's own unsigned type."""


@dataclass(frozen=True, slots=True)
class Batch:
    """The windows of one inner step, and their place in the data."""

    windows: Windows
    begin: Cursor
    end: Cursor
    """Where the next batch begins."""
    skipped: tuple[Cursor, ...] = ()
    """Places from `begin` to `end` at which the rest of a shard was skipped, because no peer had it."""


class _NotYet(Exception):
    """The next batch needs a shard that is neither available nor known to be missing."""


class BatchStream:
    """Draws the batches of one peer, beginning at a cursor.

    `seed`: of the run. `context`: tokens of a window without the one predicted last. `batch`: windows of a batch."""

    def __init__(self, data: TrainingData, *, seed: int, peer_id: str, context: int, batch: int) -> None:
        self._data = data
        self._context = context
        self._batch = batch
        self._sampler = Sampler(seed, peer_id, context, data.tokens_per_shard)
        self._drawn: Drawn | None = None
        self.cursor = START

    def move_to(self, cursor: Cursor) -> None:
        self.cursor, self._drawn = cursor, None

    def ready(self) -> bool:
        """Return whether the next batch can be drawn now. Requests the shards that this and the next batches need."""
        if self._drawn is None:
            self._data.request(self._ahead())
            try:
                self._drawn = self._sampler.draw(self.cursor, self._batch, self._usable)
            except NothingToDraw:
                self._data.retry_missing()
            except _NotYet:
                return False
        return self._drawn is not None

    def next(self) -> Batch:
        """Return the next batch and move the cursor behind it. Only valid once `ready` returns True."""
        self.ready()
        drawn, begin = self._drawn, self.cursor
        assert drawn is not None, "the data is not here yet"
        self.move_to(drawn.cursor)
        windows = gather(drawn.windows, self._data.shard, self._context)
        for epoch, place in drawn.skipped:
            self._data.report_skip(epoch, place, self._sampler.shard_at(epoch, place))
        return Batch(windows, begin, drawn.cursor, skip_cursors(begin, drawn.skipped))

    def _usable(self, shard: int) -> bool:
        usable = self._data.usable(shard)
        if usable is None:
            self._data.await_shard(shard)
            raise _NotYet
        return usable

    def _ahead(self) -> list[int]:
        """Return the current shard and the next `AHEAD` ones that are not known to be missing."""
        count = AHEAD + 1
        while True:
            shards = self._sampler.upcoming(self.cursor, count)
            found = [shard for shard in shards if self._data.usable(shard) is not False]
            if len(found) > AHEAD or len(shards) < count:
                return found[: AHEAD + 1]
            count *= 2


def skip_cursors(begin: Cursor, skipped: Sequence[tuple[int, int]]) -> tuple[Cursor, ...]:
    """Return the places of a batch's skips as cursors. `begin`: of the batch; `skipped`: (epoch, place) of the shards.

    A shard that the batch begins in was skipped from `begin` on, any other one from its first window on."""
    here = begin.epoch, begin.place
    return tuple(begin if place == here else Cursor(*place) for place in skipped)


def skips_at(begin: Cursor, skipped: Collection[Cursor]) -> set[tuple[int, int]]:
    """Return the shards, as (epoch, place), that a batch beginning at `begin` skips. The inverse of `skip_cursors`."""
    here = begin.epoch, begin.place
    places = {(skip.epoch, skip.place) for skip in skipped if (skip.epoch, skip.place) > here}
    return places | ({here} if begin in skipped else set())


def gather(places: Sequence[tuple[int, int]], shard: Callable[[int], Tokens], context: int) -> Windows:
    """Return the tokens of windows, [windows, context + 1], in the order of `places`, which are (shard, window).

    `shard` returns the tokens of a shard by its number."""
    numbers, windows = (np.array(column, np.int64) for column in zip(*places, strict=True))
    found: Windows | None = None
    for number in dict.fromkeys(numbers.tolist()):
        tokens, mine = shard(number), numbers == number
        if found is None:
            found = np.empty((len(places), context + 1), tokens.dtype)
        found[mine] = tokens[windows[mine, None] * context + np.arange(context + 1)]
    assert found is not None
    return found


def holdout_windows(holdout: Tokens, *, context: int, count: int) -> Windows:
    """Return `count` evenly spaced windows of the hold-out, [count, context + 1]. They are the same for every peer."""
    starts = np.linspace(0, len(holdout) - context - 1, count).astype(np.int64)
    windows: Windows = holdout[starts[:, None] + np.arange(context + 1)]
    return windows
