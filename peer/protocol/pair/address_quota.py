"""Limit on the strangers from one address block, used when many strangers are visible.

A key costs nothing, an address does. If more than `PLACES` strangers are candidates, at most `QUOTA` of each block
count in a round. A hash chooses them, the same on every peer, so that a block with a thousand keys gets `QUOTA`
meetings a round in the whole swarm. The limit does not apply to proven and invited peers, nor to those of our own block
and of this machine.

The address of a closed stranger cannot be verified. It counts for the block that a trusted relay attests
(`peer.protocol.swarm.relay_word`). All closed strangers without an attestation count as one block. The module is
pure."""

from __future__ import annotations

import hashlib
from collections import defaultdict
from collections.abc import Callable, Iterable, Mapping

from peer.protocol.endpoints import HERE, block_of
from peer.protocol.messages import PeerId, PeerRecord, RunId
from peer.protocol.swarm.relay_word import ATTESTED_BY

PLACES = 16
"""Up to this many strangers among the candidates there is no limit."""
QUOTA = 4
"""Maximum strangers of one block among the candidates of a round."""
CLOSED_QUOTA = 16
"""Maximum closed strangers without an attested block among the candidates, and maximum that one trusted relay
attests."""
CLOSED = "closed"
"""Common block of closed strangers without an attestation."""

Vouched = Callable[[PeerRecord], str]
"""Returns the block for which a closed peer counts; empty: no relay attests it."""


def over_quota(
    run_id: RunId,
    round_: int,
    strangers: Iterable[PeerId],
    records: Mapping[PeerId, PeerRecord],
    own: Iterable[str],
    vouched: Vouched = lambda record: "",
) -> set[PeerId]:
    """Return the strangers that are no candidates in this round. `own`: our endpoints."""
    found = list(strangers)
    if len(found) <= PLACES:
        return set()
    ours = {HERE, *map(block_of, own)}
    blocks: dict[str, list[PeerId]] = defaultdict(list)
    for peer in found:
        blocks[_block_of(records.get(peer), vouched)].append(peer)
    return {
        peer
        for block, members in blocks.items()
        if len(members) > _quota(block) and block not in ours
        for peer in sorted(members, key=lambda peer: _lot(run_id, round_, peer))[_quota(block) :]
    }


def _block_of(record: PeerRecord | None, vouched: Vouched) -> str:
    if record is None:
        return CLOSED
    if not record.reachable or not record.endpoints:
        return vouched(record) or CLOSED
    return block_of(record.endpoints[0])


def _quota(block: str) -> int:
    return CLOSED_QUOTA if block == CLOSED or block.startswith(ATTESTED_BY) else QUOTA


def _lot(run_id: RunId, round_: int, peer: PeerId) -> bytes:
    return hashlib.blake2b(f"place {round_} {peer}".encode(), digest_size=8, key=run_id[:32]).digest()
