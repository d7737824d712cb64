"""The newest summary of each peer at a node of the run: bounded in peers, in what one address block may hold, and in
how often each may be heard."""

from __future__ import annotations

from collections import Counter
from collections.abc import Iterable, Iterator
from dataclasses import dataclass

from peer.protocol.block_places import BlockPlaces
from peer.protocol.messages import PeerId, Status
from peer.protocol.summary.values import PeerSummary
from peer.protocol.token_bucket import Rate, TokenBuckets

MAX_PEERS, RESERVE = 1024, 256
"""Peers whose summaries are held, and those places among them that are for known peers alone."""
SIGNING_BLOCKS = 2
"""Address blocks from which partners signed for a known peer. Keys of one block can sign anything for each other."""
KNOWN_SHARE, KNOWN_OF_BLOCK = 0.75, 0.25
"""Parts of all places that known peers can keep, and known peers of one block. The rest is for newcomers, whoever
rents some blocks."""
PER_PEER = Rate(1 / 50, 6.0)
"""Summaries of one key: more than one a minute, and some at once for changes of its state."""
PER_BLOCK = Rate(4.0, 256.0)
"""Summaries of one address block: of a university, or a swarm in a laboratory."""
SILENT_S = 300.0
"""A peer that says nothing for so long counts no more in what the run does now."""
UNLISTED_S = 15.0
"""The same where the directory has no record of the peer either: it has left, or was killed."""
FORGOTTEN_S = 3600.0
"""A peer that says nothing for so long is shown no more."""
MAX_AHEAD_S, MAX_OLD_S = 60.0, 600.0
"""Seconds that a summary may have been issued after and before now."""

FORGED, STALE, RATE = "forged", "stale", "rate"
DROPS = (FORGED, STALE, RATE)
"""Why a summary is dropped: it is not what its sender's key signed, it is old, or there are too many."""


@dataclass(frozen=True, slots=True)
class HeldSummary:
    """The newest summary of one peer."""

    summary: PeerSummary
    block: str
    """Address block that it came from."""
    heard_at: float
    """Run time."""
    signing_blocks: frozenset[str] = frozenset()
    """Address blocks of partners that signed for it, at most `SIGNING_BLOCKS`."""

    def is_silent(self, now: float, *, listed: bool) -> bool:
        """Return whether it counts no more in what the run does now. `listed`: the directory may have its record."""
        unheard_s = now - self.heard_at
        return unheard_s > (SILENT_S if listed else UNLISTED_S) or self.summary.status is Status.LEAVING


class SummaryBook:
    """Takes summaries that are well signed, and forgets them in time."""

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
        """Count one that is not taken; the same reason."""
        self.dropped[why] += 1
        return why

    def why_not_heard(self, caller: PeerId, block: str, now: float) -> str:
        """Ask before a signature is checked. Return why this caller is not heard now, counted; empty: it is."""
        if self._of_peers.take(caller, now) > 0 or self._of_blocks.take(block, now) > 0:
            return self.drop(RATE)
        return ""

    def take(self, summary: PeerSummary, block: str, now: float, signers: Iterable[PeerId] = ()) -> str:
        """Hold a summary. Return why it is dropped, counted; empty: it is held. `signers`: partners that signed for
        its peer; those count whose own summary is held, since their address is known.

        Where all places are taken, the block that holds most loses one, but never that of a known peer."""
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
        """Return whether there is room for one more known peer, of this block."""
        known = [one.block for other, one in self._held.items() if other != peer and self._places.is_proven(other)]
        return len(known) < KNOWN_SHARE * self._most and known.count(block) < KNOWN_OF_BLOCK * self._most

    def forget(self, now: float) -> None:
        """Let go of peers that were silent for long."""
        for peer, held in list(self._held.items()):
            if now - held.heard_at > FORGOTTEN_S:
                del self._held[peer]
                self._places.leave(peer)

    def known(self) -> set[PeerId]:
        """Return the peers that partners of `SIGNING_BLOCKS` address blocks signed receipts for."""
        return {peer for peer in self._held if self._places.is_proven(peer)}

    def in_turn(self) -> list[HeldSummary]:
        """Return all of them: a first one of each block, then a second one, and so on, so that the first hundred show
        many blocks. Within a block known peers come first, then it goes by peer id."""
        of_block: dict[str, list[HeldSummary]] = {}
        for one in sorted(self, key=lambda one: (not self._places.is_proven(one.summary.peer_id), one.summary.peer_id)):
            of_block.setdefault(one.block, []).append(one)
        ranked = [(rank, one) for ones in of_block.values() for rank, one in enumerate(ones)]
        return [one for _, one in sorted(ranked, key=lambda pair: (pair[0], pair[1].summary.peer_id))]
