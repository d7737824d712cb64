"""How the records of a large run are spread over buckets, so that a look costs the same in a swarm of any size.

A bucket is named by the leading bits that the hashed ids of its members share; its depth is their number. There is no
list of buckets: each peer finds its own depth from what it reads. A bucket with more than `split` live records splits:
its members go one deeper, each by itself, for all of them see the same records. Two halves with at most half of `split`
between them go back. A peer announces under its own bucket and under the one above, so that the members of one bucket
see all of each other while some have moved and others have not.

In a round a peer reads its own bucket and the one across: own xor a number drawn for the round, a prefix of the same
bits at every depth. So the peers of two buckets see each other whole, and in time everybody meets everybody."""

from __future__ import annotations

import hashlib
from collections.abc import Collection, Mapping
from functools import lru_cache

from peer.protocol.messages import MAX_RECORD_TTL_S, PeerId

MAX_DEPTH = 10
"""With 64 in a bucket: 65,000 peers. Beyond that buckets grow."""
SPLIT = 64
FIT_EVERY = 4
"""A bucket of few looks only so often whether it could go back: that takes two reads more."""

Found = Mapping[str, Collection[PeerId]]
"""Of each bucket read, who is live in it; each once."""


@lru_cache(maxsize=8192)
def address(peer: PeerId) -> str:
    """The bits by which a peer is placed, `MAX_DEPTH` characters 0 and 1; those of its bucket are a prefix."""
    return _bits(peer)


@lru_cache(maxsize=64)
def turn(round_: int) -> str:
    """The bits of a round: which bucket is across from which."""
    return _bits(f"turn {round_}")


@lru_cache(maxsize=1024)
def across(bits: str, round_: int) -> str:
    """The bucket that the members of this one meet in this round; it may be the same."""
    return "".join("01"[own != drawn] for own, drawn in zip(bits, turn(round_), strict=False))


def places_of(peer: PeerId) -> list[str]:
    """All buckets that a peer can be in: what a node of the directory takes of it."""
    bits = address(peer)
    return [bits[:depth] for depth in range(MAX_DEPTH + 1)]


class DirectoryBuckets:
    """One peer's place. Ask `reads` and then `more` what to look into, tell `saw` what was there, and announce under
    `places`."""

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
        """Where to announce: the own bucket, the one above, and for one lifetime of a record those just left."""
        self._left = {bits: until for bits, until in self._left.items() if until > now}
        return list(dict.fromkeys([self.own, self.own[:-1], *self._left]))

    def reads(self, round_: int) -> list[str]:
        """Which buckets to look into: two; sometimes four; and who has found nobody yet, along its whole address."""
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
        """What to look into besides, having seen that: those across may be one less deep than we."""
        other = across(self.own, round_)
        if self._searching or not other or self._others(found.get(other, ())) >= self._few:
            return []
        return [] if other[:-1] in found else [other[:-1]]

    def saw(self, found: Found, now: float) -> bool:
        """Learn from a whole look, and go where we belong. Whether we moved: announce then. `now`: of `places`."""
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
        """The deepest bucket on our way that is more than a few strays."""
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
    """The other half of the bucket above."""
    return bits[:-1] + "10"[int(bits[-1])]


def _bits(text: str) -> str:
    number = int.from_bytes(hashlib.sha256(text.encode()).digest()[:8], "big")
    return f"{number:064b}"[:MAX_DEPTH]
