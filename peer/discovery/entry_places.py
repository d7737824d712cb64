"""Places for the entries that a DHT node stores, shared among runs, keys and address blocks. No I/O.

Keys cost nothing, but a node's memory does. Therefore one key can have only a few entries, and other runs share a part
of the places. When no place is left, an entry of another run is dropped before one of our own run. Among entries of the
same kind, the address block whose callers brought the most loses an entry to a newcomer from a smaller block."""

from __future__ import annotations

import math
from collections import Counter
from dataclasses import dataclass, field

from peer.protocol.messages import RunId
from peer.protocol.swarm.buckets import MAX_DEPTH

MAX_ENTRIES = 4096
"""Most entries of a node at once: 8 MiB. An honest peer has two."""
SHARE = 4
"""Entries of other runs get one place in this many, and so do the entries of each address block."""
KEY_ENTRIES = MAX_DEPTH + 2
"""Entries of one key: all places in which a peer of one run can be, and one more."""

Place = tuple[bytes, bytes]
"""The slot of an entry, and the public key that signed it."""


@dataclass(frozen=True, slots=True)
class Holder:
    """The run, address block and expiry of one entry."""

    run_id: RunId
    block: str
    """Address block of the caller that brought the entry (`peer.protocol.endpoints.block_of`)."""
    until: float
    """When the entry expires, seconds since the epoch."""


@dataclass(slots=True)
class _Pool:
    """The entries of our own run, or those of all other runs."""

    held: dict[Place, Holder] = field(default_factory=dict)
    blocks: Counter[str] = field(default_factory=Counter)

    def put(self, place: Place, holder: Holder) -> None:
        if (former := self.held.get(place)) is not None:
            self._uncount(former)
        self.held[place] = holder  # a renewed entry keeps its position by age
        self.blocks[holder.block] += 1

    def drop(self, place: Place) -> None:
        if (holder := self.held.pop(place, None)) is not None:
            self._uncount(holder)

    def _uncount(self, holder: Holder) -> None:
        self.blocks[holder.block] -= 1
        if not self.blocks[holder.block]:
            del self.blocks[holder.block]

    def spare(self, block: str) -> Place | None:
        """Return the youngest entry of the block with the most entries; None: `block` would have as many after getting
        its place."""
        if not self.blocks:
            return None
        largest, most = max(self.blocks.items(), key=lambda item: (item[1], item[0]))
        if most <= self.blocks[block] + 1:
            return None
        return next(place for place in reversed(self.held) if self.held[place].block == largest)

    def youngest(self) -> Place | None:
        """Return the youngest entry of the block with the most entries; None: there are no entries."""
        return self.spare("") or next(reversed(self.held), None)


class EntryPlaces:
    """Gives places to at most `most` entries, most of them of one run."""

    def __init__(self, own_run: RunId | None, most: int = MAX_ENTRIES) -> None:
        """`own_run`: the run that comes first; None: no run does."""
        self._own_run = own_run
        self._most = most
        self._own_pool, self._foreign_pool = _Pool(), _Pool()
        self._of_key: dict[bytes, dict[Place, None]] = {}
        self._next_end = math.inf
        """No entry expires before this time."""

    def __len__(self) -> int:
        return len(self._own_pool.held) + len(self._foreign_pool.held)

    def enter(self, place: Place, holder: Holder, now: float, *, by_owner: bool = True) -> list[Place] | None:
        """Give an entry a place. Return the places of the entries that must be dropped for it; None: there is no room.

        An entry that has a place keeps it. `by_owner`: the caller is the peer that signed the entry, which from then on
        counts for the caller's address block. `now`: seconds since the epoch."""
        pool = self._pool(holder)
        if (known := pool.held.get(place)) is not None:
            block = holder.block if by_owner else known.block
            pool.put(place, Holder(holder.run_id, block, holder.until))
            return []
        gone = self._make_room(place, holder, now)
        if gone is None:
            return None
        for victim in gone:
            self._drop(victim)
        pool.put(place, holder)
        self._next_end = min(self._next_end, holder.until)
        self._of_key.setdefault(place[1], {})[place] = None
        return gone

    def _pool(self, holder: Holder) -> _Pool:
        return self._own_pool if holder.run_id == self._own_run else self._foreign_pool

    def _make_room(self, place: Place, holder: Holder, now: float) -> list[Place] | None:
        pool = self._pool(holder)
        of_key = self._of_key.get(place[1], {})
        if len(of_key) >= KEY_ENTRIES:
            oldest = min(of_key, key=lambda entry: self._holder(entry).until)
            return [oldest] if oldest in pool.held or self._has_room(holder) else None
        if not self._has_room(holder):
            self._forget_ended(now)
        if self._has_room(holder):
            return []
        if pool.blocks[holder.block] >= max(1, self._most // SHARE):
            return None
        victim = (self._foreign_pool.youngest() if pool is self._own_pool else None) or pool.spare(holder.block)
        return None if victim is None else [victim]

    def _has_room(self, holder: Holder) -> bool:
        pool, share = self._pool(holder), max(1, self._most // SHARE)
        if pool.blocks[holder.block] >= share or (pool is self._foreign_pool and len(pool.held) >= share):
            return False
        return len(self) < self._most

    def _forget_ended(self, now: float) -> None:
        """Drop expired entries. The node's store drops them by itself."""
        if now < self._next_end:
            return
        everything = [*self._own_pool.held.items(), *self._foreign_pool.held.items()]
        for place, holder in everything:
            if holder.until <= now:
                self._drop(place)
        self._next_end = min((holder.until for _, holder in everything if holder.until > now), default=math.inf)

    def _holder(self, place: Place) -> Holder:
        found = self._own_pool.held.get(place) or self._foreign_pool.held.get(place)
        assert found is not None, place
        return found

    def _drop(self, place: Place) -> None:
        self._own_pool.drop(place)
        self._foreign_pool.drop(place)
        of_key = self._of_key.get(place[1])
        if of_key is not None:
            of_key.pop(place, None)
            if not of_key:
                del self._of_key[place[1]]
