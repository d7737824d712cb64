"""Quotas for strangers of one address block, where many strangers are in sight.

Keys are free, addresses are not. So when more than `PLACES` strangers are candidates, at most `QUOTA` of one block are
looked at in a round. Lots decide which, the same on every peer: a block with a thousand keys then has `QUOTA` meetings
a round in the whole swarm. The rule is for strangers alone. Proven and invited peers are exempt, as are those of our
own block and of this machine. The module is pure."""

from __future__ import annotations

import hashlib
from collections import defaultdict
from collections.abc import Iterable, Mapping

from peer.protocol.endpoints import HERE, block_of
from peer.protocol.messages import PeerId, PeerRecord, RunId

PLACES = 16
"""Strangers among the candidates up to which there is no quota."""
QUOTA = 4
"""Strangers of one block among the candidates of a round."""
CLOSED_QUOTA = 16
"""Strangers among the candidates that only call. Nobody can check their addresses, so they count as one block."""
CLOSED = "closed"


def over_quota(
    run_id: RunId, round_: int, strangers: Iterable[PeerId], records: Mapping[PeerId, PeerRecord], own: Iterable[str]
) -> set[PeerId]:
    """Return the strangers that are no candidates in this round. `own`: our endpoints."""
    found = list(strangers)
    if len(found) <= PLACES:
        return set()
    ours = {HERE, *map(block_of, own)}
    blocks: dict[str, list[PeerId]] = defaultdict(list)
    for peer in found:
        blocks[_block_of(records.get(peer))].append(peer)
    return {
        peer
        for block, members in blocks.items()
        if block not in ours
        for peer in sorted(members, key=lambda peer: _lot(run_id, round_, peer))[_quota(block) :]
    }


def _block_of(record: PeerRecord | None) -> str:
    if record is None or not record.reachable or not record.endpoints:
        return CLOSED
    return block_of(record.endpoints[0])


def _quota(block: str) -> int:
    return CLOSED_QUOTA if block == CLOSED else QUOTA


def _lot(run_id: RunId, round_: int, peer: PeerId) -> bytes:
    return hashlib.blake2b(f"place {round_} {peer}".encode(), digest_size=8, key=run_id[:32]).digest()
