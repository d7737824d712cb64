"""Batches of training windows, drawn without replacement, and the windows of an evaluation.

A batch is a function of the run's seed, the peer, the cursor and the shards that were skipped. A peer that crashed
therefore draws the same batches again, and anyone can."""

from __future__ import annotations

from collections.abc import Callable, Collection, Sequence
from dataclasses import dataclass

import numpy as np

from peer.protocol.sampling import START, Cursor, Drawn, NothingToDraw, Sampler
from peer.trainer.data.corpus import Tokens, TrainingData

AHEAD = 2
"""Shards that are asked for while another one is trained on."""

Windows = Tokens
"""[windows, context + 1], of the data's own type."""


@dataclass(frozen=True, slots=True)
class Batch:
    """The windows of one inner step, and where they lie."""

    windows: Windows
    begin: Cursor
    end: Cursor
    skipped: tuple[Cursor, ...] = ()
    """Places between the two where the rest of a shard was passed over."""


class _NotYet(Exception):
    """A shard that is reached is neither here nor known to be missing."""


class BatchStream:
    """The batches of one peer from a cursor on."""

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
        """Whether the next batch can be drawn at once. Ask for the shards that it and the next ones need."""
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
        """Draw the next batch, and move behind it. `ready` has to be true."""
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
        """Return the next shards that are not known to be missing."""
        count = AHEAD + 1
        while True:
            shards = self._sampler.upcoming(self.cursor, count)
            found = [shard for shard in shards if self._data.usable(shard) is not False]
            if len(found) > AHEAD or len(shards) < count:
                return found[: AHEAD + 1]
            count *= 2


def skip_cursors(begin: Cursor, skipped: Sequence[tuple[int, int]]) -> tuple[Cursor, ...]:
    """Return where the skips of a batch that begins there happened."""
    here = begin.epoch, begin.place
    return tuple(begin if place == here else Cursor(*place) for place in skipped)


def skips_at(begin: Cursor, skipped: Collection[Cursor]) -> set[tuple[int, int]]:
    """Return the shards, as (epoch, place), that a batch that begins there passes over."""
    here = begin.epoch, begin.place
    places = {(skip.epoch, skip.place) for skip in skipped if (skip.epoch, skip.place) > here}
    return places | ({here} if begin in skipped else set())


def gather(places: Sequence[tuple[int, int]], shard: Callable[[int], Tokens], context: int) -> Windows:
    """Return these windows, each (shard, window), in their order."""
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
    """Return `count` evenly spaced windows of the hold-out, [count, context + 1], the same for every peer."""
    starts = np.linspace(0, len(holdout) - context - 1, count).astype(np.int64)
    windows: Windows = holdout[starts[:, None] + np.arange(context + 1)]
    return windows
