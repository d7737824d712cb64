"""A sample of the windows of all the run's token shards, for probes. It comes from shards that chance draws, so that no
part of the data counts for more than its share: not even the part that we train on.

Each drawn shard is borrowed once, leaves some of its windows here, and is given back. So a probe takes little memory,
no lasting place in the cache, and one shard's download now and then. The hold-out is no part of the data.

On failure: a shard that nobody has leaves the sample as it is. The next probe draws another one."""

from __future__ import annotations

from collections import deque
from collections.abc import Sequence
from typing import Protocol

import numpy as np

from peer.trainer.batches import Windows
from peer.trainer.data import Tokens

LEAST_DRAWS = 4
"""Drawn shards from which on the sample stands for the run. Fewer may be of one kind of text."""
USUAL_DRAWS = 8
"""Drawn shards up to which each probe seeks one more. Where every shard has a kind of text of its own, so many judge
honest partners as all of the run does."""
MOST_DRAWS = 16
"""Drawn shards whose windows are kept. The oldest give way."""
EVERY = 16
"""Probes from one further drawn shard to the next."""
WINDOWS = 64
"""Windows taken of a drawn shard."""


class LentShards(Protocol):
    """Training shards that can be borrowed one at a time."""

    @property
    def tokens_per_shard(self) -> Sequence[int]: ...

    def borrow(self, shard: int | None) -> None:
        """Get this shard too, after all that training expects. None: give back the last one."""
        ...

    def borrowed(self) -> Tokens | str | None:
        """Return the borrowed shard, or why it cannot be had; None: that is not known yet."""
        ...


class RunSample:
    """Windows of so many tokens from anywhere in the run. Shards are borrowed from the first probe on."""

    def __init__(self, shards: LentShards, tokens: int) -> None:
        """`tokens`: of a window, with the one that is predicted last."""
        self._shards = shards
        self._tokens = tokens
        places = [max(0, shard - tokens + 1) for shard in shards.tokens_per_shard]
        self._ends = np.cumsum(places)
        """For each shard: windows of all shards up to and with it. A window may begin at any token."""
        self._parts: deque[tuple[int, Windows]] = deque(maxlen=MOST_DRAWS)
        """Each with the number of its shard."""
        self._random = np.random.Generator(np.random.PCG64(0))
        self._borrows: int | None = None
        self._since = 0
        """Probes since a shard was drawn."""
        self._lacked = ""
        """Why the last drawn shard could not be had."""

    @property
    def description(self) -> str:
        """Description for a person."""
        drawn = {shard for shard, _ in self._parts}
        return f"from {len(drawn)} of the run's {len(self._ends)} shards, drawn at random"

    def draw(self, seed: int, count: int) -> Windows | str:
        """Return `count` windows, [count, tokens], or why there are none yet. `seed` decides which."""
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
        """Look whether the borrowed shard is here now, and take windows of it."""
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
        """Draw a shard, each as likely as it has windows."""
        place = self._random.integers(self._ends[-1])
        self._borrows, self._since = int(np.searchsorted(self._ends, place, side="right")), 0
        self._shards.borrow(self._borrows)
