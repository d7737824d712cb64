"""The latest summary of each peer on a node of the operator. Peers, the share of one address block, and the rate of
each sender are limited."""

from __future__ import annotations

from collections import Counter
from collections.abc import Iterable, Iterator
from dataclasses import dataclass

from peer.protocol.block_places import BlockPlaces
from peer.protocol.messages import PeerId, Status
from peer.protocol.summary.values import PeerSummary
from peer.protocol.token_bucket import Rate, TokenBuckets

MAX_PEERS, RESERVE = 1024, 256
"""Maximum peers whose summaries are stored, and how many of these places are reserved for known peers."""
SIGNING_BLOCKS = 2
"""A peer is known if partners from this many address blocks signed receipts for it. Keys of one block can sign anything
for each other."""
KNOWN_SHARE, KNOWN_OF_BLOCK = 0.75, 0.25
"""Maximum fractions of all places for known peers, and for known peers of one block. The rest is for newcomers, so that
nobody can take all places by renting addresses in some blocks."""
PER_PEER = Rate(1 / 50, 6.0)
"""Summaries of one key: slightly more than one a minute, and some at once for changes of its state."""
PER_BLOCK = Rate(4.0, 256.0)
"""Summaries of one address block, such as a university or a laboratory with a swarm."""
SILENT_S = 300.0
"""Seconds without a summary after which a peer is not counted in the present state of the run."""
UNLISTED_S = 15.0
"""As `SILENT_S`, for a peer without a record in the directory: it has left, or was killed."""
FORGOTTEN_S = 3600.0
"""Seconds without a summary after which a peer is removed."""
MAX_AHEAD_S, MAX_OLD_S = 60.0, 600.0
"""Maximum seconds by which the time of issue of a summary may be in the future, and in the past."""

FORGED, STALE, RATE = "forged", "stale", "rate"
DROPS = (FORGED, STALE, RATE)
"""Reasons to drop a summary: not signed by the sender's key, too old, or too many."""


@dataclass(frozen=True, slots=True)
class HeldSummary:
    """The latest summary of one peer."""

    summary: PeerSummary
    block: str
    """Address block from which it was sent."""
    heard_at: float
    """Run time at which it arrived."""
    signing_blocks: frozenset[str] = frozenset()
    """Address blocks of partners that signed receipts for the peer, at most `SIGNING_BLOCKS`."""

    def is_silent(self, now: float, *, listed: bool) -> bool:
        """Return whether the peer is not counted in the present state of the run. `listed`: the directory may have its
        record."""
        unheard_s = now - self.heard_at
        return unheard_s > (SILENT_S if listed else UNLISTED_S) or self.summary.status is Status.LEAVING


class SummaryBook:
    """Stores verified summaries, and removes them after a time."""

    def __init__(self, places: int = MAX_PEERS, reserve: int = RESERVE) -> None:
        self.dropped = Counter(dict.fromkeys(DROPS, 0))
        self._most = places
        self._places: BlockPlaces[PeerId] = BlockPlaces(places, reserve)
        self._held: dict[PeerId, HeldSummary] = {}
        self._of_peers: TokenBuckets[PeerId] = TokenBuckets(PER_PEER)
        self._of_blocks: TokenBuckets[str] = TokenBuckets(PER_BLOCK)

    def __iter__(self) -> Iterator[HeldSummary]:
        return iter(self._held.values())

    def __len__(self) -> int:
        return len(self._held)

    def drop(self, why: str) -> str:
        """Count a dropped summary, and return the reason."""
        self.dropped[why] += 1
        return why

    def refusal_reason(self, caller: PeerId, block: str, now: float) -> str:
        """Return why a summary of this caller is dropped before its signature is verified, and count it; empty: verify
        it."""
        if self._of_peers.take(caller, now) > 0 or self._of_blocks.take(block, now) > 0:
            return self.drop(RATE)
        return ""

    def take(self, summary: PeerSummary, block: str, now: float, signers: Iterable[PeerId] = ()) -> str:
        """Store a verified summary. Return why it is dropped, and count it; empty: it is stored. `signers`: partners
        that signed receipts for its peer. Only partners whose own summary is stored count, because their address blocks
        are known.

        If all places are taken, the block with most places loses one, but never that of a known peer."""
        before = self._held.get(summary.peer_id)
        newest = -1.0 if before is None else before.summary.issued_at
        if not max(newest, now - MAX_OLD_S) < summary.issued_at <= now + MAX_AHEAD_S:
            return self.drop(STALE)
        blocks = set() if before is None else set(before.signing_blocks)
        blocks |= {self._held[signer].block for signer in signers if signer in self._held}
        known = len(blocks) >= SIGNING_BLOCKS and self._may_keep(summary.peer_id, block)
        placing = self._places.enter(summary.peer_id, block, proven=known)
        if not placing.admitted:
            return self.drop(RATE)
        if placing.evicted is not None:
            self._held.pop(placing.evicted, None)
        signing = frozenset(sorted(blocks)[:SIGNING_BLOCKS])
        self._held[summary.peer_id] = HeldSummary(summary, block, now, signing)
        return ""

    def _may_keep(self, peer: PeerId, block: str) -> bool:
        """Return whether there is room for one more known peer of this block."""
        known = [one.block for other, one in self._held.items() if other != peer and self._places.is_proven(other)]
        return len(known) < KNOWN_SHARE * self._most and known.count(block) < KNOWN_OF_BLOCK * self._most

    def forget(self, now: float) -> None:
        """Remove the peers that were silent for `FORGOTTEN_S`."""
        for peer, held in list(self._held.items()):
            if now - held.heard_at > FORGOTTEN_S:
                del self._held[peer]
                self._places.leave(peer)

    def known(self) -> set[PeerId]:
        """Return the peers for which partners of `SIGNING_BLOCKS` address blocks signed receipts."""
        return {peer for peer in self._held if self._places.is_proven(peer)}

    def in_turn(self) -> list[HeldSummary]:
        """Return all summaries: first one of each block, then a second one of each, and so on, so that the first
        hundred show many blocks. Within a block known peers come first, then they are sorted by peer id."""
        of_block: dict[str, list[HeldSummary]] = {}
        for one in sorted(self, key=lambda one: (not self._places.is_proven(one.summary.peer_id), one.summary.peer_id)):
            of_block.setdefault(one.block, []).append(one)
        ranked = [(rank, one) for ones in of_block.values() for rank, one in enumerate(ones)]
        return [one for _, one in sorted(ranked, key=lambda pair: (pair[0], pair[1].summary.peer_id))]
