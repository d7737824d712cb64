"""Buckets for the records of a large run, so that reading the directory costs the same in a swarm of any size.

A bucket is named by the leading bits that the hashed ids of its members share. Its depth is the number of these bits.
There is no list of buckets: each peer determines its own depth from the records that it reads. A bucket with more than
`split` live records splits: its members each move one level deeper on their own, because all of them see the same
records. Two halves with at most half of `split` together merge. A peer announces itself in its own bucket and in the
one above, so that the members of one bucket see each other while some have moved and others have not.

In each round a peer reads its own bucket and one other, whose name is its own xor a number drawn for the round (a
prefix of the same bits at every depth). So the peers of two buckets all see each other, and over time every peer meets
every other."""

from __future__ import annotations

import hashlib
from collections.abc import Collection, Mapping
from functools import lru_cache

from peer.protocol.messages import MAX_RECORD_TTL_S, PeerId

MAX_DEPTH = 10
"""Maximum depth. With 64 records in a bucket, this suffices for 65,000 peers. Beyond that buckets grow."""
SPLIT = 64
"""Live records above which a bucket splits."""
FIT_EVERY = 4
"""Number of reads after which a small bucket checks whether it could merge, which takes two more reads."""

Found = Mapping[str, Collection[PeerId]]
"""The live peers in each bucket that was read."""


@lru_cache(maxsize=8192)
def address(peer: PeerId) -> str:
    """Return the `MAX_DEPTH` bits of a peer as characters 0 and 1. The name of its bucket is a prefix of these."""
    return _bits(peer)


@lru_cache(maxsize=64)
def turn(round_: int) -> str:
    """Return the bits of a round, which pair the buckets."""
    return _bits(f"turn {round_}")


@lru_cache(maxsize=1024)
def across(bits: str, round_: int) -> str:
    """Return the bucket whose members this bucket meets in this round. It may be the same."""
    return "".join("01"[own != drawn] for own, drawn in zip(bits, turn(round_), strict=False))


def places_of(peer: PeerId) -> list[str]:
    """Return all buckets that a peer can be in. A node of the directory accepts its record in these only."""
    bits = address(peer)
    return [bits[:depth] for depth in range(MAX_DEPTH + 1)]


class DirectoryBuckets:
    """The place of one peer in the buckets. The caller reads the buckets of `reads`, then those of `more`, passes the
    result to `saw`, and announces in `places`."""

    def __init__(self, me: PeerId, split: int = SPLIT) -> None:
        assert split >= 2, split
        self._me, self._address, self._split = me, address(me), split
        self._few = max(1, split // 8)
        """A bucket with fewer other peers may contain only peers that are in the wrong bucket."""
        self._thin, self._searching = False, True
        self._looks = 0
        self._left: dict[str, float] = {}
        """Buckets that this peer has left, and until when others may still look for it there."""
        self._announced: str | None = None
        """Our bucket at the last announcement. None: not announced yet."""
        self._everybody = False
        self.depth = 0
        self.own = ""
        """Our bucket: the first `depth` bits of our address."""

    def read_everybody(self) -> None:
        """Use a single bucket that never splits. Groups need that: they are small, and each member has to see all
        others."""
        self._everybody = True

    def places(self, now: float) -> list[str]:
        """Return the buckets to announce in: our own, the one above, and for one lifetime of a record those that we
        have left."""
        self._announced = self.own
        self._left = {bits: until for bits, until in self._left.items() if until > now}
        return list(dict.fromkeys([self.own, self.own[:-1], *self._left]))

    def reads(self, round_: int) -> list[str]:
        """Return the buckets to read: two, sometimes four. A peer that has found no other yet reads all prefixes of its
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
        """Return the buckets to read after those of `reads`, because the other bucket of the round may be one level
        higher than ours."""
        other = across(self.own, round_)
        if self._searching or not other or self._others(found.get(other, ())) >= self._few:
            return []
        return [] if other[:-1] in found else [other[:-1]]

    def saw(self, found: Found, now: float) -> bool:
        """Process a complete read and move to the bucket where this peer belongs. Return whether it moved, and has to
        announce itself again. `now`: as in `places`."""
        if self._everybody:
            depth = 0
        elif self._searching:
            depth = self._found_at(found)
        else:
            depth = self._fitting(found)
        moved, former = depth != self.depth, self.own
        if moved:
            if former == self._announced:
                self._left[former] = now + MAX_RECORD_TTL_S
            self.depth, self.own = depth, self._address[:depth]
        others = self._others(found.get(former, ()))
        self._thin = others < self._split // 2
        self._searching = not others and not (moved and self._searching)
        return moved

    def _others(self, peers: Collection[PeerId]) -> int:
        return len(peers) - (self._me in peers)

    def _found_at(self, found: Found) -> int:
        """Return the depth of the deepest bucket on our address with at least `_few` other peers, or one deeper if that
        bucket is too full."""
        levels = [len(bits) for bits, peers in found.items() if self._others(peers) >= self._few]
        depth = max(levels, default=0)
        return depth + self._splits(depth, found.get(self._address[:depth], ()))

    def _splits(self, depth: int, members: Collection[PeerId]) -> bool:
        """Return whether a bucket at this depth is too full with us as a member."""
        return self._others(members) + 1 > self._split and depth < MAX_DEPTH

    def _fitting(self, found: Found) -> int:
        """Return the depth at which this peer belongs: one deeper, one higher, or the same."""
        own = found[self.own]
        if self._splits(self.depth, own):
            return self.depth + 1
        if not self.depth or len(found) < 3:  # this read did not include the buckets needed to decide on a merge
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
