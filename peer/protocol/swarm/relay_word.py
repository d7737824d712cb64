"""A relay's word on the address that a closed peer calls from.

Nobody can call a closed peer, so nobody can check the address that its record claims. Its relays see it: the
reservation is a connection that the peer opened. So a relay signs the address block that it sees, and the peer shows
that in its record. The word of a node of the operator is believed. Any other relay may be the friend of a thousand
fresh keys, so all that it speaks for share a few places: more if it has earned trust. The module is pure."""

from __future__ import annotations

import math
from collections.abc import Callable, Container, Mapping

from peer.protocol.endpoints import block_of
from peer.protocol.messages import PeerId, PeerRecord, Reach, RelayAddress, RelayAttestation, RunId
from peer.protocol.wire.fields import fixed, pack_fields

PURPOSE = b"peer relay word v1\0"
WORD_LASTS_S = 3600
"""Seconds for which a word counts. A relay gives a new one when half of it is over."""
SPOKEN_FOR = "spoken for by "
"""Start of the name under which those share places that one trusted relay speaks for."""

Verify = Callable[[PeerId, bytes, bytes], bool]
"""Tells whether a peer made a signature of these bytes."""


def attestation_bytes(run_id: RunId, peer: PeerId, block: str, until: int) -> bytes:
    """Return the bytes that a relay signs: in this run, until then (seconds since the epoch), this peer calls from this
    block."""
    return PURPOSE + pack_fields(run_id, peer.encode(), block.encode(), fixed(until, 8))


def sign_attestation(
    run_id: RunId, peer: PeerId, block: str, now: float, sign: Callable[[bytes], bytes]
) -> RelayAttestation:
    """Make the word that a relay gives with a reservation, and again when half of the last one is over."""
    until = math.ceil(now) + WORD_LASTS_S
    return RelayAttestation(block, until, sign(attestation_bytes(run_id, peer, block, until)))


def is_stale(word: RelayAttestation | None, now: float) -> bool:
    """Whether a new word should be asked for."""
    return word is None or word.until - now < WORD_LASTS_S / 2


def vouched_block(
    record: PeerRecord,
    now: float,
    nodes: Container[PeerId],
    trusted: Container[PeerId],
    relays: Mapping[PeerId, PeerRecord],
    verify: Verify,
) -> str:
    """Return the block that a closed peer counts for, empty: nobody speaks for it. `nodes`: of the operator. `trusted`:
    other peers that earned trust. `relays`: the live records."""
    for relay in record.relays:
        if relay.word is not None and relay.peer_id in nodes and _holds(record, relay, now, verify):
            return relay.word.block
    for relay in record.relays:
        if relay.peer_id in trusted and _holds(record, relay, now, verify):
            return SPOKEN_FOR + relay.peer_id
    for relay in record.relays:
        known = relays.get(relay.peer_id)
        if known is not None and known.reach is Reach.DIRECT and _holds(record, relay, now, verify):
            return block_of(known.endpoints[0])
    return ""


def _holds(record: PeerRecord, relay: RelayAddress, now: float, verify: Verify) -> bool:
    word = relay.word
    if word is None or not now < word.until <= now + 2 * WORD_LASTS_S:
        return False
    return verify(
        relay.peer_id, attestation_bytes(record.run_id, record.peer_id, word.block, word.until), word.signature
    )
