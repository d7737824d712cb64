"""Buckets for the records of a large run, so that a look costs the same in a swarm of any size.

A bucket is named by the leading bits that the hashed ids of its members share. Its depth is the number of these bits.
There is no list of buckets: each peer finds its own depth from the records it reads. A bucket with more than `split`
live records splits. Its members each move one deeper on their own, for all of them see the same records. Two halves
with at most half of `split` between them merge. A peer announces under its own bucket and under the one above. So the
members of one bucket see all of each other while some have moved and others have not.

In a round a peer reads its own bucket and the one across. Its name is the own one xor a number drawn for the round, a
prefix of the same bits at every depth. So the peers of two buckets see all of each other, and in time every peer meets
every other."""

from __future__ import annotations

import hashlib
from collections.abc import Collection, Mapping
from functools import lru_cache

from peer.protocol.messages import MAX_RECORD_TTL_S, PeerId

MAX_DEPTH = 10
"""With 64 in a bucket: 65,000 peers. Beyond that buckets grow."""
SPLIT = 64
"""Live records above which a bucket splits."""
FIT_EVERY = 4
"""Looks after which a small bucket checks whether it could merge: that takes two reads more."""

Found = Mapping[str, Collection[PeerId]]
"""The live peers in each bucket that was read, each peer once."""


@lru_cache(maxsize=8192)
def address(peer: PeerId) -> str:
    """Return the bits by which a peer is placed, `MAX_DEPTH` characters 0 and 1. The name of its bucket is a prefix."""
    return _bits(peer)


@lru_cache(maxsize=64)
def turn(round_: int) -> str:
    """Return the bits of a round: they pair the buckets."""
    return _bits(f"turn {round_}")


@lru_cache(maxsize=1024)
def across(bits: str, round_: int) -> str:
    """Return the bucket that the members of this one meet in this round. It may be the same."""
    return "".join("01"[own != drawn] for own, drawn in zip(bits, turn(round_), strict=False))


def places_of(peer: PeerId) -> list[str]:
    """Return all buckets that a peer can be in: a node of the directory admits its record there."""
    bits = address(peer)
    return [bits[:depth] for depth in range(MAX_DEPTH + 1)]


class DirectoryBuckets:
    """One peer's place in the buckets. The caller reads `reads` and then `more`, passes the result to `saw`, and
    announces under `places`."""

    def __init__(self, me: PeerId, split: int = SPLIT) -> None:
        assert split >= 2, split
        self._me, self._address, self._split = me, address(me), split
        self._few = max(1, split // 8)
        """A bucket of fewer may hold strays only."""
        self._thin, self._searching = False, True
        self._looks = 0
        self._left: dict[str, float] = {}
        """Buckets that this peer has left: until when somebody may look for it there."""
        self._everybody = False
        self.depth = 0
        self.own = ""
        """Our bucket: `depth` bits of our address."""

    def read_everybody(self) -> None:
        """Use one bucket that never splits, as groups need it: they are small and each member sees all others."""
        self._everybody = True

    def places(self, now: float) -> list[str]:
        """Return where to announce: the own bucket, the one above, and for one lifetime of a record those just left."""
        self._left = {bits: until for bits, until in self._left.items() if until > now}
        return list(dict.fromkeys([self.own, self.own[:-1], *self._left]))

    def reads(self, round_: int) -> list[str]:
        """Return the buckets to read: two, sometimes four. A peer that has found nobody yet reads along its full
        address."""
        self._looks += 1
        if self._everybody:
            return [""]
        if self._searching:
            return places_of(self._me)
        other = across(self.own, round_)
        wanted = [self.own] if other == self.own else [self.own, other]
        if self.depth and self._thin and self._looks % FIT_EVERY == 0:
            wanted = list(dict.fromkeys([*wanted, _beside(self.own), self.own[:-1]]))
        return wanted

    def more(self, round_: int, found: Found) -> list[str]:
        """Return the buckets to read after those: the ones across may be one less deep than ours."""
        other = across(self.own, round_)
        if self._searching or not other or self._others(found.get(other, ())) >= self._few:
            return []
        return [] if other[:-1] in found else [other[:-1]]

    def saw(self, found: Found, now: float) -> bool:
        """Learn from a complete look, and move to the bucket where this peer belongs. Return whether it moved: it has
        to announce then. `now`: as in `places`."""
        if self._everybody:
            depth = 0
        elif self._searching:
            depth = self._found_at(found)
        else:
            depth = self._fitting(found)
        moved, former = depth != self.depth, self.own
        if moved:
            self._left[former] = now + MAX_RECORD_TTL_S
            self.depth, self.own = depth, self._address[:depth]
        others = self._others(found.get(former, ()))
        self._thin = others < self._split // 2
        self._searching = not others and not (moved and self._searching)
        return moved

    def _others(self, peers: Collection[PeerId]) -> int:
        return len(peers) - (self._me in peers)

    def _found_at(self, found: Found) -> int:
        """Return the depth of the deepest bucket on our way that holds more than a few strays."""
        levels = [len(bits) for bits, peers in found.items() if self._others(peers) >= self._few]
        return max(levels, default=0)

    def _fitting(self, found: Found) -> int:
        own = found[self.own]
        if self._others(own) + 1 > self._split and self.depth < MAX_DEPTH:
            return self.depth + 1
        if not self.depth or len(found) < 3:  # whether to go back was not looked for
            return self.depth
        beside, above = found.get(_beside(self.own)), found.get(self.own[:-1])
        if beside is None or above is None or 2 * len(above) > self._split:
            return self.depth
        if 2 * len({self._me, *own, *beside, *above}) <= self._split:
            return self.depth - 1
        return self.depth


def _beside(bits: str) -> str:
    """Return the other half of the bucket above."""
    return bits[:-1] + "10"[int(bits[-1])]


def _bits(text: str) -> str:
    number = int.from_bytes(hashlib.sha256(text.encode()).digest()[:8], "big")
    return f"{number:064b}"[:MAX_DEPTH]
