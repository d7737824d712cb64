"""The gate of a DHT node: what it is willing to store for others, and to believe of their answers.

The network is strict. There is one kind of entry: under a key of the run and its peer (`keys.py`), subkey the raw
32-byte public key of the peer, value the record which that key signed. The DHT itself stores nothing else. An entry
lives in the DHT until `dht_expiry` of its record, to the bit: the DHT keeps the entry that expires last, so among the
records of a peer the one issued last wins, and nobody can replay an old record under a longer life, because the time is
part of what is signed. The run may be any: runs may share a DHT, and a node that refused another run's records would
lose them.
"""

from __future__ import annotations

import math
from collections import Counter
from collections.abc import Callable
from functools import lru_cache

from peer.discovery.keys import slots_of
from peer.identity import public_key_of
from peer.protocol.messages import MAX_RECORD_BYTES, MAX_RECORD_TTL_S, PeerRecord
from peer.signed_record import InvalidRecord, check_issued, unseal

MAX_ENTRIES = 4096
"""A node holds at once, at most two of one honest peer: 8 MiB at the very most."""
_key_of = lru_cache(maxsize=4096)(public_key_of)  # it comes back with every look, from every node that stores it
_BIN8, _BIN16 = b"\xc4", b"\xc5"  # how MessagePack marks bytes of up to 255 and up to 65535


def dht_expiry(record: PeerRecord) -> float:
    """When the DHT forgets the entry of a record, seconds since the epoch. A reader goes by `expires_at`, which is
    never later."""
    return record.issued_at + MAX_RECORD_TTL_S


class RecordGate:
    """Admits or refuses one entry at a time. Remembers when each peer's latest admitted record was issued and refuses
    earlier ones, so that a replayed record cannot push out its successor."""

    def __init__(self, now: Callable[[], float]) -> None:
        self._now = now
        self._issued: dict[tuple[bytes, bytes], float] = {}
        self.refused: Counter[str] = Counter()
        """Refused entries, by the code of BadRecord."""

    def admit(self, key_slot: bytes, subkey: bytes, value: bytes, expiry: float) -> bool:
        """Whether to store or believe this entry. `subkey` and `value` are MessagePack, as hivemind hands them over;
        any of them may be anything."""
        try:
            self._check(key_slot, subkey, value, expiry)
        except InvalidRecord as bad:
            self.refused[bad.code] += 1
            return False
        return True

    def _check(self, key_slot: bytes, subkey: bytes, value: bytes, expiry: float) -> None:
        record = unseal(_unpack(value))
        public_key = _key_of(record.peer_id)
        if _unpack(subkey) != public_key:
            raise InvalidRecord("layout", "the subkey is not the key that signed the record")
        if key_slot not in slots_of(record.run_id, record.peer_id):
            raise InvalidRecord("layout", "does not belong under this key")
        if not isinstance(expiry, float) or not math.isfinite(expiry) or expiry != dht_expiry(record):
            raise InvalidRecord("layout", "the DHT's expiry is not that of the record")
        check_issued(record, self._now())
        self._remember((key_slot, public_key), record.issued_at)

    def _remember(self, owner: tuple[bytes, bytes], issued_at: float) -> None:
        if owner not in self._issued and len(self._issued) >= MAX_ENTRIES:
            horizon = self._now() - MAX_RECORD_TTL_S
            self._issued = {known: at for known, at in self._issued.items() if at > horizon}
            if len(self._issued) >= MAX_ENTRIES:
                raise InvalidRecord("full", f"this node holds {MAX_ENTRIES} records already")
        if self._issued.get(owner, -math.inf) > issued_at:
            raise InvalidRecord("stale", "a later record of this peer is known")
        self._issued[owner] = issued_at


def _unpack(packed: bytes) -> bytes:
    """The one byte string a MessagePack value consists of. Written out, for a general parser would follow whatever
    nested structure a stranger sends. Raises BadRecord."""
    if not isinstance(packed, bytes) or len(packed) > MAX_RECORD_BYTES + 3:
        raise InvalidRecord("too_large", f"more than {MAX_RECORD_BYTES} bytes")
    head = {_BIN8: 2, _BIN16: 3}.get(packed[:1])
    if head is None or len(packed) != head + int.from_bytes(packed[1:head], "big"):
        raise InvalidRecord("layout", "not a plain byte string")
    return packed[head:]
