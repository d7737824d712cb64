"""A relay's attestation of the address block from which a closed peer calls.

Nobody can call a closed peer, so nobody can verify the address in its record. Its relays see the address: the
reservation is a connection that the peer opened. So a relay signs the address block that it sees, and the peer puts the
attestation into its record. The attestation of an operator's node is believed. Any other relay may cooperate with a
thousand fresh keys. So all peers that one relay attests share a few of the slots that strangers have among a round's
candidates (`peer.protocol.pair.address_quota`), and more of them if the relay is proven. The module is pure."""

from __future__ import annotations

import math
from collections.abc import Callable, Container, Mapping

from peer.protocol.endpoints import block_of
from peer.protocol.messages import PeerId, PeerRecord, Reach, RelayAddress, RelayAttestation, RunId
from peer.protocol.wire.fields import fixed, pack_fields

PURPOSE = b"peer relay word v1\0"
ATTESTATION_LASTS_S = 3600
"""Seconds for which an attestation is valid. A relay signs a new one when half of that has passed."""
ATTESTED_BY = "spoken for by "
"""Prefix of the name of the common block of all peers that one trusted relay attests."""

Verify = Callable[[PeerId, bytes, bytes], bool]
"""verify(peer, raw, signature): return whether the signature is valid."""


def attestation_bytes(run_id: RunId, peer: PeerId, block: str, until: int) -> bytes:
    """Return the bytes that a relay signs: in this run, until `until` (seconds since the epoch), `peer` calls from
    `block`."""
    return PURPOSE + pack_fields(run_id, peer.encode(), block.encode(), fixed(until, 8))


def sign_attestation(
    run_id: RunId, peer: PeerId, block: str, now: float, sign: Callable[[bytes], bytes]
) -> RelayAttestation:
    """Return a new attestation. A relay gives one with a reservation, and again when half of its validity has
    passed."""
    until = math.ceil(now) + ATTESTATION_LASTS_S
    return RelayAttestation(block, until, sign(attestation_bytes(run_id, peer, block, until)))


def is_stale(word: RelayAttestation | None, now: float) -> bool:
    """Return whether a new attestation should be requested."""
    return word is None or word.until - now < ATTESTATION_LASTS_S / 2


def attested_block(
    record: PeerRecord,
    now: float,
    nodes: Container[PeerId],
    trusted: Container[PeerId],
    relays: Mapping[PeerId, PeerRecord],
    verify: Verify,
) -> str:
    """Return the block for which a closed peer counts; empty: no valid attestation. `nodes`: nodes of the operator.
    `trusted`: other proven peers. `relays`: the live records."""
    for relay in record.relays:
        if relay.attestation is not None and relay.peer_id in nodes and _holds(record, relay, now, verify):
            return relay.attestation.block
    for relay in record.relays:
        if relay.peer_id in trusted and _holds(record, relay, now, verify):
            return ATTESTED_BY + relay.peer_id
    for relay in record.relays:
        known = relays.get(relay.peer_id)
        if known is not None and known.reach is Reach.DIRECT and _holds(record, relay, now, verify):
            return block_of(known.endpoints[0])
    return ""


def _holds(record: PeerRecord, relay: RelayAddress, now: float, verify: Verify) -> bool:
    word = relay.attestation
    if word is None or not now < word.until <= now + 2 * ATTESTATION_LASTS_S:
        return False
    return verify(
        relay.peer_id, attestation_bytes(record.run_id, record.peer_id, word.block, word.until), word.signature
    )
