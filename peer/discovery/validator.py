"""Gate of a DHT node: decides which entries it stores for other nodes and accepts from their answers.

There is one kind of entry. Its key belongs to the run and the peer (`keys.py`), its subkey is the peer's raw 32-byte
public key, and its value is the record that this key signed. The DHT stores nothing else.

An entry lives in the DHT exactly until `dht_expiry` of its record. The DHT keeps the entry that expires last, so a
peer's latest record wins. An old record cannot be replayed with a longer life, because its time of issue is part of the
signed bytes.

Runs may share a DHT. The gate admits records of any run, since a node that refused those of other runs would make them
lose records."""

from __future__ import annotations

import math
from collections import Counter
from collections.abc import Callable, Iterable
from functools import lru_cache

from peer.codes import Code
from peer.discovery.keys import slots_of
from peer.identity import public_key_of
from peer.protocol.messages import MAX_RECORD_BYTES, MAX_RECORD_TTL_S, PeerId, PeerRecord, RunId
from peer.signed_record import InvalidRecord, check_issued, unseal

key_of = lru_cache(maxsize=4096)(public_key_of)  # the same key comes with every look, from every node that stores it
_BIN8, _BIN16 = b"\xc4", b"\xc5"  # how MessagePack marks bytes of up to 255 and up to 65535


def dht_expiry(record: PeerRecord) -> float:
    """Return when the DHT drops the entry of a record, seconds since the epoch. `expires_at` is never later."""
    return record.issued_at + MAX_RECORD_TTL_S


class RecordGate:
    """Admits or refuses single entries, independent of what the node holds (`entry_places.py` limits that)."""

    def __init__(
        self,
        now: Callable[[], float],
        own_run: RunId | None = None,
        first: Callable[[], Iterable[PeerId]] = tuple,
    ) -> None:
        """`own_run`: the run whose entries have precedence in the node's store; None: no run has. `first`: returns the
        peers whose entries are read first from a large answer."""
        self.now, self.own_run, self.first = now, own_run, first
        self.refused: Counter[Code] = Counter()
        """Number of refused entries, by the code of InvalidRecord."""

    def admit(self, key_slot: bytes, subkey: bytes, value: bytes, expiry: float) -> bool:
        """Return whether to store or accept this entry.

        `subkey` and `value` are MessagePack, as hivemind gives them. All arguments are untrusted."""
        try:
            self._check(key_slot, subkey, value, expiry)
        except InvalidRecord as bad:
            self.refused[bad.code] += 1
            return False
        return True

    def _check(self, key_slot: bytes, subkey: bytes, value: bytes, expiry: float) -> None:
        record = unseal(unpack(value))
        public_key = key_of(record.peer_id)
        if unpack(subkey) != public_key:
            raise InvalidRecord(Code.LAYOUT, "the subkey is not the key that signed the record")
        if key_slot not in slots_of(record.run_id, record.peer_id):
            raise InvalidRecord(Code.LAYOUT, "does not belong under this key")
        if not isinstance(expiry, float) or not math.isfinite(expiry) or expiry != dht_expiry(record):
            raise InvalidRecord(Code.LAYOUT, "the DHT's expiry is not that of the record")
        check_issued(record, self.now())


def run_of(value: bytes) -> RunId:
    """Return the run of an entry that a gate has admitted, from its MessagePack value."""
    return unseal(unpack(value)).run_id


def unpack(packed: bytes) -> bytes:
    """Return the one byte string that a MessagePack value consists of. Raises InvalidRecord.

    A general parser would follow any nested structure that a hostile peer sends."""
    if not isinstance(packed, bytes) or len(packed) > MAX_RECORD_BYTES + 3:
        raise InvalidRecord(Code.TOO_LARGE, f"more than {MAX_RECORD_BYTES} bytes")
    head = {_BIN8: 2, _BIN16: 3}.get(packed[:1])
    if head is None or len(packed) != head + int.from_bytes(packed[1:head], "big"):
        raise InvalidRecord(Code.LAYOUT, "not a plain byte string")
    return packed[head:]
