"""Keys under which the records of a run lie in the DHT.

A key is `peer/1/<run id in hex>/<bucket bits>`, where 1 is the version of the layout. The bits are the leading bits of
SHA-256(peer id) that all members of a bucket share, at most `peer.protocol.swarm.buckets.MAX_DEPTH`. That module
decides when a bucket splits, and which buckets a peer announces under and reads. The gate (`validator.py`) admits a
record only under the buckets that its peer can be in. A run of one bucket has no bits in its key."""

from __future__ import annotations

import hashlib
from functools import lru_cache

from peer.protocol.messages import PeerId, RunId
from peer.protocol.swarm.buckets import MAX_DEPTH, places_of


def bucket_key(run_id: RunId, bits: str = "") -> bytes:
    """Return the DHT key of one bucket of a run. `bits` are characters 0 and 1, highest bit first."""
    assert len(run_id) == 32, len(run_id)
    assert len(bits) <= MAX_DEPTH, bits
    assert set(bits) <= {"0", "1"}, bits
    return f"peer/1/{run_id.hex()}/{bits}".encode()


def slot(key: bytes) -> bytes:
    """Return the 20 bytes by which DHT nodes identify a key: its SHA-1, as in Kademlia."""
    return hashlib.sha1(key, usedforsecurity=False).digest()


@lru_cache(maxsize=4096)
def slots_of(run_id: RunId, peer: PeerId) -> frozenset[bytes]:
    """Return the DHT slots in which a record of this peer may lie."""
    return frozenset(slot(bucket_key(run_id, bits)) for bits in places_of(peer))
