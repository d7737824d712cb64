"""Under which key the records of a run lie in the DHT.

The layout is `peer/1/<run id in hex>/<bucket bits>`: 1 is the layout's version, the bits are the leading bits of
SHA-256(peer id) that all members of a bucket share. There is one bucket yet, with no bits. When a bucket holds more
than 32 live records it is to split by the next bit: its members announce under bits + "0" or bits + "1", and a reader
of bucket b looks into b and into `b xor k(round)`, so that a look costs the same in a swarm of any size. Both, because
then the peers of the two buckets see each other whole, and buckets of unequal size leave nobody over (256 simulated
peers: 99.6 % of their rounds were exchanges). Only this module, the gate
(`validator.py`), which admits the keys of known buckets, and the look itself (`dht.py`), which needs the round, have to
learn of it. Groups need everybody and read all buckets. `peer.testing.directory` does so already.
"""

from __future__ import annotations

import hashlib

from peer.protocol.messages import RunId


def bucket_key(run_id: RunId, bits: str = "") -> bytes:
    """The DHT key of one bucket of a run; `bits` are characters 0 and 1, highest bit first."""
    assert len(run_id) == 32, len(run_id)
    assert len(bits) <= 64, bits
    assert set(bits) <= {"0", "1"}, bits
    return f"peer/1/{run_id.hex()}/{bits}".encode()


def slot(key: bytes) -> bytes:
    """The 20 bytes by which the nodes of the DHT know a key: its SHA-1, as Kademlia has it."""
    return hashlib.sha1(key, usedforsecurity=False).digest()
