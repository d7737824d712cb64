"""A random sample of windows from all token shards of the run, for probes.

The shards are drawn at random, so that every part of the data has its share in the sample. The shards that this peer
trains on are not preferred, because its own params fit those best. The hold-out is left out.

Each drawn shard is borrowed from the daemon, some of its windows are copied, and it is given back. Probes therefore
need little memory, no permanent space in the cache, and only an occasional download.

On failure: when a shard is unavailable, the sample stays as it is, and the next probe draws another shard."""

from __future__ import annotations

from collections import deque
from collections.abc import Sequence
from typing import Protocol

import numpy as np

from peer.trainer.batches import Windows
from peer.trainer.data import Tokens

LEAST_DRAWS = 4
"""Least number of drawn shards for a probe. Fewer may all hold the same kind of text."""
USUAL_DRAWS = 8
"""Each probe draws one more shard until there are this many. Even if each shard holds a different kind of text, losses
on this many shards judge honest partners as losses on all of the run's data would."""
MOST_DRAWS = 16
"""Most shards whose windows are in the sample. The windows of the shard that was drawn first are dropped first."""
EVERY = 16
"""Number of probes between two further draws, once there are `USUAL_DRAWS` shards."""
WINDOWS = 64
"""Number of windows copied from a drawn shard."""


class LentShards(Protocol):
    """Source of training shards, of which one at a time can be borrowed for a probe."""

    @property
    def tokens_per_shard(self) -> Sequence[int]: ...

    def borrow(self, shard: int | None) -> None:
        """Request this shard, after all shards that training requests. None: give back the borrowed one."""
        ...

    def borrowed(self) -> Tokens | str | None:
        """Return the borrowed shard, or the reason why it is unavailable. None: it has not arrived yet."""
        ...


class RunSample:
    """The sample of one trainer process. It borrows its first shards when the first probe is made."""

    def __init__(self, shards: LentShards, tokens: int) -> None:
        """`tokens`: length of a window, with the token that is predicted last."""
        self._shards = shards
        self._tokens = tokens
        places = [max(0, shard - tokens + 1) for shard in shards.tokens_per_shard]
        self._ends = np.cumsum(places)
        """Cumulative number of windows of the shards. A window may begin at any token."""
        self._parts: deque[tuple[int, Windows]] = deque(maxlen=MOST_DRAWS)
        """(number of a drawn shard, windows copied from it)."""
        self._random = np.random.Generator(np.random.PCG64(0))
        self._borrows: int | None = None
        """Number of the shard that is borrowed now."""
        self._since = 0
        """Probes since the last shard was drawn."""
        self._lacked = ""
        """Why the last drawn shard is unavailable. Empty: it was available, or has not arrived yet."""

    @property
    def description(self) -> str:
        """Description of the sample's origin, for a person."""
        drawn = {shard for shard, _ in self._parts}
        return f"from {len(drawn)} of the run's {len(self._ends)} shards, drawn at random"

    def draw(self, seed: int, count: int) -> Windows | str:
        """Return `count` windows, [count, tokens], or the reason why there are too few. `seed` determines the
        choice."""
        self._random = np.random.Generator(np.random.PCG64(seed))
        self._since += 1
        if self._borrows is None and (len(self._parts) < USUAL_DRAWS or self._since >= EVERY):
            self._borrow()
            self.check_borrowed()
        if len(self._parts) < LEAST_DRAWS:
            return (
                f"{len(self._parts)} of {LEAST_DRAWS} random shards of the run's data are here to judge params by, and "
                + (self._lacked or "the next one is on its way")
            )
        every = np.concatenate([windows for _, windows in self._parts])
        windows: Windows = every[self._random.choice(len(every), count, replace=False)]
        return windows

    def check_borrowed(self) -> None:
        """Copy windows of the borrowed shard if it has arrived, and borrow another shard if the sample has too few."""
        while (shard := self._borrows) is not None and (found := self._shards.borrowed()) is not None:
            self._borrows, self._lacked = None, ""
            if isinstance(found, str):
                self._lacked = f"the next one could not be had: {found}"
            else:
                starts = self._random.integers(0, len(found) - self._tokens + 1, WINDOWS)
                self._parts.append((shard, np.array(found[starts[:, None] + np.arange(self._tokens)])))
            if self._lacked or len(self._parts) >= LEAST_DRAWS:
                self._shards.borrow(None)
            else:
                self._borrow()

    def _borrow(self) -> None:
        """Draw a shard with a probability proportional to its number of windows, and request it."""
        place = self._random.integers(self._ends[-1])
        self._borrows, self._since = int(np.searchsorted(self._ends, place, side="right")), 0
        self._shards.borrow(self._borrows)
