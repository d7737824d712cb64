"""Drawing of training windows without replacement: each epoch of a peer contains every window exactly once.

The order of shards is a pseudo-random permutation keyed by (seed, peer, epoch), and so is the order of windows within
each shard. A batch depends only on (seed, peer, cursor) and the skipped shards, so that anyone can reproduce it."""

from __future__ import annotations

from collections.abc import Callable, Collection, Sequence
from dataclasses import dataclass

import numpy as np
from blake3 import blake3
from numpy.typing import NDArray

Order = NDArray[np.int64]


class NothingToDraw(Exception):
    """Raised when no shard of a complete epoch is usable and has a window. The cursor is unchanged."""


@dataclass(frozen=True, slots=True, order=True)
class Cursor:
    """Place of the next window: epoch, position in the epoch's order of shards, position in the shard's order of
    windows.

    Every cursor that `Sampler` returns points at a window, or at the start of a shard without windows."""

    epoch: int = 0
    place: int = 0
    window: int = 0


START = Cursor()


@dataclass(frozen=True, slots=True)
class Drawn:
    """A batch: its windows as (shard, window), the cursor after it, and (epoch, place) of each skipped shard."""

    windows: list[tuple[int, int]]
    cursor: Cursor
    skipped: list[tuple[int, int]]


def windows_in(tokens: int, context: int) -> int:
    """Return the number of windows of a shard. Window w is tokens[w * context : w * context + context + 1]."""
    return max(0, tokens - 1) // context


def shard_order(seed: int, peer_id: str, epoch: int, shards: int) -> Order:
    """Return the shard numbers in the order in which this peer reads them in this epoch."""
    return _permutation(f"shards\0{seed}\0{peer_id}\0{epoch}", shards)


def window_order(seed: int, peer_id: str, epoch: int, shard: int, windows: int) -> Order:
    """Return a shard's window numbers in the order in which this peer reads them in this epoch."""
    return _permutation(f"windows\0{seed}\0{peer_id}\0{epoch}\0{shard}", windows)


def _permutation(key: str, count: int) -> Order:
    """Return a permutation by sorting keyed random numbers. The raw stream of PCG64 is fixed for all versions of numpy;
    that of `Generator.permutation` is not."""
    random = np.random.PCG64(int.from_bytes(blake3(key.encode()).digest(16), "little"))
    return np.argsort(random.random_raw(count), kind="stable").astype(np.int64, copy=False)


class Sampler:
    """Computes the windows that one peer draws. It has no position of its own: the caller passes and stores the
    cursor."""

    def __init__(self, seed: int, peer_id: str, context: int, tokens_per_shard: Sequence[int]) -> None:
        assert context > 0
        assert tokens_per_shard
        self._seed = seed
        self._peer_id = peer_id
        self._windows = [windows_in(tokens, context) for tokens in tokens_per_shard]
        self._shards: tuple[int, Order] | None = None
        self._inside: tuple[int, int, Order] | None = None

    @property
    def windows(self) -> int:
        """Windows of an epoch in which no shard is skipped."""
        return sum(self._windows)

    def shard_at(self, epoch: int, place: int) -> int:
        """Return the number of the shard at this position of an epoch's order."""
        return self._shard(Cursor(epoch, place))

    def draw(self, cursor: Cursor, count: int, usable: Callable[[int], bool]) -> Drawn:
        """Return the next `count` windows from the cursor on. Raises NothingToDraw.

        `usable` is called with the number of each shard that is reached, once. The rest of a shard that is not usable
        is skipped."""
        return self._draw(cursor, count, lambda place, shard: usable(shard))

    def replay(self, cursor: Cursor, count: int, skipped: Collection[tuple[int, int]]) -> Drawn:
        """Repeat an earlier draw from this cursor. Raises NothingToDraw.

        `skipped`: (epoch, place) of the shards that the earlier draw skipped. Entries beyond the end of this draw are
        ignored."""
        return self._draw(cursor, count, lambda place, shard: place not in skipped)

    def upcoming(self, cursor: Cursor, shards: int) -> list[int]:
        """Return the numbers of the next distinct shards to read, beginning with that of the cursor.

        There are fewer than `shards` if the run has fewer."""
        wanted = min(shards, sum(windows > 0 for windows in self._windows))
        found: dict[int, None] = {}
        while len(found) < wanted:
            shard = self._shard(cursor)
            if self._windows[shard] > cursor.window:
                found[shard] = None
            cursor = self._next_shard(cursor)
        return list(found)

    def _draw(self, cursor: Cursor, count: int, usable: Callable[[tuple[int, int], int], bool]) -> Drawn:
        drawn: list[tuple[int, int]] = []
        skipped: list[tuple[int, int]] = []
        passed = 0
        while len(drawn) < count:
            shard, place = self._shard(cursor), (cursor.epoch, cursor.place)
            left = self._windows[shard] - cursor.window
            if left > 0 and usable(place, shard):
                taken = min(left, count - len(drawn))
                order = self._window_order(cursor.epoch, shard)[cursor.window : cursor.window + taken]
                drawn += [(shard, window) for window in order.tolist()]
                cursor = Cursor(*place, cursor.window + taken) if taken < left else self._next_shard(cursor)
                passed = 0
                continue
            if left > 0:
                skipped.append(place)
            passed += 1
            if passed == 2 * len(self._windows):  # twice: one of the two epochs is then complete
                raise NothingToDraw(f"none of the {len(self._windows)} shards is usable and has a window")
            cursor = self._next_shard(cursor)
        return Drawn(drawn, cursor, skipped)

    def _next_shard(self, cursor: Cursor) -> Cursor:
        if cursor.place + 1 < len(self._windows):
            return Cursor(cursor.epoch, cursor.place + 1)
        return Cursor(cursor.epoch + 1)

    def _shard(self, cursor: Cursor) -> int:
        if self._shards is None or self._shards[0] != cursor.epoch:
            order = shard_order(self._seed, self._peer_id, cursor.epoch, len(self._windows))
            self._shards = cursor.epoch, order
        return int(self._shards[1][cursor.place])

    def _window_order(self, epoch: int, shard: int) -> Order:
        if self._inside is None or self._inside[:2] != (epoch, shard):
            order = window_order(self._seed, self._peer_id, epoch, shard, self._windows[shard])
            self._inside = epoch, shard, order
        return self._inside[2]
