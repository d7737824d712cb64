"""The newest summary of each peer at a node of the run: bounded in peers, in what one address block may hold, and in
how often each may be heard."""

from __future__ import annotations

from collections import Counter, OrderedDict
from collections.abc import Iterator
from dataclasses import dataclass

from peer.protocol.block_places import BlockPlaces
from peer.protocol.messages import PeerId, Status
from peer.protocol.summary.values import PeerSummary
from peer.protocol.token_bucket import Rate, TokenBuckets

MAX_PEERS, RESERVE = 1024, 256
"""Peers whose summaries are held, and those places among them that are for peers with receipts alone."""
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
MAX_GONE = 4096
"""Peers that are no longer shown, and whose tokens still count."""
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

    def is_silent(self, now: float, *, listed: bool) -> bool:
        """Return whether it counts no more in what the run does now. `listed`: the directory may have its record."""
        unheard_s = now - self.heard_at
        return unheard_s > (SILENT_S if listed else UNLISTED_S) or self.summary.status is Status.LEAVING


class SummaryBook:
    """Takes summaries that are well signed, and forgets them in time."""

    def __init__(self, places: int = MAX_PEERS, reserve: int = RESERVE) -> None:
        self.dropped = Counter(dict.fromkeys(DROPS, 0))
        self._places: BlockPlaces[PeerId] = BlockPlaces(places, reserve)
        self._held: dict[PeerId, HeldSummary] = {}
        self._gone: OrderedDict[PeerId, int] = OrderedDict()
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

    def take(self, summary: PeerSummary, block: str, now: float, *, known: bool) -> str:
        """Hold a summary. Return why it is dropped, counted; empty: it is held. `known`: partners signed for its peer.

        Where all places are taken, the block that holds most loses one, but never that of a known peer."""
        before = self._held.get(summary.peer_id)
        newest = -1.0 if before is None else before.summary.issued_at
        if not max(newest, now - MAX_OLD_S) < summary.issued_at <= now + MAX_AHEAD_S:
            return self.drop(STALE)
        placing = self._places.enter(summary.peer_id, block, proven=known)
        if not placing.admitted:
            return self.drop(RATE)
        if placing.evicted is not None:
            self._held.pop(placing.evicted, None)
        self._held[summary.peer_id] = HeldSummary(summary, block, now)
        self._gone.pop(summary.peer_id, None)
        return ""

    def forget(self, now: float) -> None:
        """Let go of peers that were silent for long. Their tokens still count."""
        for peer, held in list(self._held.items()):
            if now - held.heard_at > FORGOTTEN_S:
                del self._held[peer]
                self._places.leave(peer)
                self.remember(peer, held.summary.tokens)

    def remember(self, peer: PeerId, tokens: int) -> None:
        """Count the tokens of a peer that is gone."""
        self._gone[peer] = tokens
        while len(self._gone) > MAX_GONE:
            self._gone.popitem(last=False)

    def tokens_of_gone(self) -> dict[PeerId, int]:
        """Return the tokens of peers that are gone."""
        return dict(self._gone)
