"""Quotas for strangers of one address block, where many strangers are in sight.

Keys are free, addresses are not. So when more than `PLACES` strangers are candidates, at most `QUOTA` of one block are
looked at in a round. Lots decide which, the same on every peer: a block with a thousand keys then has `QUOTA` meetings
a round in the whole swarm. The rule is for strangers alone. Proven and invited peers are exempt, as are those of our
own block and of this machine.

A stranger that nobody can call has no address that others can check. It counts for the block that a relay says it
calls from, if that relay is to be believed (`peer.protocol.swarm.relay_word`). All others of that kind count as one
block. The module is pure."""

from __future__ import annotations

import hashlib
from collections import defaultdict
from collections.abc import Callable, Iterable, Mapping

from peer.protocol.endpoints import HERE, block_of
from peer.protocol.messages import PeerId, PeerRecord, RunId
from peer.protocol.swarm.relay_word import SPOKEN_FOR

PLACES = 16
"""Strangers among the candidates up to which there is no quota."""
QUOTA = 4
"""Strangers of one block among the candidates of a round."""
CLOSED_QUOTA = 16
"""Strangers among the candidates that nobody speaks for and nobody can call, and those that one trusted relay speaks
for."""
CLOSED = "closed"

Vouched = Callable[[PeerRecord], str]
"""Tells the block that a closed peer counts for; empty: no relay speaks for it."""


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
        if block not in ours
        for peer in sorted(members, key=lambda peer: _lot(run_id, round_, peer))[_quota(block) :]
    }


def _block_of(record: PeerRecord | None, vouched: Vouched) -> str:
    if record is None:
        return CLOSED
    if not record.reachable or not record.endpoints:
        return vouched(record) or CLOSED
    return block_of(record.endpoints[0])


def _quota(block: str) -> int:
    return CLOSED_QUOTA if block == CLOSED or block.startswith(SPOKEN_FOR) else QUOTA


def _lot(run_id: RunId, round_: int, peer: PeerId) -> bytes:
    return hashlib.blake2b(f"place {round_} {peer}".encode(), digest_size=8, key=run_id[:32]).digest()
